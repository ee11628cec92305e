"""Times the backward pass of every convolution call, next to the forward times of all layers.

Autograd runs the backward pass as a graph of nodes. The nodes between the output and the input of a
convolution call belong to it: a single one for the framework's convolution, several where an
algorithm is made of operators. Each node gets a hook before and one after; a call's time is the sum
over its nodes. Work between them (other branches, the summing of gradients) belongs to no call.
Hooks of modules are no alternative: they fail in networks that add in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcsweep.conv.parts import wrapped_forwards
from hpcsweep.conv.proof.autograd_graph import nodes_between
from hpcsweep.measure.shape_pass import Call
from hpcsweep.measure.timing.layer_timer import LayersChanged, LayerTimer, Timed
from hpcsweep.measure.timing.stamps import Stamps

if TYPE_CHECKING:
    from torch import nn


class StepTimer(LayerTimer):
    """Times the forward pass of every layer call, and the backward pass of every convolution."""

    def __init__(self, model: nn.Module, calls: Sequence[Call], stamps: Stamps) -> None:
        super().__init__(model, calls, stamps)
        self._convolutions = [call for call in calls if call.conv is not None]
        self._backward_times: list[list[float]] = [[] for _ in self._convolutions]
        layers = dict.fromkeys(call.layer for call in self._convolutions)
        self._watched = list(dict.fromkeys(map(model.get_submodule, layers)))
        self._spans: list[list[Any]] = []

    @contextmanager
    def wrapped(self, passes: int) -> Iterator[None]:
        """Put the timers around the layers; outside of them, watch the graphs that they build."""
        self._spans.clear()
        with super().wrapped(passes), wrapped_forwards(self._watched, self._watching):
            yield

    def take(self, passes: int) -> None:
        """Read the times of so many steps."""
        super().take(passes)
        count = len(self._convolutions)
        if len(self._spans) != passes * count:
            raise LayersChanged(
                f"{len(self._spans)} convolution calls in {passes} steps, "
                f"the shape pass saw {count} in one"
            )
        totals = [
            sum(self._stamps.ms(begin, end) for begin, end in zip(at[::2], at[1::2], strict=True))
            for at in self._spans
        ]
        for index, of_call in enumerate(self._backward_times):
            of_call.extend(totals[index::count])

    def timed(self) -> Timed:
        """Return all calls of a step with their times, forward ones first."""
        forward = super().timed()
        calls = (*forward.calls, *map(backward_call, self._convolutions))
        times = (*forward.times, *self._backward_times)
        return Timed(calls, times, forward.timer, backward=len(self._convolutions))

    def _watching(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: object, **kwargs: object) -> object:
            output = forward(*args, **kwargs)
            moments: list[Any] = []
            self._spans.append(moments)

            def note(*_gradients: object) -> None:
                moments.append(self._stamps.now())

            for node in nodes_between(output, [args, kwargs]):
                node.register_prehook(note)
                node.register_hook(note)
            return output

        return watched


def backward_call(call: Call) -> Call:
    """Return a convolution's backward pass as a call: two products of the forward's size.

    It reads input, weights and the output's gradient, and writes the gradients of the first two.
    The first convolution of a network needs no gradient of its input, but is counted alike.
    """
    outputs = sum(_numel(shape) for shape in call.outputs)
    numbers = sum(_numel(shape) for shape in call.inputs) + outputs + call.params
    of_output = call.bytes_min * outputs // numbers
    return replace(call, flops=2 * call.flops, bytes_min=2 * call.bytes_min - of_output)


def _numel(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
