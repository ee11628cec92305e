"""Runs the algorithms of a map in one's own program, by the back-ends that measured them.

``with hpcsweep.algorithms(model, "map.yaml"): model(images)`` needs torch and nothing of the
orchestrator. Each plain `nn.Conv2d` that the map names changes its class (see `swap`), so state,
names and hooks stay. Give the map after the network has its device.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import yaml
from torch import nn

from hpcsweep import catalog
from hpcsweep.conv import choice, parts, swap
from hpcsweep.conv.backend import FRAMEWORK, choose
from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.proof import cell, profiled_passes
from hpcsweep.conv.shape import ConvShape, transformed
from hpcsweep.errors import SpecError, UsageError, suggest

if TYPE_CHECKING:
    from typing_extensions import Self

# of an image, where a point names no other number: red, green and blue
_CHANNELS: Final = 3
# how the key of a shape begins
_OF_SHAPES: Final = "conv2d"


@dataclass(frozen=True)
class Algorithms:
    """A map of algorithms on a network, in a ``with`` block or after `install`."""

    _model: nn.Module
    _layers: Mapping[str, str]
    _measured: frozenset[ConvShape] | None

    def install(self) -> Self:
        """Let the network run the map until `remove`."""
        if any(isinstance(module, swap.ExplicitConv2d) for module in self._model.modules()):
            raise UsageError("the network has a map already: remove() takes it away")
        backend = choose(parts.device_type(self._model))
        names = swap.swap(self._model)
        by_shape = choice.idle_patterns(self._layers, [(name, "") for name in names])
        for name in names:
            module = self._model.get_submodule(name)
            if not by_shape and choice.requested(self._layers, name) == catalog.AUTO:
                swap.restore(module)  # to look a decision up takes microseconds
            else:
                module.assigned = swap.Assignment(
                    name, self._layers, backend, measured=self._measured
                )
        return self

    def remove(self) -> None:
        """Let the network run as it did before."""
        swap.restore(self._model)

    @property
    def fallbacks(self) -> dict[str, int]:
        """How many calls ran the framework's default instead, by layer and reason."""
        calls = Counter[str]()
        for module in self._model.modules():
            if isinstance(module, swap.ExplicitConv2d) and module.assigned:
                for picked, times in module.assigned.fell_back.items():
                    calls[f"{picked.layer}: {picked.requested}: {picked.reason}"] += times
        return dict(calls)

    def __enter__(self) -> Self:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.remove()


@dataclass(frozen=True)
class Used:
    """What one convolution call ran: `used` is the algorithm, `backend` whose it is.

    `shape` is the key of the call's shape, `evidence` what the profiler saw, `reason` why it is not
    what was `requested`.
    """

    layer: str
    shape: str
    requested: str
    used: str
    backend: str
    evidence: str
    reason: str | None = None


def algorithms(
    model: nn.Module, layers: Mapping[str, str] | str | os.PathLike[str], *, name: str = ""
) -> Algorithms:
    """Return a map of algorithms for a network, to be used in a ``with`` block or installed.

    `layers` maps patterns of layers to algorithms as in a sweep, or is the file that ``hpcsweep
    best --out`` wrote; `name` chooses one of several maps in it. Shapes other than those that such
    a file was measured for run the framework's default, as do those that an algorithm cannot do:
    `Algorithms.fallbacks` counts their calls.

    Raises:
        SpecError: the file has no such map.
        UsageError: the map names a layer that the network does not have, or one that cannot have an
            algorithm: torch compiles it, or it computes by code of its own.
        UnknownAlgorithm: it names no algorithm.
    """
    points: list[dict[str, Any]] = []
    if not isinstance(layers, Mapping):
        layers, points = _read_map(Path(layers), name)
    choice.check(layers)
    _check_layers(model, layers)
    measured = set[ConvShape]()
    for axes in points:
        measured |= _shapes_at(model, axes)
    return Algorithms(model, layers, frozenset(measured) if points else None)


