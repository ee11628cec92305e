"""Results of epochs, validation, and further steps that are instrumented for phases and memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from hpcsweep.catalog.columns import Row
from hpcsweep.measure.data.loaders import Data
from hpcsweep.measure.machine.memory import MemoryWatch
from hpcsweep.measure.timing import lanes, loop
from hpcsweep.measure.timing.clocks import Cuda, EventStamps, HostStamps
from hpcsweep.measure.workloads.training.phases import PhaseTimer, PhaseTimes, Ticker
from hpcsweep.measure.workloads.training.trainer import Batch, Result, Score, Trainer


@dataclass
class TrainingHistory:
    """The results of the training pass; `validated` has an entry per epoch, or none at all."""

    first_ms: float = 0.0
    warmup_n: int = 0
    steps_ms: list[float] = field(default_factory=list)
    epochs_s: list[float] = field(default_factory=list)
    learned: list[Result] = field(default_factory=list)
    before: Result | None = None
    validated: list[Result] = field(default_factory=list)
    validation_s: list[float] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        return all(result.finite for result in self.learned)

    def cells(self, data: Data) -> Row:
        """Return the columns about epochs, loss and accuracy."""
        last = self.learned[-1]
        seconds = sum(self.epochs_s)
        after = self.validated[-1] if self.validated else None
        return {
            "steps": len(self.steps_ms),
            "warmup_n": self.warmup_n,
            "first_call_ms": self.first_ms,
            "train_samples": data.train_samples,
            "val_samples": data.val_samples,
            "train_s": seconds,
            "epoch_s": seconds / len(self.epochs_s),
            "validation_s": sum(self.validation_s) / len(self.validation_s) if after else None,
            "throughput_sps": data.train_samples * len(self.epochs_s) / seconds,
            "train_loss": last.loss,
            "train_accuracy": last.accuracy,
            "val_loss_before": self.before.loss if self.before else None,
            "val_accuracy_before": self.before.accuracy if self.before else None,
            "val_loss_after": after.loss if after else None,
            "val_accuracy_after": after.accuracy if after else None,
            "learning_valid": self.finite,
            "epochs_s": self.epochs_s,
            "epochs_train_loss": [result.loss for result in self.learned],
            "epochs_train_accuracy": [result.accuracy for result in self.learned],
            "epochs_val_loss": [result.loss for result in self.validated],
            "epochs_val_accuracy": [result.accuracy for result in self.validated],
        }


def evaluate(trainer: Trainer, data: Data) -> Result:
    """Run all validation images through the network in evaluation mode; leave it training.

    The loss is cross-entropy without label smoothing, so that points can be compared.
    """
    score = Score.zero(trainer.device)
    frozen = [module for module in trainer.model.modules() if not module.training]
    trainer.model.eval()
    try:
        with torch.no_grad():
            for batch in data.val:
                images, labels = trainer.to_device(batch)
                with trainer.autocast():
                    # not the compiled form, which would compile again for evaluation
                    loss, logits = trainer.loss(trainer.model(images), labels, smooth=False)
                score.add(loss, logits, labels)
    finally:
        trainer.model.train()  # which may be its own code
        for module in frozen:
            module.training = False
    return score.result()


def next_steps(data: Data, count: int) -> Iterator[Iterator[Batch]]:
    """Yield, for each of `count` steps, an iterator from which the step takes its batch.

    Epochs follow each other from the first; the last one may end early.
    """
    for number in itertools.count():
        batches = data.epoch(number)
        for _ in range(min(count, data.steps)):
            yield batches
        count -= data.steps
        if count <= 0:
            return


_MEMORY_STEPS = 3


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
