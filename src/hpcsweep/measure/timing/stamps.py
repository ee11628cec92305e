"""Moments in time: readings of the host's clock, or events on the stream that the work runs on.

To note a moment costs one reading or one event, without a wait. The time between two moments is
computed afterwards; for events the device must be idle by then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.measure.timing.clocks import Event


class Stamps(Protocol):
    """Notes moments, and tells the time between two of them; `timer` is the column's name of it."""

    timer: str

    def now(self) -> Any:  # noqa: ANN401 - each kind has its own
        """Note this moment."""

    def ms(self, begin: Any, end: Any) -> float:  # noqa: ANN401
        """Return the milliseconds between two moments."""

    def reuse(self, most: int = 0) -> None:
        """Forget all moments, and prepare for at least so many new ones."""


class HostStamps:
    """The host's clock, for devices that work while the host waits."""

    timer = "host"

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        """Take a clock that tells nanoseconds."""
        self.now = now

    def ms(self, begin: int, end: int) -> float:
        """Return the milliseconds between two readings."""
        return (end - begin) / 1e6

    def reuse(self, most: int = 0) -> None:
        """Do nothing: numbers need no preparation."""


class EventStamps:
    """Events on the device's time line, made once and recorded again and again."""

    def __init__(
        self,
        new_event: Callable[[], Event],
        timer: str = "events",
        host_now: Callable[[], float] | None = None,
    ) -> None:
        """Note the host's milliseconds beside each event, if there is a clock for that."""
        self.timer = timer
        self._new, self._host_now = new_event, host_now
        self._pool: list[Event] = []
        self._queued: list[float] = []
        self._used = 0

    def now(self) -> Event:
        """Record an event on the current stream."""
        if self._used == len(self._pool):
            self._pool.append(self._new())
        event = self._pool[self._used]
        self._used += 1
        event.record()
        if self._host_now is not None:
            self._queued.append(self._host_now())
        return event

    def ahead(self, zero: Event, host_zero: float) -> list[float]:
        """Return, for each moment, the milliseconds from queueing its event to its completion.

        `zero` completed when the host's clock read `host_zero`. The device must be idle by now.
        """
        events = zip(self._pool, self._queued, strict=False)
        return [zero.elapsed_time(event) - (queued - host_zero) for event, queued in events]

    def ms(self, begin: Event, end: Event) -> float:
        """Return the milliseconds between two events; the device must be idle."""
        return begin.elapsed_time(end)

    def reuse(self, most: int = 0) -> None:
        """Take the events again from the first; have at least so many."""
        self._pool += [self._new() for _ in range(most - len(self._pool))]
        self._used = 0
        self._queued.clear()
