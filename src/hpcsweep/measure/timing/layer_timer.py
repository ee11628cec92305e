"""Times every layer call of a pass, in a lane of its own; of a training step backwards, too.

For a block of passes each layer's `forward` is wrapped in a function that records the time (CPU) or
an event on the work's stream (GPU) before and after. It does not wait, since a timer that waits
after every layer can double the time of a pass; the moments are read once, after the block. torch's
hooks would cost three times as much, and some modules take a slower path if they have hooks.

A layer is identified by its position in the pass, not by its module, since one activation module
may be called in eight places. From the time of a layer around others theirs are taken off. The rest
of a pass is the row `__other__`.

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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from operator import itemgetter
from typing import Any

from torch import nn

from hpcsweep.conv.parts import in_backward, nodes_between, wrapped_forwards
from hpcsweep.conv.proof import profiler_events
from hpcsweep.measure import shape_pass
from hpcsweep.measure.shape_pass import LayerCall
from hpcsweep.measure.timing.clocks import Stamps

Forward = Callable[..., Any]


@dataclass(frozen=True)
class LayerTimes:
    """Calls of a pass in order, the milliseconds of each in every pass, and the timer's name.

    The last `backward` calls are backward passes of convolutions. `starved`: the device had to wait
    for the host in these passes.
    """

    calls: Sequence[LayerCall]
    times: Sequence[list[float]]
    timer: str
    backward: int = 0
    starved: bool = False


def joined(parts: Sequence[tuple[Sequence[int], LayerTimes]], *, starved: bool) -> LayerTimes:
    """Join the times of lanes that each timed a part of the calls, in the order of the pass.

    Each part comes with the indices of its forward calls in the whole pass.
    """
    rows: list[tuple[tuple[bool, int], LayerCall, list[float]]] = []
    for places, timed in parts:
        keys = [(False, place) for place in places]
        for place, call in zip(places, timed.calls, strict=False):
            if timed.backward and call.gradients:
                keys.append((True, place))  # backward calls come last
        rows += zip(keys, timed.calls, timed.times, strict=True)
    rows.sort(key=itemgetter(0))
    _, calls, times = zip(*rows, strict=True)
    backward = sum(timed.backward for _, timed in parts)
    return LayerTimes(calls, times, parts[0][1].timer, backward, starved)


def families(calls: Sequence[LayerCall]) -> list[set[str]]:
    """Return sets of layers that are to be timed together: those around others with these."""
    found = {call.layer: {call.layer} for call in calls}
    for at, call in enumerate(calls):
        for inner in calls[at - call.inside : at]:
            whole = found[call.layer] | found[inner.layer]
            found.update(dict.fromkeys(whole, whole))
    distinct = {id(layers): layers for layers in found.values()}
    return [*distinct.values()]


def completed(timed: LayerTimes, calls: Sequence[LayerCall], untimed: frozenset[str]) -> LayerTimes:
    """Return the times of all forward calls of a pass, empty for `untimed` layers."""
    of_timed = iter(timed.times)
    times = [[] if call.layer in untimed else next(of_timed) for call in calls]
    return replace(timed, calls=calls, times=times)


def marked(model: nn.Module, calls: Sequence[LayerCall]) -> AbstractContextManager[None]:
    """Open profiler ranges around layer calls; convolutions have ranges already.

    Hooks are no alternative: some modules run other kernels if they have any.
    """
    # calls are in the order in which they end, and ranges are numbered when they begin
    begins = sorted(range(len(calls)), key=lambda at: (at - calls[at].inside, -calls[at].inside))
    others: list[LayerCall] = []
    places: dict[int, int] = {}
    for at, call in enumerate(calls):
        if call.conv is None:
            places[at] = len(others)
            others.append(call)
    known = [places[at] for at in begins if at in places]
    # what comes beyond is of layers that the shape pass did not see
    numbers = chain(known, count(len(others)))

    def ranged(forward: Forward) -> Forward:
        return profiler_events.ranged(forward, profiler_events.LAYER, numbers)

    return wrapped_forwards(shape_pass.layer_modules(model, tuple(others)), ranged)


class LayersChanged(RuntimeError):
    """A pass called other layers than the shape pass recorded."""


def _suspects(calls: int, passes: int) -> str:
    """Return what other calls than those of the shape pass may depend on.

    It ran on the meta device, with no numbers. As many calls in each pass do not depend on numbers.
    """
    if calls % passes:
        return "its input"
    device = "the device (`x.is_cuda`)"
    return device if passes > 1 else f"{device}, or on its input"


class LayerTimer:
    """Collects the times of a network's layer calls, block by block."""

    def __init__(self, model: nn.Module, calls: Sequence[LayerCall], stamps: Stamps) -> None:
        """Prepare timers for these calls; `attached` puts them around the layers."""
        self._calls = tuple(calls)
        self._stamps = stamps
        self._times: list[list[float]] = [[] for _ in calls]
        self._modules = shape_pass.layer_modules(model, self._calls)
        self._moments: list[tuple[Any, Any]] = []  # of calls, in the order in which they end

    @contextmanager
    def attached(self, passes: int) -> Iterator[None]:
        """Time the layers of a block of passes: timers on, passes, timers off, moments read."""
        with self.wrapped(passes):
            yield
        self.take(passes)

    @contextmanager
    def reading(self, passes: int) -> Iterator[None]:
        """Read the times of a block of replays of a graph, which contains the events."""
        yield
        self.take(passes)

    @contextmanager
    def wrapped(self, passes: int) -> Iterator[None]:
        """Put the timers around the layers, without reading them."""
        self._moments.clear()
        self._stamps.reuse(2 * len(self._calls) * passes)
        with wrapped_forwards(self._modules, self._timing):
            yield

    def take(self, passes: int) -> None:
        """Read the times of `passes` passes.

        Raises:
            LayersChanged: they called other layers than the shape pass recorded.
        """
        times = [self._stamps.ms(*pair) for pair in self._moments]
        if len(times) != passes * len(self._calls):
            raise LayersChanged(
                f"{len(times)} layer calls in {passes} passes, the shape pass saw "
                f"{len(self._calls)} in one, on the meta device; does the network's path depend "
                f"on {_suspects(len(times), passes)}? "
                "`measure: {layers: false}` times it without its layers"
            )
        at = 0
        # calls inside others end before them
        for _ in range(passes):
            for call, of_call in zip(self._calls, self._times, strict=True):
                times[at] -= sum(times[at - call.inside : at])  # theirs are without those in them
                of_call.append(times[at])
                at += 1

    def timed(self) -> LayerTimes:
        """Return all collected times."""
        return LayerTimes(self._calls, self._times, self._stamps.timer)

    def forget(self) -> None:
        """Drop the collected times, such as a warm-up's."""
        for of_call in self.timed().times:
            of_call.clear()

    def _timing(self, forward: Forward) -> Forward:
        note = self._moments.append
        now = self._stamps.now

        def timed(*args: object, **kwargs: object) -> object:
            begin = now()
            output = forward(*args, **kwargs)
            note((begin, now()))
            return output

        return timed


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
        # the watches come outside: what they do is in no layer's time
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
        for number, moments in enumerate(self._spans):
            spans = zip(moments[::2], moments[1::2], strict=True)
            total = sum(self._stamps.ms(begin, end) for begin, end in spans)
            self._backward_times[number % count].append(total)

    def timed(self) -> LayerTimes:
        """Return all calls of a step with their times, forward ones first."""
        forward = super().timed()
        calls = [*forward.calls]
        times = [*forward.times]
        for call, of_call in zip(self._convolutions, self._backward_times, strict=True):
            if call.gradients:
                calls.append(backward_call(call))
                times.append(of_call)
        return LayerTimes(calls, times, forward.timer, backward=len(calls) - len(forward.calls))

    def _timing(self, forward: Forward) -> Forward:
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

    def _watching(self, forward: Forward) -> Forward:
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
