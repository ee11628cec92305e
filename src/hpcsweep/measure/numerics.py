"""Compares outputs and convolutions with float64: the same network, run by the plain framework.

Each output is compared by itself, and each convolution call on its own input; `rounding` has the
bounds. Values that have no float64 reference get the reason. The reference starts from the float32
weights and inputs, so rounding them to half precision counts as error, too. After a training in a
reduced type, and in layers that were made in the first pass, there are only reduced weights: the
reference uses these, and does not show what rounding cost while they were learned. The reference is
kept while consecutive points have the same network, size, batch and inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from hpcsweep import sources
from hpcsweep.catalog import AXES, WORKLOADS, Role
from hpcsweep.conv import parts, tensors
from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.proof import autograd_graph
from hpcsweep.conv.shape import ConvShape, transformed
from hpcsweep.conv.swap import ExplicitConv2d, is_plain
from hpcsweep.errors import first_line
from hpcsweep.measure import models, rounding, switches
from hpcsweep.measure.machine import framework
from hpcsweep.measure.rounding import Arithmetic, Exactness
from hpcsweep.measure.shadow import Shadow, exact
from hpcsweep.measure.shape_pass import unfused_attention
from hpcsweep.point import Point

# Types that hold the drawn or trained weights without rounding.
_LOSSLESS: Final = frozenset({"float32", "float64"})
# The axes that change float64 outputs: network and input, but not dtype and layout.
_OUTPUT_AXES: Final = tuple(
    name
    for name, axis in AXES.items()
    if axis.role & (Role.NETWORK | Role.INPUT) and Role.SETTING not in axis.role
)
_log = logging.getLogger(__name__)


class Float64Reference:
    """Computes float64 outputs, and keeps the last one.

    For a GPU it also keeps the float32 weights of a network in a reduced type, in the host's
    memory. On a CPU it builds them anew each time, since they would count as memory of the points.
    """

    def __init__(self, device: torch.device) -> None:
        """Compute on this device, or on the CPU if it lacks float64."""
        self._device = torch.device("cpu") if device.type == "mps" else device
        self._key: tuple[object, ...] | None = None
        self._outputs: list[Tensor] = []
        self.coarsest = 0.0  # unit roundoff that the network's code asks for in places
        self._in_parts = False  # the network ran on parts of the batch
        self._drawn = models.ModelCache(torch.device("cpu"))
        self._keeps = device.type == "cuda"

    def verdicts(
        self, point: Point, network: nn.Module, output: object, limit: float
    ) -> list[Exactness]:
        """Compare each output of the point's network; `limit` is the allowed relative error.

        The network must have plain layers.
        """
        try:
            outputs = [*autograd_graph.tensors_in(output)]
            found = rounding.if_it_fits(lambda: self._compared(point, network, outputs, limit))
        except Exception as error:  # noqa: BLE001 - a network's code may raise anything
            return [_not_compared("output", error)]
        if found is not None:
            return found
        images = point.axes["batch_size"]
        return [Exactness(subject="output", skipped=rounding.no_memory(images, images))]

    def followed(
        self, point: Point, network: nn.Module, output: object, limit: float
    ) -> list[Exactness]:
        """Compare outputs with float64 beside the point's own algorithms.

        Values that are nearly equal may choose the outputs, as in top-k and in the suppression of
        overlapping boxes; then those of another algorithm may choose others.
        """
        self._key = None
        found = self.verdicts(point, network, output, limit)
        self._key = None  # of this algorithm alone
        return found

    def settled(self, verdicts: Sequence[Exactness]) -> list[Exactness]:
        """Return verdicts in which nothing is wrong that differs from parts of a batch alone.

        The network may mix the images of a batch: then there is no reference.
        """
        about = "in float64 there was memory for parts of the batch alone; there, "
        return [
            Exactness(subject=v.subject, reason=f"{about}{v.message}")
            if self._in_parts and rounding.is_wrong(v)
            else v
            for v in verdicts
        ]

    def _compared(
        self, point: Point, network: nn.Module, outputs: Sequence[Tensor], limit: float
    ) -> list[Exactness]:
        """Compare outputs, on the host where the device has no memory for that."""
        wanted = self._for(point, network)
        if self._in_parts and [t.shape for t in wanted] != [t.shape for t in outputs]:
            raise MemoryError  # outputs of parts do not make those of the whole
        found = rounding.if_it_fits(lambda: rounding.of_outputs(outputs, wanted, limit))
        if found is not None:
            return found
        self._outputs = [tensor.cpu() for tensor in wanted]
        return rounding.of_outputs(outputs, self._outputs, limit)

    def drop(self) -> None:
        """Drop the outputs and the weights."""
        self._key = None
        self._outputs = []
        self._drawn.drop()

    def _for(self, point: Point, network: nn.Module) -> list[Tensor]:
        """Return the outputs in float64 for a point's network and first input."""
        own_code = ":" in point.axes["model"]  # which may depend on the type
        key = (*(point.axes.get(name) for name in _OUTPUT_AXES), sources.own_files_here(point))
        key = (*key, point.axes["dtype"] if own_code else None)
        if key != self._key:
            self._key = None
            self._outputs = []
            with torch.inference_mode(), models.seeded(point):
                self._outputs = self._run(point, network)
            self._key = key
        return self._outputs

    def _run(self, point: Point, network: nn.Module) -> list[Tensor]:
        """Run the network, on parts of the batch where memory runs out."""
        wide = replace(point, axes={**point.axes, "dtype": "float64", "memory_format": "nchw"})
        (image,) = models.make_inputs(wide, self._device)
        reduced = point.axes["dtype"] not in _LOSSLESS
        drawn = not WORKLOADS[point.workload].learns  # else the weights were learned
        as_drawn = network
        if drawn and reduced:
            built = self._drawn.get(_as_drawn(point))
            if not self._keeps:
                self._drawn.drop()
            if not tensors.is_lazy(built) and tensors.have_same_places(built, network):
                as_drawn = built

        run = partial(_shadowed, network, as_drawn, getattr(torch, point.axes["dtype"]))
        size = len(image)
        while size:
            try:
                found = rounding.if_it_fits(partial(_outputs_of, run, image, size))
            except Exception as error:
                if size == len(image):
                    raise
                raise MemoryError from error  # it ran whole: its code has no parts
            if found is not None:
                outputs, self.coarsest = found
                self._in_parts = size < len(image)
                return outputs
            size //= 2
        raise MemoryError


