"""The error of an output against float64: the same network, computed by the plain framework.

`max_rel_error` is the largest deviation over the largest magnitude of the float64 output. The
reference starts from the float32 weights and inputs, so rounding them to half precision counts as
error, too. After a training in a reduced type there are no other weights than the reduced ones, nor
of layers that were made in the first pass: the reference has them as they are, and what rounding
cost while they were learned is not told. The reference is kept while consecutive points have the
same network, size, batch and inputs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep import sources
from hpcsweep.conv import parts
from hpcsweep.conv.proof import autograd_graph
from hpcsweep.conv.shape import mapped
from hpcsweep.conv.swap import ExplicitConv2d
from hpcsweep.measure import models, tensors
from hpcsweep.point import Point

# What a deep network may lose: the type's own rounding, a few hundred layers of it. Measured on
# torchvision's networks at 224: float32 up to 4e-6, bfloat16 up to 0.05; Winograd loses more.
TOLERANCE: Final[Mapping[str, float]] = {
    "float64": 1e-10,
    "float32": 2e-4,
    "float16": 0.05,
    "bfloat16": 0.3,
}
TF32_TOLERANCE: Final = 0.05
# Types that still hold the weights as they were drawn or trained.
_LOSSLESS: Final = frozenset({"float32", "float64"})
_BLOCK: Final = 1 << 19  # numbers of a linear layer's weights that are converted at a time
_log = logging.getLogger(__name__)


class Reference:
    """Computes float64 outputs, and keeps the last one.

    Beside a GPU it keeps the float32 weights of a network in a reduced type, too, in the memory of
    the host. On a CPU it builds them anew each time: they would count as memory of the points.
    """

    def __init__(self, device: torch.device) -> None:
        """Compute on this device, or on the CPU where it knows no float64."""
        self._device = torch.device("cpu") if device.type == "mps" else device
        self._key: tuple[object, ...] | None = None
        self._outputs: list[Tensor] = []
        self._drawn, self._keeps = models.ModelCache(torch.device("cpu")), device.type == "cuda"

    def error(self, point: Point, network: nn.Module, output: object) -> float | None:
        """Return `max_rel_error` of an output of the point's network.

        The network must run the plain framework by now. None: the float64 pass is not possible
        here, or its output is all zero.
        """
        try:
            wanted = self._for(point, network)
        except RuntimeError as error:
            _log.warning("no float64 reference: %s", error)
            return None
        found = [tensor.to(self._device).double() for tensor in autograd_graph.tensors_in(output)]
        return relative_error(found, wanted)

    def drop(self) -> None:
        """Forget the output, and the weights."""
        self._key, self._outputs = None, []
        self._drawn.drop()

    def make_room(self, point: Point) -> None:
        """Forget the weights of another network than the point's, which is built next."""
        self._drawn.keep_only(_as_drawn(point))

    def _for(self, point: Point, network: nn.Module) -> list[Tensor]:
        """Return the outputs in float64 for a point's network and first input."""
        names = ("model", "weights", "seed", "batch_size", "input_fill")
        own = sources.here(point)
        key = (*(point.axes[name] for name in names), models.image_shape(point.axes), own)
        if key != self._key:
            self._key, self._outputs = None, []
            with torch.inference_mode(), models.seeded(point):
                self._outputs = list(autograd_graph.tensors_in(self._run(point, network)))
            self._key = key
        return self._outputs

    def _run(self, point: Point, network: nn.Module) -> object:
        exact = replace(point, axes={**point.axes, "dtype": "float64", "memory_format": "nchw"})
        (image,) = models.make_inputs(exact, self._device)
        reduced = point.axes["dtype"] not in _LOSSLESS
        drawn = point.workload == "inference"  # else the weights were learned
        if drawn and (reduced or self._device.type != image_device(network)):
            as_drawn, _ = self._drawn.get(_as_drawn(point))
            if not self._keeps:
                self._drawn.drop()
            if not tensors.is_lazy(as_drawn) and tensors.have_same_places(as_drawn, network):
                network = as_drawn
        # your own code may ask for the type of weights that are not converted yet
        run = _in_float64 if ":" in point.axes["model"] else _layer_by_layer
        return run(network, image)


def _as_drawn(point: Point) -> models.ModelKey:
    """Return the key of a point's network before it was put into the point's type and layout."""
    return replace(models.ModelKey.of(point), dtype="float32", memory_format="nchw")


