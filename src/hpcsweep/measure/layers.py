"""Times every layer call of a pass, in a lane of its own.

The hooks do one thing: note the time (CPU), or record an event on the stream that the work runs on
(GPU). No synchronisation, no value is looked at, nothing is printed: a timer that waits after
every layer has been seen to double the pass. The notes are read once, after the block.

A layer is known by its position in the pass, not by its module, since one activation module may
serve eight places. What the layers leave of a pass is the row `__other__`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from hpcsweep.measure import shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from hpcsweep.measure.clocks import Event
    from hpcsweep.measure.shapes import Call

    Hook = Callable[..., None]

OTHER: Final = "__other__"


class Marks(Protocol):
    """Notes where layers begin and end."""

    timer: str

    def hooks(self, most: int) -> tuple[Hook, Hook]:
        """Return the hooks before and after a layer, for at most `most` calls from now on."""
        ...

    def read(self) -> list[float]:
        """Return the milliseconds of each call since then, in order."""
        ...


class HostMarks:
    """The host's clock: for devices that work while the host waits."""

    timer = "host"

    def __init__(self) -> None:
        """Begin with nothing noted."""
        self._ns: list[int] = []

    def hooks(self, most: int) -> tuple[Hook, Hook]:  # noqa: ARG002 - a list grows
        """Return hooks that append one number each."""
        self._ns = []
        append, now = self._ns.append, time.perf_counter_ns

        def before(_module: object, _args: object) -> None:
            append(now())

        def after(_module: object, _args: object, _output: object) -> None:
            append(now())

        return before, after

    def read(self) -> list[float]:
        """Return the milliseconds of each call."""
        ns = self._ns
        return [(end - begin) / 1e6 for begin, end in zip(ns[::2], ns[1::2], strict=True)]


class EventMarks:
    """Events on the device's time line, made beforehand and used again in every block."""

    def __init__(self, new_event: Callable[[], Event], timer: str = "events") -> None:
        """Make events with `new_event`."""
        self.timer = timer
        self._new = new_event
        self._pool: list[Event] = []
        self._used = 0

    def hooks(self, most: int) -> tuple[Hook, Hook]:
        """Return hooks that record one event each, on the current stream."""
        self._pool += [self._new() for _ in range(2 * most - len(self._pool))]
        self._used = 0
        pool = self._pool

        def record(*_: object) -> None:
            pool[self._used].record()
            self._used += 1

        return record, record

    def read(self) -> list[float]:
        """Return the milliseconds of each call; the device must be idle."""
        used = self._pool[: self._used]
        pairs = zip(used[::2], used[1::2], strict=True)
        return [begin.elapsed_time(end) for begin, end in pairs]


class LayersChanged(RuntimeError):
    """A pass called other layers than the shape pass saw."""


class LayerTimer:
    """Collects the times of a network's layer calls, block by block."""

    def __init__(self, model: nn.Module, calls: Sequence[Call], marks: Marks) -> None:
        """Time these calls; hooks are on only inside `attached`."""
        self.calls = tuple(calls)
        self.marks = marks
        self.times: list[list[float]] = [[] for _ in calls]
        self._modules = shapes.layer_modules(model, self.calls)

    @contextmanager
    def attached(self, passes: int) -> Iterator[None]:
        """Time the layers of a block of passes: hooks on, passes, hooks off, marks read."""
        with self.hooked(passes):
            yield
        self.take(passes)

    @contextmanager
    def reading(self, passes: int) -> Iterator[None]:
        """Take the times of a block whose marks are part of what runs, as in a graph."""
        yield
        self.take(passes)

    @contextmanager
    def hooked(self, passes: int) -> Iterator[None]:
        """Put the hooks on the layers, no more."""
        # one call more than planned has room, so that a changed network is told, not an IndexError
        before, after = self.marks.hooks(len(self.calls) * (passes + 1))
        handles: list[Any] = []
        try:
            for module in self._modules:
                handles.append(module.register_forward_pre_hook(before))
                handles.append(module.register_forward_hook(after))
            yield
        finally:
            for handle in handles:
                handle.remove()

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
