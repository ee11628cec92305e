"""Builds networks by name, and their inputs.

A name is a torchvision classifier's or `package.module:factory`. Weights are random from a seed,
a torchvision weights name, or the path of a state dict.

Random weights are changed in two ways, so that an untrained network in evaluation mode computes
with numbers like a trained network's. Without training its batch norms do nothing, so activations
grow to 1e8 (ResNet-152) or fade to 1e-14 (EfficientNet), beyond half precision's range: each batch
norm gets the scale of one small image. Some last layers of torchvision are all zero: such weights
are drawn anew. Shapes, operators and counts stay the same.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from hpcsweep import sources
from hpcsweep.catalog import Role, axes_with
from hpcsweep.conv.parts import is_lazy
from hpcsweep.errors import UsageError, suggest
from hpcsweep.measure import switches
from hpcsweep.point import Point

RANDOM: Final = "random"
# of a picture; what torchvision's networks and weights are for
CHANNELS: Final = 3
# Without this argument, both warn.
_EXTRA: Final = {name: {"init_weights": True} for name in ("googlenet", "inception_v3")}
# Sizes for the pass that scales batch norms: the first one that the network takes. Most take 224,
# as on ImageNet, inception_v3 is made for 299, and 64 is for what takes neither.
_SETTLING_SIZES: Final = (224, 299, 64)
# numbers of a tensor that are not all zero by chance where numbers were drawn
_TELLING: Final = 8
_COMPLEX: Final = {"float64": torch.complex128}
# what mixed precision computes in, by the axis `amp`; others are without
AUTOCAST: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
LAYOUTS: Final = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


@dataclass(frozen=True)
class ModelKey:
    """What identifies a network in memory; points with the same key share it."""

    axes: tuple[tuple[str, Any], ...]  # all that change the network
    own_files: str  # digests of the user's files behind it

    @classmethod
    def of(cls, point: Point) -> ModelKey:
        """Return the key of a point's network."""
        axes = tuple((name, point.axes.get(name)) for name in axes_with(Role.NETWORK))
        return cls(axes, sources.own_files_here(point))


def settle() -> None:
    """Collect garbage now, and exempt the remaining objects from later collections.

    torch and torchvision alone are half a million objects, which each collection would visit.
    Exempt objects in reference cycles are never freed: call this before a network is built.
    """
    gc.collect()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)  # once; else libraries report leaks at the end
    gc.freeze()