def _outputs_of(
    run: Callable[[Tensor], tuple[list[Tensor], float]], image: Tensor, size: int
) -> tuple[list[Tensor], float]:
    """Run a batch, `size` images at a time; return outputs, those of parts on the host.

    Return the coarsest unit roundoff, too (see `_shadowed`).
    """
    if size == len(image):
        return run(image)
    of_parts = list[list[Tensor]]()
    coarsest = 0.0
    for images in image.split(size):
        outputs, of_part = run(images)
        of_parts.append([tensor.cpu() for tensor in outputs])
        coarsest = max(coarsest, of_part)
    return [torch.cat(tensors) for tensors in zip(*of_parts, strict=True)], coarsest


def _as_drawn(point: Point) -> models.ModelKey:
    """Return the key of a point's network in float32, before its type and layout are applied."""
    axes = {**point.axes, "dtype": "float32", "memory_format": "nchw"}
    return models.ModelKey.of(replace(point, axes=axes))


def _not_compared(what: str, error: Exception) -> Exactness:
    _log.warning("no float64 reference of %s: %s", what, error)
    return Exactness(subject=what, reason=f"no float64 reference: {first_line(error)}")


class Convolutions:
    """Compares convolution calls of a pass, each on its own input, so that errors do not add up.

    Unless `whole`, random sums of channels stand for a call's output, and the first call of a shape
    for all that run the same algorithm on it. Layers with code of their own are left out.
    """

    def __init__(self, choices: Sequence[LayerChoice], *, tf32: bool, whole: bool) -> None:
        self._choices = choices
        self._tf32 = tf32
        self._whole = whole
        self._verdicts: dict[int, Exactness] = {}
        self._of_kinds: dict[tuple[ConvShape, str], Exactness] = {}

    def compared(self, network: nn.Module) -> AbstractContextManager[None]:
        """Compare the calls of a pass in the block."""
        layers = {choice.layer: network.get_submodule(choice.layer) for choice in self._choices}
        for i, choice in enumerate(self._choices):
            if not is_plain(layers[choice.layer]):
                self._verdicts[i] = Exactness(subject=choice.layer)
        plain = [(name, layer) for name, layer in layers.items() if is_plain(layer)]
        return parts.wrapped_layers(plain, self._comparing)

    def verdicts(self, missing: str | None) -> list[Exactness]:
        """Return a verdict for each choice; `missing` is the reason for calls that did not come."""
        return [
            self._verdicts.get(i, Exactness(subject=choice.layer, reason=missing))
            for i, choice in enumerate(self._choices)
        ]

    def _comparing(
        self, name: str, layer: nn.Conv2d, forward: Callable[..., Tensor]
    ) -> Callable[..., Tensor]:
        """Return a layer's `forward` with a comparison of its output."""
        waiting = [i for i, choice in enumerate(self._choices) if choice.layer == name]

        def run(input: Tensor) -> Tensor:  # noqa: A002 - the framework's name
            output = forward(input)
            shape = None if transformed(layer, input) else ConvShape.of(layer, input)
            number = next((i for i in waiting if self._choices[i].shape == shape), None)
            if number is not None:
                waiting.remove(number)
                self._verdicts[number] = self._compare(layer, self._choices[number], input, output)
            return output

        return run

    def _compare(
        self, layer: nn.Conv2d, choice: LayerChoice, x: Tensor, output: Tensor
    ) -> Exactness:
        kind = choice.shape, choice.used
        found = None if self._whole else self._of_kinds.get(kind)
        if found is None:
            casts = {x.dtype, layer.weight.dtype} != {getattr(torch, choice.shape.dtype)}
            how = Arithmetic.of(choice, x.device.type, tf32=self._tf32, casts=casts)
            try:
                with torch.autocast(x.device.type, enabled=False):
                    found = rounding.of_call(layer, x, output, how, whole=self._whole)
            except Exception as error:  # noqa: BLE001 - of tensors of any class
                found = _not_compared(choice.layer, error)
            self._of_kinds[kind] = found
        return replace(found, subject=choice.layer)


