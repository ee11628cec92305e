"""Times the backward pass of every convolution call, next to the forward times of all layers.

Autograd runs the backward pass as a graph of nodes. Those that belong to a convolution call are
the ones between its output and its input: a single one for the framework's convolution, several
where an algorithm is made of operators. Each of them gets a hook before and one after; a call's
time is the sum over its nodes. So what runs in between (other branches, the summing up of
gradients) is nobody's, and module hooks, which refuse networks that add in place, are not needed.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hpcsweep.conv.proof.autograd_graph import nodes_between
from hpcsweep.measure.timing.layer_timer import (
    EventMarks,
    LayersChanged,
    LayerTimer,
    wrapped_forwards,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from hpcsweep.measure.shape_pass import Call
    from hpcsweep.measure.timing.clocks import Event
    from hpcsweep.measure.timing.layer_timer import Marks


class Stamps(Protocol):
    """Notes moments, and tells the time between two of them."""

    def now(self) -> Any:  # noqa: ANN401 - each kind has its own
        """Note this moment."""
        ...

    def ms(self, begin: Any, end: Any) -> float:  # noqa: ANN401
        """Return the milliseconds between two moments; a device must be idle."""
        ...

    def reuse(self) -> None:
        """Forget all moments."""
        ...


class HostStamps:
    """The host's clock."""

    def now(self) -> int:
        """Note this moment."""
        return time.perf_counter_ns()

    def ms(self, begin: int, end: int) -> float:
        """Return the milliseconds between two moments."""
        return (end - begin) / 1e6

    def reuse(self) -> None:
        """Forget nothing."""


class EventStamps:
    """Events on the stream that the work runs on, used again in every block."""

    def __init__(self, new_event: Callable[[], Event]) -> None:
        """Make events with `new_event`."""
        self._new = new_event
        self._pool: list[Event] = []
        self._used = 0

    def now(self) -> Event:
        """Queue an event."""
        if self._used == len(self._pool):
            self._pool.append(self._new())
        event = self._pool[self._used]
        self._used += 1
        event.record()
        return event

    def ms(self, begin: Event, end: Event) -> float:
        """Return the milliseconds between two moments."""
        return begin.elapsed_time(end)

    def reuse(self) -> None:
        """Take the events again from the first."""
        self._used = 0


class BackwardTimer:
    """Collects the backward times of convolution calls, block by block."""

    def __init__(self, model: nn.Module, calls: Sequence[Call], stamps: Stamps) -> None:
        """Time these convolution calls; hooks are made inside `wrapped` alone."""
        self.times: list[list[float]] = [[] for _ in calls]
        self._modules = list(
            {id(m): m for m in (model.get_submodule(c.layer) for c in calls)}.values()
        )
        self._stamps = stamps
        self._spans: list[list[Any]] = []

    @contextmanager
    def wrapped(self) -> Iterator[None]:
        """Watch the graphs that the convolutions' forward passes build."""
        self._spans.clear()
        self._stamps.reuse()
        with wrapped_forwards(self._modules, self._watching):
            yield

    def take(self, passes: int) -> None:
        """Read the times of so many passes."""
        if len(self._spans) != passes * len(self.times):
            raise LayersChanged(
                f"{len(self._spans)} convolution calls in {passes} steps, "
                f"the shape pass saw {len(self.times)} in one"
            )
        totals = [
            sum(self._stamps.ms(begin, end) for begin, end in zip(at[::2], at[1::2], strict=True))
            for at in self._spans
        ]
        for index, of_call in enumerate(self.times):
            of_call.extend(totals[index :: len(self.times)])

    def _watching(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: object, **kwargs: object) -> object:
            output = forward(*args, **kwargs)
            moments: list[Any] = []
            self._spans.append(moments)
            for node in nodes_between(output, [args, kwargs]):
                node.register_prehook(partial(self._note, moments))
                node.register_hook(partial(self._note, moments))
            return output

        return watched

    def _note(self, moments: list[Any], *_gradients: object) -> None:
        moments.append(self._stamps.now())


@dataclass(frozen=True)
class Both:
    """Forward calls, then backward calls, with their times: what a `LayerTable` shows."""

    calls: tuple[Call, ...]
    times: list[list[float]]
    marks: Marks

    def rest(self, pass_times: Sequence[float]) -> list[float]:
        """Return what the layers leave of each step."""
        return [total - sum(parts) for total, *parts in zip(pass_times, *self.times, strict=True)]


class StepTimer(LayerTimer):
    """Times the forward pass of every layer call, and the backward pass of every convolution."""

    def __init__(self, model: nn.Module, calls: Sequence[Call], marks: Marks) -> None:
        """Time with events where the forward marks are events."""
        super().__init__(model, calls, marks)
        self.convolutions = tuple(call for call in calls if call.conv is not None)
        stamps = EventStamps(marks.new) if isinstance(marks, EventMarks) else HostStamps()
        self.backward = BackwardTimer(model, self.convolutions, stamps)

    @contextmanager
    def wrapped(self, passes: int) -> Iterator[None]:
        """Put the timers around the layers, the backward's outermost."""
        with super().wrapped(passes), self.backward.wrapped():
            yield

    def take(self, passes: int) -> None:
        """Read the marks of so many steps."""
        super().take(passes)
        self.backward.take(passes)

    def both(self) -> Both:
        """Return all calls of a step with their times, forward ones first."""
        back = tuple(map(backward_call, self.convolutions))
        return Both((*self.calls, *back), [*self.times, *self.backward.times], self.marks)


def backward_call(call: Call) -> Call:
    """Return a convolution's backward pass as a call: two products of the forward's size.

    It reads input, weights and the output's gradient, and writes a gradient of each of the first
    two. The first convolution of a network needs no gradient of its input; its share is counted
    all the same.
    """
    outputs = sum(_numel(shape) for shape in call.outputs)
    numbers = sum(_numel(shape) for shape in call.inputs) + outputs + call.params
    of_output = call.bytes_min * outputs // numbers
    return replace(call, flops=2 * call.flops, bytes_min=2 * call.bytes_min - of_output)


def _numel(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
