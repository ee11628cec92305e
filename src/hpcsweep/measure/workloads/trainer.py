"""The trainer: a network with its optimizer and state, a step on a batch, and what it learned."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.utils._pytree import tree_map

from hpcsweep.catalog.row_records import TrainingCells
from hpcsweep.conv.parts import tensors_in
from hpcsweep.measure import model_builder
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.data.loaders import Data
from hpcsweep.point import Point

# That of torch's examples, as the learning rates.
_MOMENTUM: Final = 0.9
_NORMALIZES: Final = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)  # noqa: SLF001


def optimizer(axes: Mapping[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    """Return a point's optimizer over a network's parameters."""
    name = axes["optimizer"]
    settings: dict[str, Any] = {"lr": axes["lr"]}
    if axes["lr"] is None:
        settings["lr"] = usual_lr(name, model)
    if axes["weight_decay"] is not None:
        settings["weight_decay"] = axes["weight_decay"]
    if name == "sgd":
        settings["momentum"] = _MOMENTUM
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[name](model.parameters(), **settings)


def usual_lr(optimizer: str, model: nn.Module) -> float:
    """Return the learning rate for an axis `lr` without value: those of torch's examples.

    At 0.1, networks without normalization diverge: AlexNet, VGG-11 and SqueezeNet 1.1 did in 20
    steps of random images, and at 0.01 did not.
    """
    if optimizer != "sgd":
        return 1e-3
    normalizes = any(isinstance(module, _NORMALIZES) for module in model.modules())
    return 0.1 if normalizes else 0.01


def schedule(
    axes: Mapping[str, Any], optimizer: torch.optim.Optimizer, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a point's learning-rate schedule over `steps` optimizer steps."""
    warmup = axes["lr_warmup_steps"]
    cosine = axes["lr_schedule"] == "cosine"
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: factor(step, warmup, steps, cosine=cosine)
    )
    # torch would warn if the gradient scaler skips the first step, which the schedule counts
    optimizer._opt_called = True  # noqa: SLF001
    return scheduler


