"""Times every layer call of a pass, in a lane of its own.

For a block of passes each layer's `forward` is wrapped in a function that records the time (CPU) or
an event on the work's stream (GPU) before and after. It does not wait, since a timer that waits
after every layer can double the time of a pass; the moments are read once, after the block. torch's
hooks would cost three times as much, and some modules take a slower path if they have hooks.

A layer is identified by its position in the pass, not by its module, since one activation module
may be called in eight places. From the time of a layer around others theirs are taken off. The rest
of a pass is the row `__other__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from torch import nn

from hpcsweep.conv.parts import wrapped_forwards
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
    """Join the times of lanes that each timed a part of the calls.

    Each part comes with the indices of its forward calls in the whole pass.
    """
    forward: dict[int, tuple[LayerCall, list[float]]] = {}
    backward: dict[int, tuple[LayerCall, list[float]]] = {}
    for places, timed in parts:
        entries = zip(timed.calls, timed.times, strict=False)
        convolving = []
        for place in places:
            forward[place] = next(entries)
            if forward[place][0].gradients:
                convolving.append(place)
        if timed.backward:
            backward.update(zip(convolving, entries, strict=True))
    ordered = [forward[place] for place in sorted(forward)]
    ordered += [backward[place] for place in sorted(backward)]
    calls, times = zip(*ordered, strict=True)
    return LayerTimes(calls, times, parts[0][1].timer, len(backward), starved)


def families(calls: Sequence[LayerCall]) -> list[set[str]]:
    """Return sets of layers that are to be timed together: those around others with these."""
    found = {call.layer: {call.layer} for call in calls}
    for at, call in enumerate(calls):
        for inner in calls[at - call.inside : at]:
            whole = found[call.layer] | found[inner.layer]
            found.update(dict.fromkeys(whole, whole))
    return [*{id(layers): layers for layers in found.values()}.values()]


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
    others = tuple(call for call in calls if call.conv is None)
    places = {id(call): place for place, call in enumerate(others)}
    known = (places[id(calls[at])] for at in begins if id(calls[at]) in places)
    numbers = chain(known, count(len(others)))
    return wrapped_forwards(
        shape_pass.layer_modules(model, others),
        lambda forward: profiler_events.ranged(forward, profiler_events.LAYER, numbers),
    )


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
        for begin in range(0, len(times), len(self._calls) or 1):
            for at, (call, of_call) in enumerate(zip(self._calls, self._times, strict=True), begin):
                times[at] -= sum(times[at - call.inside : at])
                of_call.append(times[at])

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
