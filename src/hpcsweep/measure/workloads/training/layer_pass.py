"""The layer pass of a training point: forward, loss and backward on one batch, layer by layer.

The batch is on the device, and nothing is loaded, copied or updated: only the computation is
timed. As for inference, a clean lane and a lane with timers alternate in blocks of a few passes,
so that the timers' overhead and the sum of the layers are compared under the same conditions.

Autograd runs the backward pass as a graph of nodes. The nodes between the output and the input of a
convolution call belong to it: a single one for the framework's convolution, several where an
algorithm is made of operators. Each node gets a hook before and one after; a call's time is the sum
over its nodes. Work between them (other branches, the summing of gradients) belongs to no call.
Hooks of modules are no alternative: they fail in networks that add in place.

Activation checkpointing calls layers again during the backward pass. These calls are no calls of
the step, and their time is not the node's in which they happen; what runs between them is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from hpcsweep.conv.parts import wrapped_forwards
from hpcsweep.conv.tensors import in_backward, nodes_between
from hpcsweep.measure.layer_table import LayerTable
from hpcsweep.measure.shape_pass import LayerCall, Shapes
from hpcsweep.measure.timing import clocks, lanes
from hpcsweep.measure.timing.clocks import Stamps
from hpcsweep.measure.timing.layer_timer import LayersChanged, LayerTimer, LayerTimes
from hpcsweep.measure.workloads.training.trainer import Batch, Trainer


class StepTimer(LayerTimer):
    """Times the forward pass of every layer call, and the backward pass of every convolution."""

    def __init__(self, model: nn.Module, calls: Sequence[LayerCall], stamps: Stamps) -> None:
        super().__init__(model, calls, stamps)
        layers = {call.layer for call in calls if call.conv is not None}
        self._convolutions = [call for call in calls if call.layer in layers]
        self._backward_times: list[list[float]] = [[] for _ in self._convolutions]
        self._watched = list(dict.fromkeys(map(model.get_submodule, layers)))
        self._spans: list[list[Any]] = []
        self._open: list[Any] = []  # moments of the node that runs

    @contextmanager
    def wrapped(self, passes: int) -> Iterator[None]:
        """Put timers around the layers, and around these the watches of autograd's graphs."""
        self._spans.clear()
        with super().wrapped(passes), wrapped_forwards(self._watched, self._watching):
            yield

    def take(self, passes: int) -> None:
        """Read the times of `passes` steps."""
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

    def timed(self) -> LayerTimes:
        """Return all calls of a step with their times, forward ones first."""
        forward = super().timed()
        timed = zip(self._convolutions, self._backward_times, strict=True)
        learning = [(backward_call(call), times) for call, times in timed if call.gradients]
        calls = (*forward.calls, *(call for call, _ in learning))
        times = (*forward.times, *(times for _, times in learning))
        return LayerTimes(calls, times, forward.timer, backward=len(learning))

    def _timing(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        timed = super()._timing(forward)

        def timed_once(*args: object, **kwargs: object) -> object:
            if not in_backward():
                return timed(*args, **kwargs)
            moments = self._open
            moments.append(self._stamps.now())
            try:
                return forward(*args, **kwargs)
            finally:  # the last one ends with an exception: nobody needs what follows
                moments.append(self._stamps.now())

        return timed_once

    def _watching(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: object, **kwargs: object) -> object:
            output = forward(*args, **kwargs)
            if in_backward():
                return output
            moments: list[Any] = []
            self._spans.append(moments)

            def begin(*_gradients: object) -> None:
                self._open = moments
                moments.append(self._stamps.now())

            def end(*_gradients: object) -> None:
                moments.append(self._stamps.now())
                self._open = []

            for node in nodes_between(output, [args, kwargs]):
                node.register_prehook(begin)
                node.register_hook(end)
            return output

        return watched


def backward_call(call: LayerCall) -> LayerCall:
    """Return a convolution's backward pass as a call: a product of its size for each gradient.

    Each product reads what the other one writes the gradient of, input or weights; both read the
    output's gradient, which counts once.
    """
    products = sum(call.gradients or ())
    outputs = sum(map(math.prod, call.outputs))
    numbers = sum(map(math.prod, call.inputs)) + outputs + call.params
    of_output = call.bytes_min * outputs // numbers
    moved = products * (call.bytes_min - of_output) + of_output
    return replace(call, flops=products * call.flops, bytes_min=moved)


def measure(
    trainer: Trainer, batch: Batch, shapes: Shapes, passes: int
) -> tuple[LayerTable | None, float]:
    """Time every layer in `passes` passes over a batch; return the table and their seconds.

    The table is None if layers cannot be timed.
    """
    compute = partial(trainer.compute, batch)
    todo = lanes.LaneWork(trainer.model, compute, clocks.nothing, shapes.calls, (), StepTimer)
    all_lanes = lanes.make_lanes(trainer.device, "eager", todo).settled(0)
    if all_lanes.untimed:
        return None, 0.0
    done, _ = all_lanes.collect({"stop": "fixed", "iterations": passes})
    return LayerTable.of(all_lanes, done.times), done.timed_s
