"""Times every layer call of a pass, in a lane of its own.

For a block of passes each layer's `forward` is wrapped in a function that does one thing more:
note the time (CPU), or record an event on the stream that the work runs on (GPU). No
synchronisation, no value is looked at, nothing is printed: a timer that waits after every layer
has been seen to double the pass. The notes are read once, after the block. Hooks of torch would do
the same for three times the cost, and some modules take a slower path when they have hooks.

A layer is known by its position in the pass, not by its module, since one activation module may
serve eight places. What the layers leave of a pass is the row `__other__`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from hpcsweep.measure import shape_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from hpcsweep.measure.shape_pass import Call
    from hpcsweep.measure.timing.clocks import Event

    Forward = Callable[..., Any]

OTHER: Final = "__other__"
_FORWARD: Final = "forward"


class Marks(Protocol):
    """Notes where layers begin and end."""

    timer: str

    def begin(self, most: int) -> None:
        """Forget what was noted, and prepare for at most `most` calls."""
        ...

    def around(self, forward: Forward) -> Forward:
        """Return a function that notes begin and end of `forward`."""
        ...

    def read(self) -> list[float]:
        """Return the milliseconds of each call since `begin`, in order."""
        ...


class HostMarks:
    """The host's clock: for devices that work while the host waits."""

    timer = "host"

    def __init__(self) -> None:
        """Begin with nothing noted."""
        self._ns: list[int] = []

    def begin(self, most: int) -> None:  # noqa: ARG002 - a list grows
        """Forget what was noted."""
        self._ns.clear()

    def around(self, forward: Forward) -> Forward:
        """Return a function that appends two numbers."""
        append, now = self._ns.append, time.perf_counter_ns

        def timed(*args: object, **kwargs: object) -> object:
            append(now())
            output = forward(*args, **kwargs)
            append(now())
            return output

        return timed

    def read(self) -> list[float]:
        """Return the milliseconds of each call."""
        ns = self._ns
        return [(end - begin) / 1e6 for begin, end in zip(ns[::2], ns[1::2], strict=True)]


class EventMarks:
    """Events on the device's time line, made beforehand and used again in every block."""

    def __init__(self, new_event: Callable[[], Event], timer: str = "events") -> None:
        """Make events with `new_event`."""
        self.timer = timer
        self.new = new_event
        self._pool: list[Event] = []
        self._used = 0

    def begin(self, most: int) -> None:
        """Have events for so many calls."""
        self._pool += [self.new() for _ in range(2 * most - len(self._pool))]
        self._used = 0

    def around(self, forward: Forward) -> Forward:
        """Return a function that records two events, on the current stream."""

        def timed(*args: object, **kwargs: object) -> object:
            self._record()
            output = forward(*args, **kwargs)
            self._record()
            return output

        return timed

    def read(self) -> list[float]:
        """Return the milliseconds of each call; the device must be idle."""
        used = self._pool[: self._used]
        pairs = zip(used[::2], used[1::2], strict=True)
        return [begin.elapsed_time(end) for begin, end in pairs]

    def _record(self) -> None:
        self._pool[self._used].record()
        self._used += 1


@contextmanager
def wrapped_forwards(
    modules: Sequence[nn.Module], wrap: Callable[[Forward], Forward]
) -> Iterator[None]:
    """Put something around the `forward` of modules while the block runs, and take it off again."""
    before = [module.__dict__.get(_FORWARD) for module in modules]
    for module in modules:
        module.__dict__[_FORWARD] = wrap(module.forward)
    try:
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            del module.__dict__[_FORWARD]
            if own is not None:
                module.__dict__[_FORWARD] = own


class LayersChanged(RuntimeError):
    """A pass called other layers than the shape pass saw."""


class LayerTimer:
    """Collects the times of a network's layer calls, block by block."""

    def __init__(self, model: nn.Module, calls: Sequence[Call], marks: Marks) -> None:
        """Time these calls; timers are on inside `attached` alone."""
        self.calls = tuple(calls)
        self.marks = marks
        self.times: list[list[float]] = [[] for _ in calls]
        self._modules = shape_pass.layer_modules(model, self.calls)

    @contextmanager
    def attached(self, passes: int) -> Iterator[None]:
        """Time the layers of a block of passes: timers on, passes, timers off, marks read."""
        with self.wrapped(passes):
            yield
        self.take(passes)

    @contextmanager
    def reading(self, passes: int) -> Iterator[None]:
        """Take the times of a block whose marks are part of what runs, as in a graph."""
        yield
        self.take(passes)

    @contextmanager
    def wrapped(self, passes: int) -> Iterator[None]:
        """Put the timers around the layers, no more."""
        # one pass more than planned has room, so that a changed network is told, not an IndexError
        self.marks.begin(len(self.calls) * (passes + 1))
        with wrapped_forwards(self._modules, self.marks.around):
            yield

    def take(self, passes: int) -> None:
        """Read the marks of so many passes."""
        times = self.marks.read()
        if len(times) != passes * len(self.calls):
            raise LayersChanged(
                f"{len(times)} layer calls in {passes} passes, the shape pass saw "
                f"{len(self.calls)} in one; does the network's path depend on its input?"
            )
        for index, of_call in enumerate(self.times):
            of_call.extend(times[index :: len(self.calls)])

    def forget(self) -> None:
        """Drop the times so far, as of a warm-up."""
        for of_call in self.times:
            of_call.clear()

    def rest(self, pass_times: Sequence[float]) -> list[float]:
        """Return what the layers leave of each pass: the times of `__other__`."""
        by_pass = zip(*self.times, strict=True) if self.times else [()] * len(pass_times)
        return [total - sum(layers) for total, layers in zip(pass_times, by_pass, strict=True)]
