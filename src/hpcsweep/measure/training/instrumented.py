"""Further training steps with instruments: the phases of a step, and the memory in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcsweep.measure.data.loaders import Data
from hpcsweep.measure.machine.memory import Memory
from hpcsweep.measure.timing import lanes, loop
from hpcsweep.measure.timing.clocks import Cuda
from hpcsweep.measure.timing.stamps import EventStamps, HostStamps
from hpcsweep.measure.training.epochs import next_steps
from hpcsweep.measure.training.phases import PhaseTimer, PhaseTimes, Ticker
from hpcsweep.measure.training.trainer import Score, Trainer

if TYPE_CHECKING:
    import torch

_MEMORY_STEPS = 3


def ticker(device: torch.device) -> Ticker:
    """Return what times whole steps on a device, which is never waited for within an epoch."""
    if device.type == "cuda":
        gpu = Cuda()
        return Ticker(EventStamps(gpu.event), before_read=gpu.synchronize)
    return Ticker(HostStamps(), before_tick=lanes.synchronizer(device))


def phase_timer(device: torch.device) -> PhaseTimer:
    """Return what times the phases of steps on a device: event pairs on a GPU, one wait a step."""
    if device.type == "cuda":
        gpu = Cuda()
        return PhaseTimer(EventStamps(gpu.event), around_step=gpu.synchronize)
    return PhaseTimer(HostStamps(), after_phase=lanes.synchronizer(device))


def time_phases(trainer: Trainer, data: Data, steps: int, timer: PhaseTimer) -> PhaseTimes:
    """Train for so many steps with every phase timed."""
    score = Score.zero(trainer.device)
    with loop.quiet_collector():
        for batches in next_steps(data, steps):
            with timer.step():
                trainer.step(batches, score, timer.phase)
    return timer.times()


def average_memory(trainer: Trainer, data: Data, memory: Memory) -> int | None:
    """Return the mean of the memory in use at the ends of the phases of three steps, bytes."""
    score, seen = Score.zero(trainer.device), []

    @contextmanager
    def look(_name: str) -> Iterator[None]:
        yield
        seen.append(memory.now())

    for batches in next_steps(data, _MEMORY_STEPS):
        trainer.step(batches, score, look)
    known = [bytes_now for bytes_now in seen if bytes_now is not None]
    return round(sum(known) / len(known)) if known else None