class ModelCache:
    """Keeps the last network for the next point with the same key."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._key: ModelKey | None = None
        self._model: nn.Module | None = None

    def get(self, key: ModelKey) -> nn.Module:
        """Return the network of a key."""
        if not self.keep_only(key):
            self._model = build(key, self._device)
            self._key = key
        return self._model

    def keep_only(self, key: ModelKey) -> bool:
        """Drop the network unless it has the key; say whether one is left."""
        if key != self._key:
            self.drop()
        return self._model is not None

    def drop(self) -> None:
        """Drop the network and free its memory."""
        self._model = self._key = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


@torch.inference_mode(mode=False)  # else its parameters would be inference tensors
def build(key: ModelKey, device: torch.device) -> nn.Module:
    """Return the network in evaluation mode, on the device, in its dtype and layout.

    Raises:
        UsageError: no such network, factory or weights.
    """
    axes = dict(key.axes)
    model = build_float32(axes["model"], axes["weights"], axes["seed"], channels=channels_of(axes))
    return placed(model, device, axes["dtype"], axes["memory_format"])


def placed(model: nn.Module, device: torch.device, dtype: str, memory_format: str) -> nn.Module:
    """Return a network on a device, in a type and a layout; a lazy one has no layout yet.

    Complex numbers stay complex, in the precision of `dtype` or of float32.
    """
    wanted = getattr(torch, dtype)

    def cast(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.to(wanted)
        return tensor.to(_COMPLEX.get(dtype, torch.complex64)) if tensor.is_complex() else tensor

    model = model.to(device=device)._apply(cast)  # noqa: SLF001 - `to` would drop imaginary parts
    return model if is_lazy(model) else model.to(memory_format=LAYOUTS[memory_format])


def build_float32(  # noqa: PLR0913 - a network, and what it is for
    name: str,
    weights: str = RANDOM,
    seed: int = 0,
    *,
    enliven: bool = True,
    trains: bool = False,
    channels: int = CHANNELS,
) -> nn.Module:
    """Return the network as it was trained or drawn: float32, on the CPU, in evaluation mode.

    `enliven` False leaves random weights as they are drawn. If it `trains`, the network has the
    modes and the frozen parameters that its factory gave it, and weights as they are drawn.
    `channels` are those of the images; they change torchvision's networks, not the user's own.
    """
    other_channels = channels != CHANNELS and ":" not in name
    if other_channels and weights != RANDOM and not sources.is_weights_file(weights):
        raise UsageError(
            f"weights '{weights}' are for {CHANNELS} channels; with input_channels {channels} use "
            f"'{RANDOM}' or a state dict of your own"
        )
    is_own = ":" in name
    is_file = sources.is_weights_file(weights)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _from_factory(name) if is_own else _from_torchvision(name, weights)
        if other_channels:
            _take_channels(model, channels)
        model = model.float()
        if not trains:
            for parameter in model.eval().parameters():
                parameter.requires_grad = False  # lazy and scripted ones refuse requires_grad_()
        if is_file:
            load_weights(model, sources.file(weights))
        elif is_own and weights != RANDOM:
            raise UsageError(
                f"weights '{weights}': '{name}' is your own factory, so weights are "
                f"'{RANDOM}' (what it returns) or the path of a state dict"
            )
        elif weights == RANDOM and enliven and not (is_own or trains):
            _enliven(model, channels)
    return model


@contextmanager
def seeded(point: Point, number: int = 0) -> Iterator[None]:
    """Seed random numbers of a pass by the point, so that passes of a number can be compared."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(point.axes["seed"] + number)
        yield


def channels_of(axes: Mapping[str, Any]) -> int:
    """Return the channels of a point's images; trainings have no such axis."""
    return axes.get("input_channels") or CHANNELS


