"""Optimizers and learning rates by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hpcsweep import catalog
from hpcsweep.measure.training import optimizers


def test_the_learning_rate_rises_and_falls():
    """Linearly to the full rate, then half a cosine to nothing."""
    rates = [optimizers.factor(step, 4, 12, cosine=True) for step in range(13)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.5)
    assert rates[12] == pytest.approx(0)
    assert optimizers.factor(1000, 4, 12, cosine=False) == 1


def test_optimizers_take_the_axes_or_what_is_usual():
    """Unset is not nought."""
    weights = [nn.Parameter(torch.zeros(1))]
    usual = optimizers.optimizer(catalog.axis_defaults("training"), weights)
    assert (usual.defaults["lr"], usual.defaults["momentum"]) == (0.1, 0.9)
    named = {"optimizer": "adamw", "lr": 0.5, "weight_decay": 0.25}
    found = optimizers.optimizer(catalog.axis_defaults("training") | named, weights)
    assert (found.defaults["lr"], found.defaults["weight_decay"]) == (0.5, 0.25)
