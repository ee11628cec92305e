"""Runs passes until a stopping rule is satisfied; needs a clock, but neither torch nor a device.

A *lane* is one way to run the pass: the clean lane without any hook, the layer lane with timers
around every layer. Lanes alternate in blocks of a few passes, and the order is reversed from one
round to the next (clean, layers, layers, clean, ...). So a machine that becomes slower or faster
meanwhile affects both lanes alike, and hardly their ratio. The rule depends on the first lane only.

Warm-up is the same loop with another rule; its times are dropped.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol

from hpcsweep.measure.timing import stats

# Of a warm-up whose medians tell a trend: fewer show one by chance.
_BLOCKS: Final = 5


class Clock(Protocol):
    """Times passes."""

    def block(self, run: Callable[[], object], count: int) -> list[float]:
        """Run `count` passes and return the milliseconds of each."""


class StoppingRule(Protocol):
    """Decides how long to go on; one object serves one loop.

    It is asked again when `least` passes ran, then after each block.
    """

    least: int

    def verdict(self, times: Sequence[float], seconds: float) -> str | None:
        """Return the reason to stop, or None; `seconds` have passed since the loop began."""


@dataclass(frozen=True)
class Lane:
    """One way to run a pass and its clock; `around(count)` is entered for `count` passes."""

    run: Callable[[], object]
    clock: Clock
    around: Callable[[int], AbstractContextManager[object]] = lambda _count: nullcontext()
    most: int = stats.BLOCK_MOST

    def once(self) -> None:
        """Run one pass; its time is dropped."""
        with self.around(1):
            self.clock.block(self.run, 1)


@dataclass(frozen=True)
class Collected:
    """The times of each lane, in order, and why the loop ended.

    `timed_s` are the seconds of the blocks by the host's clock. They include the delays before a
    GPU's passes, but not the time to put timers around layers.
    """

    times: list[list[float]]
    reason: str
    seconds: float
    timed_s: float


def collect(
    lanes: Sequence[Lane],
    rule: StoppingRule,
    *,
    at_block_end: Callable[[], object] = lambda: None,
    now: Callable[[], float] = time.monotonic,
) -> Collected:
    """Run the lanes in turn until the rule stops the first one."""
    times: list[list[float]] = [[] for _ in lanes]
    order = list(range(len(lanes)))
    timed_s = 0.0
    reason = rule.verdict(times[0], 0.0)
    with quiet_collector():
        began = now()
        while reason is None:
            count = 1  # of the first block: nothing is known of a pass
            if times[0]:
                count = stats.block_passes(stats.median(times[0][-stats.BLOCK_MOST :]))
            if len(times[0]) < rule.least:
                count = min(count, rule.least - len(times[0]))
            for index in order:
                timed_s += _block(lanes[index], count, times[index])
                at_block_end()
            # so that no lane is always the later one of a machine that drifts
            order.reverse()
            reason = rule.verdict(times[0], now() - began)
    return Collected(times, reason, now() - began, timed_s)


def _block(lane: Lane, count: int, times: list[float]) -> float:
    """Add the times of `count` passes of a lane, at most `lane.most` at a time; return seconds."""
    seconds = 0.0
    end = len(times) + count
    while len(times) < end:
        go = min(lane.most, end - len(times))
        with lane.around(go):
            began = time.perf_counter()
            times += lane.clock.block(lane.run, go)
            seconds += time.perf_counter() - began
    return seconds


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Collect garbage now, but not while the block runs; nested blocks do nothing."""
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass
class Fixed:
    """A number of passes; zero is allowed, for no warm-up."""

    least: int

    def verdict(self, times: Sequence[float], _seconds: float) -> str | None:
        """Stop after the fixed number of passes."""
        return "fixed" if len(times) >= self.least else None


