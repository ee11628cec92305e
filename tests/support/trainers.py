"""Trainers of small networks."""

from __future__ import annotations

from hpcsweep.measure.training import network
from hpcsweep.measure.training.trainer import Trainer
from measuring import CPU


def make_trainer(point, steps=10):
    """Return a trainer of ten classes on the CPU."""
    model = network.build(point, 10, CPU)
    return Trainer(point, CPU, model, model, steps)