def factor(step: int, warmup: int, steps: int, *, cosine: bool) -> float:
    """Return the learning rate of a step (from 0) over `lr`.

    It rises linearly over the warm-up, ``(step + 1) / warmup``; then it is 1, or half a cosine that
    reaches 0 after the last step.
    """
    if step < warmup:
        return (step + 1) / warmup
    if not cosine:
        return 1.0
    done = (step - warmup) / max(steps - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


Batch = tuple[Tensor, Tensor]
Phase = Callable[[str], AbstractContextManager[object]]
_UNTIMED: Final = nullcontext()
# Weight of auxiliary heads (googlenet, inception_v3): Szegedy et al. 2014, section 5.
_AUXILIARY: Final = 0.3


@dataclass
class Score:
    """Sums over batches, kept on the device so that no step waits for them."""

    loss: Tensor
    right: Tensor
    images: int = 0

    @classmethod
    def zero(cls, device: torch.device) -> Score:
        """Return empty sums."""
        return cls(torch.zeros((), device=device), torch.zeros((), device=device))

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a batch, given its mean loss."""
        self.loss += loss.detach() * len(labels)
        self.right += (logits.detach().argmax(1) == labels).sum()
        self.images += len(labels)

    def result(self) -> Result:
        """Return the means; waits for the device."""
        count = max(self.images, 1)
        return Result(self.loss.item() / count, self.right.item() / count)


@dataclass(frozen=True)
class Result:
    """Mean loss and share of right answers."""

    loss: float
    accuracy: float


def untimed(_name: str) -> AbstractContextManager[object]:
    """Time nothing: the phases of a pass without instruments."""
    return _UNTIMED


@dataclass
class Trainer:
    """The state of a training; `run` is the network's forward pass, compiled or not.

    `epoch` counts finished epochs. `state_dict` has everything to resume a training: weights,
    optimizer, schedule, scaler, epoch and random numbers.
    """

    point: Point
    device: torch.device
    model: nn.Module
    run: Callable[[Any], Any]
    total_steps: int
    epoch: int = 0
    optimizer: torch.optim.Optimizer = field(init=False)
    schedule: torch.optim.lr_scheduler.LRScheduler = field(init=False)
    scaler: torch.amp.GradScaler = field(init=False)

    def __post_init__(self) -> None:
        axes = self.point.axes
        self.optimizer = optimizer(axes, self.model)
        self.schedule = schedule(axes, self.optimizer, self.total_steps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=axes["amp"] == "fp16")
        self._dtype = getattr(torch, axes["dtype"])
        self._layout = model_builder.LAYOUTS[axes["memory_format"]]
        self._smoothing = axes["label_smoothing"]
        self._amp = model_builder.AUTOCAST.get(axes["amp"])

    def step(self, batches: Iterator[Batch], score: Score, phase: Phase = untimed) -> None:
        """Train on the next batch; StopIteration at the end."""
        with phase("data"):
            batch = next(batches)
        with phase("h2d"):
            images, labels = self.to_device(batch)
        with phase("forward"), self.autocast():
            outputs = self.run(images)
        with phase("loss"):
            with self.autocast():
                loss, logits = self.loss(outputs, labels)
            score.add(loss, logits, labels)
        with phase("backward"):
            self.scaler.scale(loss).backward()
        with phase("optimizer"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            # a part of the phase; without gradients their memory is free
            self.optimizer.zero_grad(set_to_none=True)

    def compute(self, batch: Batch) -> None:
        """Run forward pass, loss and backward pass on a batch, and drop the gradients."""
        images, labels = batch
        with self.autocast():
            loss, _ = self.loss(self.model(images), labels)
        self.scaler.scale(loss).backward()
        self.optimizer.zero_grad(set_to_none=True)

    def to_device(self, batch: Batch) -> Batch:
        """Copy a batch to the device; from page-locked memory the copy does not wait."""
        images, labels = batch
        images = images.to(self.device, self._dtype, non_blocking=True, memory_format=self._layout)
        return images, labels.to(self.device, non_blocking=True)

    def loss(
        self, outputs: object, labels: Tensor, *, smooth: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return cross-entropy and logits, the first output.

        Auxiliary heads, which score the same classes, count less; other outputs do not.
        """
        tensors = [*tensors_in(outputs)] or [labels]
        logits = tensors[0]
        if logits.dim() != 2 or len(logits) != len(labels):
            sizes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise CannotMeasure(
                "training needs scores of classes for each image; the network returns tensors of "
                f"{sizes}"
            )
        smoothing = self._smoothing if smooth else 0.0
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        for other in tensors[1:]:
            if other.shape == logits.shape:
                auxiliary = F.cross_entropy(other, labels, label_smoothing=smoothing)
                loss = loss + _AUXILIARY * auxiliary
        return loss, logits

    def autocast(self) -> torch.autocast:
        """Return the mixed precision of the point."""
        return torch.autocast(self.device.type, self._amp, enabled=self._amp is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all state in the host's memory, to leave the GPU's memory free."""
        on_gpu = self.device.type == "cuda"
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "epoch": self.epoch,
            "rng": torch.get_rng_state(),
            "rng_cuda": torch.cuda.get_rng_state(self.device) if on_gpu else None,
        }
        copied: dict[str, Any] = tree_map(_on_host, state)
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        # both keep what they are given, and would change it
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.schedule.load_state_dict(copy.deepcopy(state["schedule"]))
        self.scaler.load_state_dict(state["scaler"])
        self.epoch = state["epoch"]
        torch.set_rng_state(state["rng"])
        if state["rng_cuda"] is not None:
            torch.cuda.set_rng_state(state["rng_cuda"], self.device)
        self.optimizer.zero_grad(set_to_none=True)


def _on_host(value: object) -> object:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


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
        return all(math.isfinite(result.loss) for result in self.learned)

    def cells(self, data: Data) -> TrainingCells:
        """Return the columns about epochs, loss and accuracy."""
        last = self.learned[-1]
        seconds = sum(self.epochs_s)
        after = self.validated[-1] if self.validated else None
        return TrainingCells(
            steps=len(self.steps_ms),
            train_samples=data.train_samples,
            val_samples=data.val_samples,
            train_s=seconds,
            epoch_s=seconds / len(self.epochs_s),
            validation_s=sum(self.validation_s) / len(self.validation_s) if after else None,
            throughput_sps=data.train_samples * len(self.epochs_s) / seconds,
            train_loss=last.loss,
            train_accuracy=last.accuracy,
            val_loss_before=self.before.loss if self.before else None,
            val_accuracy_before=self.before.accuracy if self.before else None,
            val_loss_after=after.loss if after else None,
            val_accuracy_after=after.accuracy if after else None,
            learning_valid=self.finite,
            epochs_s=self.epochs_s,
            epochs_train_loss=[result.loss for result in self.learned],
            epochs_train_accuracy=[result.accuracy for result in self.learned],
            epochs_val_loss=[result.loss for result in self.validated],
            epochs_val_accuracy=[result.accuracy for result in self.validated],
        )


def evaluate(trainer: Trainer, data: Data) -> Result:
    """Run all validation images through the network in evaluation mode; leave it training.

    The loss is cross-entropy without label smoothing, so that points can be compared.
    """
    score = Score.zero(trainer.device)
    # what a network keeps in evaluation mode stays there
    frozen = [module for module in trainer.model.modules() if not module.training]
    trainer.model.eval()
    try:
        with torch.no_grad():
            for batch in data.val:
                images, labels = trainer.to_device(batch)
                # not the compiled form, which would compile again for evaluation
                with trainer.autocast():
                    loss, logits = trainer.loss(trainer.model(images), labels, smooth=False)
                score.add(loss, logits, labels)
    finally:
        # not module by module: `train` may be the network's own code
        trainer.model.train()
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
