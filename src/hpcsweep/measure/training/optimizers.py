"""Optimizers, learning-rate schedules and gradient scalers of training points, by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import nn

# what torch's examples train with; the axes `lr` and `weight_decay` override
USUAL_LR: Final[Mapping[str, float]] = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}
_MOMENTUM: Final = 0.9


def optimizer(axes: Mapping[str, Any], parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return a point's optimizer over parameters."""
    name = axes["optimizer"]
    settings: dict[str, Any] = {"lr": USUAL_LR[name] if axes["lr"] is None else axes["lr"]}
    if axes["weight_decay"] is not None:
        settings["weight_decay"] = axes["weight_decay"]
    if name == "sgd":
        return torch.optim.SGD(parameters, momentum=_MOMENTUM, **settings)
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind(parameters, **settings)


def schedule(
    axes: Mapping[str, Any], of: torch.optim.Optimizer, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a point's learning-rate schedule over so many optimizer steps."""
    warmup, cosine = axes["lr_warmup_steps"], axes["lr_schedule"] == "cosine"
    found = torch.optim.lr_scheduler.LambdaLR(
        of, lambda step: factor(step, warmup, steps, cosine=cosine)
    )
    # a first step that the gradient scaler skips counts for the schedule; torch would warn of it
    of._opt_called = True  # noqa: SLF001
    return found


def factor(step: int, warmup: int, steps: int, *, cosine: bool) -> float:
    """Return the learning rate of a step (from 0) over `lr`.

    It rises linearly over the warm-up, ``(step + 1) / warmup``, and is 1 afterwards, or half a
    cosine that reaches 0 after the last step.
    """
    if step < warmup:
        return (step + 1) / warmup
    if not cosine:
        return 1.0
    done = (step - warmup) / max(steps - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def scaler(axes: Mapping[str, Any], device_type: str) -> torch.amp.GradScaler:
    """Return a gradient scaler, which does nothing unless the point trains in fp16."""
    return torch.amp.GradScaler(device_type, enabled=axes["amp"] == "fp16")
