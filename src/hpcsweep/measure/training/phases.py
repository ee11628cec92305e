"""Times the phases of a training step, and whole steps: by the host's clock, or by events.

Whole steps of the training itself are timed by a `Ticker`: one look at the clock, or one event, at
the end of every step, and no wait. A step is the time from one tick to the next.

Phases have a pass of their own, since they cost something: on a GPU each phase has a pair of
events, and each step ends with a wait, without which events of two steps overlap. Waiting for data
is the host's business and is timed by its clock. The step as a whole is timed by the host's clock
around everything, so that the sum of the phases is held against a number that is not made of them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

from hpcsweep.measure.timing import stats
from hpcsweep.measure.timing.clocks import nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from hpcsweep.catalog.columns import Row
    from hpcsweep.measure.timing.clocks import Event, Runtime

    Phase = Callable[[str], AbstractContextManager[object]]

DATA: Final = "data"
PHASES: Final = (DATA, "h2d", "forward", "loss", "backward", "optimizer")
SUM_TOLERANCE: Final = 0.05
_UNTIMED: Final = nullcontext()


def untimed(_name: str) -> AbstractContextManager[object]:
    """Time nothing: the phases of a pass without instruments."""
    return _UNTIMED


class PhaseTimer(Protocol):
    """Times the phases of steps: `step` around a step, `phase` around each part of it."""

    def step(self) -> AbstractContextManager[object]:
        """Time a step as a whole."""
        ...

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Time a phase of it."""
        ...

    def times(self) -> PhaseTimes:
        """Return what was timed."""
        ...


class PhaseTimes:
    """Milliseconds of each phase and of the whole, step by step."""

    def __init__(self, steps: Sequence[float], phases: Mapping[str, Sequence[float]]) -> None:
        """Take the times of at least one step; a phase has one time for each."""
        self.steps, self.phases = list(steps), {name: list(phases[name]) for name in PHASES}

    @property
    def sum_over_step(self) -> float:
        """Return the sum of all phases over the sum of all steps."""
        return sum(map(sum, self.phases.values())) / sum(self.steps)

    def flags(self) -> list[str]:
        """Return `phase_sum` where the phases are not the step."""
        return [] if abs(self.sum_over_step - 1) <= SUM_TOLERANCE else ["phase_sum"]

    def cells(self, steps: int, median_ms: float) -> Row:
        """Return the columns; the training had so many steps, of a median time."""
        count = len(self.steps)
        means = {name: sum(times) / count for name, times in self.phases.items()}
        overhead = stats.median(self.steps) / median_ms - 1
        return {
            **{f"phase_{name}_ms": mean for name, mean in means.items()},
            **{f"{name}_total_s": mean * steps / 1000 for name, mean in means.items()},
            "phase_step_ms": sum(self.steps) / count,
            "phase_sum_over_step": self.sum_over_step,
            "phase_overhead_pct": 100 * overhead,
            "phase_steps": count,
        }


class HostPhases:
    """The host's clock; `finish` waits for a device that works asynchronously."""

    def __init__(
        self,
        finish: Callable[[], object] = nothing,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Take the clock, in nanoseconds."""
        self._finish, self._now = finish, now
        self._steps: list[float] = []
        self._phases: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time a step as a whole."""
        begin = self._now()
        yield
        self._steps.append((self._now() - begin) / 1e6)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of it."""
        begin = self._now()
        yield
        self._finish()
        self._phases[name].append((self._now() - begin) / 1e6)

    def times(self) -> PhaseTimes:
        """Return what was timed."""
        return PhaseTimes(self._steps, self._phases)


class DevicePhases:
    """Event pairs on the device's time line, and one wait at the end of each step."""

    def __init__(self, runtime: Runtime) -> None:
        """Take the GPU."""
        self._runtime = runtime
        self._pairs = {name: (runtime.event(), runtime.event()) for name in PHASES}
        self._steps: list[float] = []
        self._phases: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time a step as a whole, from an idle device to an idle device."""
        self._runtime.synchronize()
        begin = self._runtime.host_now()
        yield
        self._runtime.synchronize()
        self._steps.append(self._runtime.host_now() - begin)
        for name, (first, last) in self._pairs.items():
            if name != DATA:
                self._phases[name].append(first.elapsed_time(last))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of it."""
        if name == DATA:
            begin = self._runtime.host_now()
            yield
            self._phases[name].append(self._runtime.host_now() - begin)
            return
        first, last = self._pairs[name]
        first.record()
        yield
        last.record()

    def times(self) -> PhaseTimes:
        """Return what was timed."""
        return PhaseTimes(self._steps, self._phases)


class Ticker(Protocol):
    """Times steps by their ends alone."""

    timer: str

    def tick(self) -> None:
        """Note the time: once before the first step, then at the end of each."""
        ...

    def read(self) -> list[float]:
        """Return the milliseconds between the ticks since the last reading; waits for them."""
        ...


class HostTicker:
    """The host's clock; `finish` waits for a device that works asynchronously."""

    timer = "host"

    def __init__(
        self,
        finish: Callable[[], object] = nothing,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Take the clock, in nanoseconds."""
        self._finish, self._now = finish, now
        self._ticks: list[int] = []

    def tick(self) -> None:
        """Note the time."""
        self._finish()
        self._ticks.append(self._now())

    def read(self) -> list[float]:
        """Return the milliseconds between the ticks."""
        ticks, self._ticks = self._ticks, []
        return [(end - begin) / 1e6 for begin, end in pairwise(ticks)]


class DeviceTicker:
    """One event at the end of each step; the device is never waited for within an epoch."""

    timer = "events"

    def __init__(self, runtime: Runtime) -> None:
        """Take the GPU."""
        self._runtime = runtime
        self._pool: list[Event] = []
        self._used = 0

    def tick(self) -> None:
        """Queue an event."""
        if self._used == len(self._pool):
            self._pool.append(self._runtime.event())
        self._pool[self._used].record()
        self._used += 1

    def read(self) -> list[float]:
        """Return the milliseconds between the events."""
        self._runtime.synchronize()
        events: Sequence[Any] = self._pool[: self._used]
        self._used = 0
        return [begin.elapsed_time(end) for begin, end in pairwise(events)]
