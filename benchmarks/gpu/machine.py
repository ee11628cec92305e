"""What steps ask of a device: an event, a delay, a batch of calls, a clock."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from hpcsweep.measure.timing import clocks, loop, stats
from hpcsweep.measure.timing.clocks import Cuda, DeviceClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcsweep.measure.timing.loop import Clock
    from hpcsweep.measure.timing.stats import Summary

BATCH: Final = 20  # calls in one graph
_WARM_UP: Final = 3


class Gpu:
    """The GPU that torch uses."""

    def __init__(self, runtime: Cuda | None = None) -> None:
        """Use torch's runtime, or another, such as one whose host is steady."""
        self.runtime = runtime or Cuda()

    def batch(self, call: Callable[[], object], count: int) -> Callable[[], object]:
        """Capture the calls in a CUDA graph."""
        return clocks.capture(lambda: [call() for _ in range(count)])

    def clock(
        self, run: Callable[[], object], prepare: Callable[[], object] = clocks.nothing
    ) -> Clock:
        """Return a clock of events behind a delay."""
        clock = DeviceClock(self.runtime, prepare)
        clock.calibrate(run)
        return clock


def answers(machine: Gpu) -> bool:
    """Say whether the device still works; after some errors only a new process helps."""
    try:
        machine.runtime.synchronize()
    except RuntimeError:
        return False
    return True


def in_turns(
    machine: Gpu,
    runs: Mapping[str, Callable[[], object]],
    passes: int,
    prepare: Callable[[], object] = clocks.nothing,
) -> dict[str, list[float]]:
    """Time several passes in turns, each by a clock of its own; milliseconds by name."""
    lanes = [loop.Lane(run, machine.clock(run, prepare)) for run in runs.values()]
    loop.collect(lanes, loop.Fixed(_WARM_UP))
    return dict(zip(runs, loop.collect(lanes, loop.Fixed(passes)).times, strict=True))


def bare_loop(runtime: Cuda, call: Callable[[], object], count: int, times: int) -> list[float]:
    """Return milliseconds per call of a plain loop between two events: no clock of the product.

    The loop stands behind a delay of thrice what the host needs for it.
    """
    begin = runtime.event()
    end = runtime.event()
    runtime.synchronize()
    began = runtime.host_now()
    for _ in range(count):
        call()
    host_ms = runtime.host_now() - began
    found = []
    for _ in range(times):
        runtime.synchronize()
        runtime.delay(3 * host_ms + 0.2)
        begin.record()
        for _ in range(count):
            call()
        end.record()
        runtime.synchronize()
        found.append(begin.elapsed_time(end) / count)
    return found


def microseconds(times: Sequence[float], calls: int = 1) -> dict[str, float]:
    """Return median and interval of a call, in microseconds, from milliseconds of `calls`."""
    found: Summary = stats.summarise([1000 * time / calls for time in times])
    low, high = found.ci95 or (found.min, found.max)
    return {"us": found.median, "low_us": low, "high_us": high, "n": found.n}


def resolution(times: Sequence[float]) -> float | None:
    """Return the smallest step between times that differ."""
    ordered = sorted(set(times))
    steps = [b - a for a, b in itertools.pairwise(ordered)]
    return min(steps, default=None)
