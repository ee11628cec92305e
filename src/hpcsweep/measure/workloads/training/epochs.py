"""Runs the training pass: a warm-up that is undone, then every epoch, with one tick per step.

All times of steps and epochs come from this pass. In it only the end of an epoch and the validation
wait for the device (and torch's gradient scaler, once a step, if the point trains in float16).
Further steps are instrumented for their phases and memory.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from hpcsweep.catalog.columns import Row
from hpcsweep.measure.data.loaders import Data
from hpcsweep.measure.machine.memory import MemoryWatch
from hpcsweep.measure.timing import compiling, lanes, loop
from hpcsweep.measure.timing.clocks import Cuda, EventStamps, HostStamps
from hpcsweep.measure.timing.compiling import Calm, CompileCount
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


@dataclass
class TrainingPass:
    """Runs the training; `wait` waits for the device.

    `at_epoch_end` is called after each epoch, `after_epoch` after its validation.
    """

    trainer: Trainer
    data: Data
    ticker: Ticker
    wait: Callable[[], object]
    validates: bool = True
    at_epoch_end: Callable[[], object] = lambda: None
    after_epoch: Callable[[], object] = lambda: None
    history: TrainingHistory = field(default_factory=TrainingHistory)
    compiled: CompileCount = field(default_factory=CompileCount)  # epochs in which torch compiled

    def warm_up(self, steps: int) -> None:
        """Run steps, which tune and allocate, until none compiles; then restore the state."""
        before = self.trainer.state_dict()
        score = Score.zero(self.trainer.device)
        scripted = any(isinstance(m, torch.jit.ScriptModule) for m in self.trainer.modules())
        calm = Calm(max(compiling.RUNS if scripted else 1, steps))
        for batches in next_steps(self.data, sys.maxsize):
            if calm.reached:
                break
            self.wait()
            begin = time.perf_counter_ns()
            with calm.run():
                self.trainer.step(batches, score)
            self.wait()
            if not self.history.warmup_n:
                self.history.first_ms = (time.perf_counter_ns() - begin) / 1e6
            self.history.warmup_n += 1
        self.trainer.load_state_dict(before)

    def run(self, epochs: int) -> TrainingHistory:
        """Train from the trainer's epoch on, up to `epochs` in all."""
        if self.validates and self.history.before is None:
            self.history.before = self._validate()
        for number in range(self.trainer.epoch, epochs):
            self._epoch(number)
            self.at_epoch_end()
            if self.validates:
                self.history.validated.append(self._validate())
            self.after_epoch()
        return self.history

    def _epoch(self, number: int) -> None:
        """Train for one epoch; a step lasts from one tick to the next."""
        trainer = self.trainer
        ticker = self.ticker
        score = Score.zero(self.trainer.device)
        with loop.quiet_collector(), self.compiled.block():
            self.wait()
            begin = time.perf_counter()
            ticker.tick()
            batches = self.data.epoch(number)
            for _ in range(self.data.steps):
                trainer.step(batches, score)
                ticker.tick()
            self.history.steps_ms += ticker.read()
            self.history.epochs_s.append(time.perf_counter() - begin)
        trainer.epoch = number + 1
        self.history.learned.append(score.result())

    def _validate(self) -> Result:
        begin = time.perf_counter()
        result = evaluate(self.trainer, self.data)
        self.history.validation_s.append(time.perf_counter() - begin)
        return result


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