@dataclass
class Adaptive:
    """Stop when the noise is small enough, or will not become smaller, or the time is up.

    `converged`: the relative IQR, or half the width of the median's confidence interval over the
    median, is at most `target`. `stable_noise`: over the last `window` passes the relative IQR
    changed by less than `steady`, so more passes would not reduce it. Both need at least `least`
    passes that took `least_seconds`.
    """

    least: int
    _: KW_ONLY
    target: float
    most_seconds: float
    # less would be decided by few blocks, more costs each short point
    least_seconds: float = 0.5
    # a shorter one takes chance for an end, a longer one ends later
    window: int = 64
    # of the largest relative IQR in the window
    steady: float = 0.05
    _spreads: list[tuple[int, float]] = field(default_factory=list)
    _next_look: int = 0

    def verdict(self, times: Sequence[float], seconds: float) -> str | None:
        """Return `converged`, `stable_noise`, `timeout`, or None to go on."""
        reason = self._look(times) if len(times) >= max(self.least, self._next_look) else None
        if reason is None and times and seconds >= self.most_seconds:
            return "timeout"
        return reason

    def _look(self, times: Sequence[float]) -> str | None:
        """Judge the noise, after growing numbers of passes, since sorting costs time."""
        # a sixteenth more each time: the passes beyond what was needed are at most so many
        self._next_look = len(times) + len(times) // 16
        if math.fsum(times) / 1000 < self.least_seconds:
            return None
        summary = stats.summarise(times)
        spreads = [x for x in (summary.iqr_rel, summary.ci_rel) if x is not None]
        if min(spreads, default=math.inf) <= self.target:
            return "converged"
        self._spreads.append((len(times), summary.iqr_rel or 0.0))
        return "stable_noise" if self._noise_is_stable() else None

    def _noise_is_stable(self) -> bool:
        newest = self._spreads[-1][0]
        if newest - self._spreads[0][0] < self.window:
            return False
        recent = [spread for n, spread in self._spreads if n >= newest - self.window]
        return max(recent) - min(recent) <= self.steady * max(recent)


@dataclass
class Steady:
    """Stop a warm-up after `least` passes and `least_seconds`, once times have no trend.

    No trend: a line through the medians of the last five blocks rises or falls by at most `slope`
    over them. After `most_seconds` the warm-up ends in any case.
    """

    least: int
    # as for the timed passes
    least_seconds: float = 0.5
    # what drifts longer, such as heat, drifts while passes are timed
    most_seconds: float = 10.0
    # the default `target` of the times themselves
    slope: float = 0.01
    _medians: list[float] = field(default_factory=list)
    _seen: int = 0

    def verdict(self, times: Sequence[float], seconds: float) -> str | None:
        """Return `steady`, `timeout`, or None to go on."""
        if len(times) > self._seen:
            self._medians.append(stats.median(times[self._seen :]))
            self._seen = len(times)
        if not times or len(times) < self.least or seconds < self.least_seconds:
            return None
        if abs(_trend(self._medians[-_BLOCKS:])) <= self.slope:
            return "steady"
        return "timeout" if seconds >= self.most_seconds else None


def _trend(values: Sequence[float]) -> float:
    """Return the change of a least-squares line through the values, relative to their mean."""
    if len(values) < _BLOCKS:
        return math.inf
    middle = (len(values) - 1) / 2
    mean = math.fsum(values) / len(values)
    slope = math.fsum((i - middle) * (y - mean) for i, y in enumerate(values))
    slope /= math.fsum((i - middle) ** 2 for i in range(len(values)))
    return slope * (len(values) - 1) / mean if mean else 0.0


def stopping_rule(settings: dict[str, Any]) -> StoppingRule:
    """Return the rule of the timed passes from a point's `measure` settings."""
    if settings["stop"] == "adaptive":
        least = settings["min_iterations"]
        most_seconds = settings["max_seconds"]
        return Adaptive(least, target=settings["target"], most_seconds=most_seconds)
    return Fixed(settings["iterations"])


def warm_up_rule(settings: dict[str, Any], ran: int = 1) -> StoppingRule:
    """Return the rule of what is left of the warm-up when `ran` of its passes, the first one, ran.

    It is a count, or with adaptive passes until steady.
    """
    passes = max(0, settings["warmup"] - ran)
    return Steady(passes) if settings["stop"] == "adaptive" else Fixed(passes)
