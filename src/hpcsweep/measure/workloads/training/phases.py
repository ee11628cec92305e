"""Times the phases of a training step, and whole steps: by the host's clock, or by events.

A `Ticker` times whole steps of the training: it reads the clock, or records an event, at the end of
every step, without waiting. A step lasts from one tick to the next.

Timing phases costs time, so it has its own steps. On a GPU each phase has a pair of events, and
each step ends with a wait, since events of two steps would overlap. The host's clock times the wait
for data. It also times the whole step, so that the sum of the phases can be compared with an
independent number. The memory in use is read in steps of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import torch

from hpcsweep.catalog.columns import LIMITS
from hpcsweep.catalog.row_records import PhaseCells
from hpcsweep.measure.data.loaders import Data
from hpcsweep.measure.machine.peak_memory import MemoryWatch
from hpcsweep.measure.timing import lanes, loop, stats
from hpcsweep.measure.timing.clocks import Cuda, EventStamps, HostStamps, Stamps, nothing
from hpcsweep.measure.workloads.training.trainer import Score, Trainer, next_steps

DATA: Final = "data"
PHASES: Final = (DATA, "h2d", "forward", "loss", "backward", "optimizer")
_MEMORY_STEPS: Final = 3  # their mean counts; each costs a step of which no time is used


@dataclass
class PhaseTimes:
    """Milliseconds of each phase and of the whole, step by step."""

    steps: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PHASES})

    @property
    def sum_over_step(self) -> float:
        """Sum of all phases over the sum of all steps."""
        return sum(map(sum, self.phases.values())) / sum(self.steps)

    def flags(self) -> list[str]:
        """Return `phase_sum` if the sum of the phases is not the step's time."""
        is_off = abs(self.sum_over_step - 1) > LIMITS["phase_sum"] / 100
        return ["phase_sum"] if is_off else []

    def cells(self, steps: int, median_ms: float) -> PhaseCells:
        """Return the columns, given the training's number of steps and their median time."""
        count = len(self.steps)
        mean = {name: sum(times) / count for name, times in self.phases.items()}
        overhead = stats.median(self.steps) / median_ms - 1
        return PhaseCells(
            phase_data_ms=mean["data"],
            phase_h2d_ms=mean["h2d"],
            phase_forward_ms=mean["forward"],
            phase_loss_ms=mean["loss"],
            phase_backward_ms=mean["backward"],
            phase_optimizer_ms=mean["optimizer"],
            data_total_s=mean["data"] * steps / 1000,
            h2d_total_s=mean["h2d"] * steps / 1000,
            forward_total_s=mean["forward"] * steps / 1000,
            loss_total_s=mean["loss"] * steps / 1000,
            backward_total_s=mean["backward"] * steps / 1000,
            optimizer_total_s=mean["optimizer"] * steps / 1000,
            phase_step_ms=sum(self.steps) / count,
            phase_sum_over_step=self.sum_over_step,
            phase_overhead_pct=100 * overhead,
            phase_steps=count,
        )


class PhaseTimer:
    """Times the phases of steps: `step` around a step, `phase` around each part of it."""

    def __init__(
        self,
        stamps: Stamps,
        *,
        host: HostStamps | None = None,
        after_phase: Callable[[], object] = nothing,
        around_step: Callable[[], object] = nothing,
    ) -> None:
        """Time steps and the wait for data by the `host`, the other phases by `stamps`.

        Both calls wait for a device that works asynchronously: `after_phase` if it has no events,
        `around_step` if it has.
        """
        stamps.reuse(2 * len(PHASES))
        self._stamps = stamps
        self._host = host or HostStamps()
        self._after_phase = after_phase
        self._around_step = around_step
        self.times = PhaseTimes()
        self._spans: list[tuple[str, Stamps, Any, Any]] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time a step as a whole, from an idle device to an idle device."""
        self._around_step()
        begin = self._host.now()
        yield
        self._around_step()
        self.times.steps.append(self._host.ms(begin, self._host.now()))
        for name, stamps, first, last in self._spans:
            self.times.phases[name].append(stamps.ms(first, last))
        self._spans.clear()
        self._stamps.reuse()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of a step."""
        stamps = self._host if name == DATA else self._stamps
        begin = stamps.now()
        yield
        self._after_phase()
        self._spans.append((name, stamps, begin, stamps.now()))


class Ticker:
    """Times steps by their ends alone: one moment at the end of each."""

    def __init__(
        self,
        stamps: Stamps,
        *,
        before_tick: Callable[[], object] = nothing,
        before_read: Callable[[], object] = nothing,
    ) -> None:
        """Wait for the device before each tick if it has no events, else before reading."""
        self.timer = stamps.timer
        self._stamps = stamps
        self._before_tick = before_tick
        self._before_read = before_read
        self._ticks: list[Any] = []

    def tick(self) -> None:
        """Record a moment: once before the first step, then at the end of each step."""
        self._before_tick()
        self._ticks.append(self._stamps.now())

    def read(self) -> list[float]:
        """Return the milliseconds between the ticks since the last reading."""
        self._before_read()
        ticks = self._ticks
        self._ticks = []
        times = [self._stamps.ms(begin, end) for begin, end in pairwise(ticks)]
        self._stamps.reuse()
        return times


def ticker(device: torch.device) -> Ticker:
    """Return a timer of whole steps, which never waits for a GPU within an epoch."""
    if device.type == "cuda":
        gpu = Cuda()
        return Ticker(EventStamps(gpu.event), before_read=gpu.synchronize)
    return Ticker(HostStamps(), before_tick=lanes.synchronizer(device))


def phase_timer(device: torch.device) -> PhaseTimer:
    """Return a timer of the phases of steps: event pairs on a GPU, with one wait a step."""
    if device.type == "cuda":
        gpu = Cuda()
        return PhaseTimer(EventStamps(gpu.event), around_step=gpu.synchronize)
    return PhaseTimer(HostStamps(), after_phase=lanes.synchronizer(device))


def time_phases(trainer: Trainer, data: Data, steps: int, timer: PhaseTimer) -> PhaseTimes:
    """Train for `steps` steps with every phase timed."""
    score = Score.zero(trainer.device)
    with loop.quiet_collector():
        for batches in next_steps(data, steps):
            with timer.step():
                trainer.step(batches, score, timer.phase)
    return timer.times


def average_memory(trainer: Trainer, data: Data, memory: MemoryWatch) -> int | None:
    """Return the mean bytes in use at the ends of the phases of three steps; None if unknown."""
    score = Score.zero(trainer.device)
    seen = []

    @contextmanager
    def look(_name: str) -> Iterator[None]:
        yield
        seen.append(memory.now())

    for batches in next_steps(data, _MEMORY_STEPS):
        trainer.step(batches, score, look)
    amounts = [bytes_now for bytes_now in seen if bytes_now is not None]
    return round(sum(amounts) / len(amounts)) if amounts else None