def algorithms_used(model: nn.Module, *inputs: object) -> list[Used]:
    """Run the network twice on inputs, and return what each convolution call ran, in order.

    The second pass runs under torch's profiler. What torch compiles is not seen.
    """
    backend = None
    picked = []
    for name, module, shape in _calls(model, *inputs):
        plain = LayerChoice(name, shape, catalog.AUTO, catalog.AUTO, FRAMEWORK)
        if isinstance(module, swap.ExplicitConv2d) and module.assigned:
            backend = module.assigned.backend
            picked.append(module.assigned.decided.get(shape, plain))
        else:
            picked.append(plain)
    if backend is None:
        backend = choose(parts.device_type(model))
    proof = profiled_passes.prove_forward(model, lambda: model(*inputs), picked, backend)
    used = []
    for one, evidence in zip(picked, proof.calls, strict=True):
        key = one.shape.unique_key
        text = cell(evidence)
        used.append(Used(one.layer, key, one.requested, one.used, one.backend, text, one.reason))
    return used


def _calls(
    model: nn.Module, *inputs: object, device: str = ""
) -> list[tuple[str, nn.Conv2d, ConvShape]]:
    """Run a network; return its convolution calls in order, as on a kind of device."""
    calls: list[tuple[str, nn.Conv2d, ConvShape]] = []

    def noting(name: str, module: nn.Conv2d, forward: parts.Forward) -> parts.Forward:
        def noted(x: torch.Tensor) -> object:
            if not transformed(module, x):
                calls.append((name, module, ConvShape.of(module, x, device=device)))
            return forward(x)

        return noted

    with parts.wrapped_layers(parts.convolutions(model), noting):
        model(*inputs)
    return calls


def _read_map(path: Path, name: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return a map of a file, and the axes of the points of which it was made."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{path}: holds no map of layers to algorithms")
    maps = content.get("maps")
    if not isinstance(maps, dict) or not maps:
        if all(isinstance(value, str) for value in content.values()) and "name" not in content:
            return content, []
        raise SpecError(f"{path}: no `maps`; `hpcsweep best SWEEP --out FILE` writes such a file")
    chosen = name
    if not name and len(maps) == 1:
        chosen = next(iter(maps))
    if chosen not in maps:
        what = f"no '{name}'{suggest(name, maps)}" if name else f"{len(maps)} maps"
        raise SpecError(f"{path}: {what}; choose one by name=: {', '.join(maps)}")
    layers = maps[chosen]
    points = content.get("include") or []
    return dict(layers), [point for point in points if point.get("algorithm") == layers]


def _check_layers(model: nn.Module, layers: Mapping[str, str]) -> None:
    """Complain about layers that the map names and that cannot run it."""
    plain = [name for name, module in parts.convolutions(model) if swap.is_plain(module)]
    every = dict(model.named_modules())
    for name, algorithm in layers.items():
        is_pattern = not set("*?[").isdisjoint(name) or name.startswith(_OF_SHAPES)
        if name == choice.DEFAULT or is_pattern or name in plain:
            continue
        if name not in every:
            hint = suggest(name, plain) or f"; layers are {', '.join(plain[:3])} ..."
            raise UsageError(f"the map names '{name}', which the network does not have{hint}")
        if algorithm in choice.FRAMEWORK_CHOICES:
            continue
        why = f"is a {type(every[name]).__name__} and no plain nn.Conv2d"
        words = name.split(".")
        for count in range(len(words) + 1):
            closed = parts.closed(every[".".join(words[:count])])  # the layer, or a part around it
            if closed:
                why = f"is {closed}, where torch runs its own; give the map before torch.compile"
                break
        raise UsageError(f"the map names '{name}', which {why}")


def _shapes_at(model: nn.Module, axes: Mapping[str, Any]) -> frozenset[ConvShape]:
    """Return the shapes of the convolution calls of a point, from a copy on the meta device."""
    axes = {**catalog.axis_defaults(catalog.INFERENCE.name), **axes}
    dtype = getattr(torch, axes["dtype"])
    channels = axes.get("input_channels") or _CHANNELS
    height = axes["input_size"]
    width = axes.get("input_width") or height
    image = torch.empty(axes["batch_size"], channels, height, width, dtype=dtype, device="meta")

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        wanted = dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty_like(tensor, dtype=wanted, device="meta")

    with torch.inference_mode(), parts.eagerly(), parts.copied(model, empty) as without_values:
        for module in without_values.modules():
            module._forward_hooks.clear()  # noqa: SLF001 - of the copy
            module._forward_pre_hooks.clear()  # noqa: SLF001
        calls = _calls(without_values, image, device=parts.device_type(model))
    return frozenset(shape for *_, shape in calls)