def image_shape(axes: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return channels, height and width of a point's images."""
    height = axes["input_size"]
    return channels_of(axes), height, axes.get("input_width") or height


def _take_channels(model: nn.Module, channels: int) -> None:
    """Replace a network's first convolution by one for images with these channels."""
    for name, first in model.named_modules():
        if isinstance(first, nn.Conv2d):
            new = nn.Conv2d(
                channels, first.out_channels, first.kernel_size, first.stride, first.padding,
                bias=first.bias is not None,
            )  # fmt: skip
            # as torchvision draws those of its ResNets
            nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
            put(model, name, new)
            return


def put(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace a layer of a network."""
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, layer)


def make_inputs(point: Point, device: torch.device, count: int = 1) -> list[Tensor]:
    """Return images from the point's seed; a larger `count` does not change the first ones."""
    axes = point.axes
    generator = torch.Generator().manual_seed(axes["seed"])
    shape = (axes["batch_size"], *image_shape(axes))
    dtype = getattr(torch, axes["dtype"])
    layout = LAYOUTS[axes["memory_format"]]
    images = []
    for _ in range(count):
        image = fill(shape, axes["input_fill"], generator)
        images.append(image.to(device=device, dtype=dtype, memory_format=layout))
    return images


def input_bytes(point: Point) -> int:
    """Return the size of one input."""
    axes = point.axes
    numbers = axes["batch_size"] * math.prod(image_shape(axes))
    return int(numbers * getattr(torch, axes["dtype"]).itemsize)


def fill(shape: tuple[int, ...], how: str, generator: torch.Generator) -> Tensor:
    """Return a float32 tensor filled as the axis `input_fill` says."""
    if how == "zeros":
        return torch.zeros(shape)
    if how == "uniform":
        return torch.rand(shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _from_torchvision(name: str, weights: str) -> nn.Module:
    _check_classifier(name)
    models = torchvision_models()
    if weights == RANDOM or sources.is_weights_file(weights):
        model: nn.Module = models.get_model(name, weights=None, **_EXTRA.get(name, {}))
        return model
    file = cached_weights(weights_url(name, weights))
    if not file.is_file():
        raise UsageError(
            f"weights '{weights}': {file} is not there, and nothing is downloaded here; on a login "
            "node run `hpcsweep submit SWEEP --download` (TORCH_HOME names another folder)"
        )
    trained: nn.Module = models.get_model(name, weights=weights.rpartition(".")[2])
    return trained


def weights_url(name: str, weights: str) -> str:
    """Return where torchvision publishes weights of a classifier.

    Raises:
        UsageError: it has no such classifier, or no such weights of it.
    """
    _check_classifier(name)
    named = torchvision_models().get_model_weights(name)
    wanted = weights.rpartition(".")[2]
    if wanted not in {*named.__members__, "DEFAULT"}:
        allowed = ", ".join(named.__members__)
        hint = suggest(wanted, named.__members__)
        raise UsageError(f"weights '{weights}': {name} has {allowed}, a path, or '{RANDOM}'{hint}")
    url: str = named[wanted].url
    return url


def cached_weights(url: str) -> Path:
    """Return the file in torch's cache for weights with this URL."""
    return Path(torch.hub.get_dir(), "checkpoints", Path(url).name)


def torchvision_models() -> Any:  # noqa: ANN401 - a module
    """Import torchvision's networks, which takes two seconds that own factories do not need."""
    from torchvision import models  # noqa: PLC0415

    return models


def _check_classifier(name: str) -> None:
    models = torchvision_models()
    names = models.list_models(module=models)
    if name not in names:
        hint = suggest(name, names)
        raise UsageError(f"model '{name}': torchvision has no such classifier{hint}")


def load_factory(axis: str, path: str) -> Any:  # noqa: ANN401 - whatever the module has there
    """Import the object at `package.module:factory`; `axis` is for the error.

    Raises:
        UsageError: there is no such module, or it has no such name.
    """
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{axis} '{path}': cannot import '{error.name}'; "
            "it must lie beside the sweep or be on PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        raise UsageError(f"{axis} '{path}': module '{module_name}' has no '{attribute}'")
    return getattr(module, attribute)


def _from_factory(path: str) -> nn.Module:
    with switches.kept(path):
        model = load_factory("model", path)()
    if not isinstance(model, nn.Module):
        raise UsageError(f"model '{path}': returned {type(model).__name__}, not a torch.nn.Module")
    for part in model.modules():
        own = vars(part).get("train")
        if own and own.__module__ == "torch.export.exported_program":
            del part.train, part.eval  # they raise: an exported part has the one mode
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a state dict from a file, alone or below `state_dict` or `model`, as in checkpoints.

    Raises:
        UsageError: the file cannot be read, or does not fit the network.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"weights '{path}': {error.strerror or error}") from error
    for key in ("state_dict", "model"):
        state = state.get(key, state) if isinstance(state, dict) else state
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        first = str(error).splitlines()[:2]
        raise UsageError(f"weights '{path}': do not fit the model: {' '.join(first)}") from error


@torch.no_grad()
def _enliven(model: nn.Module, channels: int) -> None:
    """Scale an untrained network's activations like a trained one's (see the top of the module)."""
    for parameter in model.parameters():
        # the first few numbers tell: all of a ResNet-152 take a twentieth of its building
        some = parameter.detach().flatten()[:_TELLING]
        if parameter.dim() > 1 and not some.any() and not parameter.any():
            # as torchvision draws the layers of its transformers
            nn.init.normal_(parameter, std=0.02)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        return
    with ExitStack() as hooks:
        for norm in norms:
            hooks.enter_context(norm.register_forward_pre_hook(_scale))
        for size in _SETTLING_SIZES:
            with suppress(RuntimeError, ValueError, AssertionError):
                model(torch.randn(1, channels, size, size))
                break


def _scale(norm: nn.BatchNorm2d, args: tuple[Tensor, ...]) -> None:
    """Make a batch norm's output of unit size: one scale for all channels, and no shift.

    A batch's own statistics would make a deep network of random weights chaotic: rounding errors
    would grow a thousandfold through a ResNet-152.
    """
    if norm.running_var is not None:
        norm.running_var.fill_(args[0].square().mean())