def convolution_errors(
    network: nn.Module, run: Callable[[], object], layers: Sequence[str]
) -> list[float | None]:
    """Return the error of the convolution calls of `layers`, which are names in call order.

    Each call is compared with float64 by the framework on the input that the call itself had, so
    what earlier layers lost does not count. None: the call did not come, or there is no float64.
    """
    errors: dict[str, list[float | None]] = {name: [] for name in layers}
    calls: list[str] = []  # one at a time, since a layer's own code is called once more inside

    def compare(name: str, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        assert isinstance(module, nn.Conv2d)  # noqa: S101 - hooked on no other
        inputs = list(autograd_graph.tensors_in([args, kwargs]))
        if not calls and len(inputs) == 1 and not mapped(inputs[0]):  # as for the shape pass
            calls.append(name)
            errors[name].append(_own_error(module, inputs[0].double(), output))
            calls.clear()

    with ExitStack() as hooks:
        for name in errors:
            module, hook = network.get_submodule(name), partial(compare, name)
            hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        run()
    in_order = {name: iter(of_layer) for name, of_layer in errors.items()}
    return [next(in_order[name], None) for name in layers]


def _own_error(layer: nn.Conv2d, x: Tensor, output: object) -> float | None:
    plain = type(layer) in {nn.Conv2d, ExplicitConv2d}
    try:
        wanted = _exact(layer, x) if plain else _in_float64(layer, x)
    except RuntimeError as error:
        _log.warning("no float64 reference of a %s: %s", type(layer).__name__, error)
        return None
    found = [tensor.double() for tensor in autograd_graph.tensors_in(output)]
    return relative_error(found, list(autograd_graph.tensors_in(wanted)))


def _in_float64(module: nn.Module, *inputs: Tensor) -> object:
    """Run a module's own code on a copy of its tensors in float64, where the inputs are."""
    device = inputs[0].device

    def change(held: Tensor) -> Tensor:
        exact = _double(held.to(device))
        return exact.clone() if exact is held else exact

    with parts.eagerly():
        with suppress(RuntimeError), tensors.copied(module, change) as exact:
            return exact(*inputs)
        with tensors.replaced(module, change):  # its code may know the network itself alone
            return module(*inputs)


def _layer_by_layer(network: nn.Module, image: Tensor) -> object:
    """Run a network in float64; weights are converted while their layer runs, as they take memory.

    Where a layer's are used without a call of it, types do not fit: then all at once.
    """
    linear = [part for part in network.modules() if type(part) is nn.Linear]
    others = [part for part in network.modules() if type(part) is not nn.Linear and _has_own(part)]
    by_rows = parts.wrapped_forwards(linear, _by_rows)
    in_turn = parts.wrapped_forwards(others, partial(_doubled, image.device))
    with suppress(RuntimeError), by_rows, in_turn:
        return network(image)
    return _in_float64(network, image)


def _by_rows(forward: Callable[..., object]) -> Callable[[Tensor], Tensor]:
    """Return what a linear layer computes, in float64, a few rows of its weights at a time.

    They are most of the weights of some networks: new memory for all of them takes longer than to
    multiply.
    """
    layer: nn.Linear = forward.__self__  # type: ignore[attr-defined]

    def run(x: Tensor) -> Tensor:
        rows = max(1, _BLOCK // layer.in_features)
        parts = [F.linear(x, _double(w.to(x.device))) for w in layer.weight.split(rows)]
        found = torch.cat(parts, -1)
        return found if layer.bias is None else found + layer.bias.to(x.device)

    return run


def _doubled(device: torch.device, forward: Callable[..., object]) -> Callable[..., object]:
    """Return a module's code with its own parameters and buffers in float64 while it runs."""
    module: nn.Module = forward.__self__  # type: ignore[attr-defined]
    held = (module._parameters, module._buffers)  # noqa: SLF001 - setattr wants Parameters

    def run(*args: object, **kwargs: object) -> object:
        before = [dict(tensors) for tensors in held]
        try:
            for tensors in held:
                exact = {n: _double(t.to(device)) for n, t in tensors.items() if t is not None}
                tensors.update(exact)
            return forward(*args, **kwargs)
        finally:
            for tensors, own in zip(held, before, strict=True):
                tensors.update(own)

    return run


def _has_own(module: nn.Module) -> bool:
    tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return bool(tensors)


def _exact(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolve in float64, as the framework's own layer would."""
    bias = None if layer.bias is None else layer.bias.double()
    return layer._conv_forward(x, layer.weight.double(), bias)  # noqa: SLF001 - pads as it does


def relative_error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float | None:
    """Return the largest deviation over the largest magnitude wanted; None where that is zero."""
    largest = max((t.abs().max().item() for t in wanted if t.numel()), default=0.0)
    if not largest:
        return None
    deviations = [(a - b).abs().max().item() for a, b in zip(found, wanted, strict=True)]
    return math.nan if any(map(math.isnan, deviations)) else max(deviations) / largest


def image_device(network: nn.Module) -> str:
    """Return the device type that a network wants its images on."""
    first = next(network.parameters(), None)
    return first.device.type if first is not None else "cpu"


def _double(tensor: Tensor) -> Tensor:
    return tensor.double().contiguous() if tensor.is_floating_point() else tensor


def inaccurate(error: float | None, dtype: str, *, tf32: bool) -> bool:
    """Say whether an error is more than the dtype explains."""
    if error is None:
        return False
    limit = TOLERANCE[dtype]
    if tf32 and dtype == "float32":
        limit = TF32_TOLERANCE
    return not error <= limit  # not a number is inaccurate, too
