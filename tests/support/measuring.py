"""Points and devices for the tests of what measures."""

from __future__ import annotations

import torch

from hpcsweep import catalog
from hpcsweep.conv import reference
from hpcsweep.conv.proof import Proof
from hpcsweep.conv.reference import FAMILIES
from hpcsweep.measure.checks.algorithm import use
from hpcsweep.measure.machine.drivers import Reading
from hpcsweep.measure.workloads import training_network
from hpcsweep.measure.workloads.trainer import Trainer
from hpcsweep.point import Point

CPU = torch.device("cpu")


def policy(unsupported="fallback", workspace_mib=4096.0):
    """Return the settings that decide on algorithms."""
    return {"unsupported": unsupported, "workspace_mib": workspace_mib}


def cells_of(algorithm, shapes, choices, means=None):
    """Return the columns on what convolutions ran, if nobody profiled them."""
    unseen = Proof.unseen(one.layer for one in choices.calls)
    cells = use(algorithm, shapes, choices, unseen, means)
    return {name: getattr(cells, name) for name in cells.declared}


class FakeDriver:
    """What reads a GPU that tells nothing."""

    def read(self):
        """Return the state."""
        return Reading()

    def energy_j(self):
        """Return no counter."""

    def others(self):
        """Return no neighbours."""
        return []

    def provenance(self):
        """Return no constants."""
        return {}


class Throttled(FakeDriver):
    """A GPU that is throttled until it has rested so many times."""

    def __init__(self, times):
        """Need so many rests."""
        self.left = times

    def rest(self, _seconds):
        """Cool down."""
        self.left -= 1

    def read(self):
        """Return the reasons for a low clock: heat, or none."""
        return Reading(reasons=0x40 if self.left > 0 else 0)


def lying(monkeypatch, algorithm, convolve):
    """Make an algorithm of the reference back-end run something else under its name."""
    honest = type(FAMILIES[algorithm])
    liar = type("Lying", (honest,), {"convolve": staticmethod(convolve)})()
    monkeypatch.setattr(reference, "FAMILIES", {**FAMILIES, algorithm: liar})


def point(model="tinynets:Residual", *, measure=None, **axes):
    """Return an inference point with defaults, on small images, with one thread."""
    values = {**catalog.axis_defaults("inference"), "model": model, "gpu": "cpu", "input_size": 32}
    values["num_threads"] = 1
    settings = {**catalog.setting_defaults("inference"), "warmup": 1, "iterations": 4}
    return Point("inference", values | axes, settings | (measure or {}), "0123456789abcdef")


def training(model="tinynets:Residual", *, measure=None, **axes):
    """Return a training point: five steps on small images, steps and phases alone."""
    values = {**catalog.axis_defaults("training"), "model": model, "gpu": "cpu", "input_size": 16}
    values |= {"batch_size": 4, "steps_per_epoch": 5, "lr": 0.01, "num_threads": 1}
    settings = {**catalog.setting_defaults("training"), "warmup": 1, "iterations": 3}
    settings |= {"layers": False, "evidence": False, "numerics": False}
    return Point("training", values | axes, settings | (measure or {}), "fedcba9876543210")


def make_trainer(point, steps=10):
    """Return a trainer of ten classes on the CPU."""
    model = training_network.build(point, 10, CPU)
    return Trainer(point, CPU, model, model, steps)
