"""Times the parts of a training step, in steps of their own: its phases, and its layers.

Timing phases costs time. On a GPU each phase has a pair of events, and each step ends with a wait,
since events of two steps would overlap. The host's clock times the wait for data. It also times the
whole step, so that the sum of the phases can be compared with an independent number. The memory in
use is read in steps of its own. The layers are timed in passes over one batch (see `layer_timer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from hpcsweep.catalog.columns import LIMITS
from hpcsweep.catalog.row_records import PhaseCells
from hpcsweep.measure.data.loaders import Data
from hpcsweep.measure.layer_table import LayerTable
from hpcsweep.measure.machine.rig import MemoryWatch
from hpcsweep.measure.shape_pass import Shapes
from hpcsweep.measure.timing import clocks, loop, stats
from hpcsweep.measure.timing.clocks import HostStamps, Stamps, nothing
from hpcsweep.measure.timing.lanes import LaneWork, make_lanes
from hpcsweep.measure.timing.layer_timer import StepTimer
from hpcsweep.measure.workloads.trainer import Batch, Score, Trainer, next_steps

DATA: Final = "data"
PHASES: Final = (DATA, "h2d", "forward", "loss", "backward", "optimizer")
# Their mean counts; each costs a step of which no time is used.
_MEMORY_STEPS: Final = 3


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
        overhead = stats.median(self.steps) / median_ms - 1
        each: dict[str, float] = {}  # `phase_data_ms`, `data_total_s` and so on
        for name, times in self.phases.items():
            mean = sum(times) / count
            each[f"phase_{name}_ms"] = mean
            each[f"{name}_total_s"] = mean * steps / 1000
        return PhaseCells(
            **each,
            phase_step_ms=sum(self.steps) / count,
            phase_sum_over_step=self.sum_over_step,
            phase_overhead_pct=100 * overhead,
            phase_steps=count,
        )


class PhaseTimer:
    """Times the phases of steps: `step` around a step, `phase` around each part of it."""

    def __init__(self, stamps: Stamps, host: HostStamps) -> None:
        """Time steps and the wait for data by the `host`, the other phases by `stamps`."""
        stamps.reuse(2 * len(PHASES))
        self._stamps = stamps
        self._host = host
        self.times = PhaseTimes()
        self._spans: list[tuple[str, Stamps, Any, Any]] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time a step as a whole, from an idle device to an idle device."""
        self._stamps.wait()
        begin = self._host.now()
        yield
        self._stamps.wait()
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
        self._spans.append((name, stamps, begin, stamps.now()))


def time_phases(trainer: Trainer, data: Data, steps: int) -> PhaseTimes:
    """Train for `steps` steps with every phase timed."""
    timer = PhaseTimer(clocks.stamps_of(trainer.device), HostStamps())
    score = Score.zero(trainer.device)
    with loop.quiet_collector():
        for batches in next_steps(data, steps):
            with timer.step():
                trainer.step(batches, score, timer.phase)
    return timer.times


def average_memory(trainer: Trainer, data: Data, memory: MemoryWatch) -> int | None:
    """Return the mean bytes in use at the ends of the phases of three steps; None if unknown."""
    score = Score.zero(trainer.device)
    amounts = []

    @contextmanager
    def look(_name: str) -> Iterator[None]:
        yield
        in_use = memory.now()
        if in_use is not None:
            amounts.append(in_use)

    for batches in next_steps(data, _MEMORY_STEPS):
        trainer.step(batches, score, look)
    return round(sum(amounts) / len(amounts)) if amounts else None


def time_layers(
    trainer: Trainer, batch: Batch, shapes: Shapes, passes: int
) -> tuple[LayerTable | None, float]:
    """Time every layer in `passes` passes over a batch; return the table and their seconds.

    The table is None if layers cannot be timed. The batch is on the device, and nothing is loaded,
    copied or updated. As for inference, a clean lane and a lane with timers alternate in blocks, so
    that the timers' overhead and the sum of the layers are compared under the same conditions.
    """
    compute = partial(trainer.compute, batch)
    work = LaneWork(trainer.model, compute, nothing, shapes.calls, (), StepTimer)
    lanes = make_lanes(trainer.device, "eager", work).settled(0)
    if lanes.untimed:
        return None, 0.0
    done, _ = lanes.collect({"stop": "fixed", "iterations": passes})
    return LayerTable.of(lanes, done.times), done.timed_s