def explain_random(
    run: Callable[[], object], outputs: Sequence[Exactness], limit: float
) -> list[Exactness]:
    """Return wrong outputs with the reason if two passes differ, too: the network is random."""
    first, second = ([t.clone() for t in autograd_graph.tensors_in(run())] for _ in range(2))
    if not any(map(rounding.is_wrong, rounding.of_outputs(first, second, limit))):
        return []
    reason = "two passes over one input differ; is the network random?"
    return [replace(v, reason=reason) if rounding.is_wrong(v) else v for v in outputs]


def left_to_calls(calls: Sequence[Exactness], why: str) -> Exactness:
    """Return the verdict on outputs that say nothing; `calls` judge in their place if they can."""
    if calls and all(call.skipped or call.excess is not None for call in calls):
        return Exactness(subject="output", skipped=f"{why}; each call of nn.Conv2d was compared")
    return Exactness(subject="output", reason=why)


@switches.untuned()
def _shadowed(
    network: nn.Module, drawn: nn.Module, dtype: torch.dtype, image: Tensor
) -> tuple[list[Tensor], float]:
    """Run a network on an image of its type (see `shadow`).

    `drawn` has its weights before they were rounded. Code that has another path for float64 may
    have it alone there, so that is tried, too. Return the outputs in float64, and the largest unit
    roundoff of the types in which the code computes.
    """
    shadow = Shadow(image.device)
    held = zip(_held(network), _held(drawn), strict=True) if drawn is not network else ()
    for tensor, numbers in held:
        shadow.hold(tensor, exact(numbers.to(image.device)))
    seen = image.to(next(network.parameters(), image).device, dtype, copy=True)
    shadow.hold(seen, image)
    explicit = [part for part in parts.convolutions(network) if isinstance(part[1], ExplicitConv2d)]
    plainly = parts.wrapped_layers(explicit, partial(_beside, shadow))
    try:
        with parts.eagerly(), plainly, unfused_attention(), shadow:
            returned = [*autograd_graph.tensors_in(network(seen))]
        if any(map(shadow.has, returned)):  # else they came by whole numbers, which have none
            return [*map(shadow.of, returned)], shadow.coarsest
    except Exception as error:
        if framework.is_out_of_memory(error):
            raise
        _log.info("no float64 beside each operator: %s", error)
    change = partial(_exact_on, image.device)
    with parts.eagerly(), tensors.copied(drawn, change) as wide:
        return [*autograd_graph.tensors_in(wide(image))], 0.0


def _beside(
    shadow: Shadow, _name: str, layer: nn.Conv2d, forward: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """Return the `forward` of a layer's algorithm, with the plain convolution beside it."""

    def run(input: Tensor) -> Tensor:  # noqa: A002 - the framework's name
        with _disable_current_modes():
            output = forward(input)
            bias = None if layer.bias is None else shadow.of(layer.bias)
            wide = layer._conv_forward(shadow.of(input), shadow.of(layer.weight), bias)  # noqa: SLF001
            shadow.hold(output, wide)
        return output

    return run


def _held(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _exact_on(device: torch.device, tensor: Tensor) -> Tensor:
    return exact(tensor.to(device, copy=True))
