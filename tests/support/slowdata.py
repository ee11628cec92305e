"""A data set that takes its time, so that a training can be interrupted: ``slowdata:make``."""

from __future__ import annotations

import time

from hpcsweep.measure.data import loaders


class Slow(loaders.Synthetic):
    """Synthetic images, each of which takes a few milliseconds."""

    def __getitem__(self, index):
        """Wait, then return an image and its label."""
        time.sleep(0.01)
        return super().__getitem__(index)


def make(point):
    """Return as many images as the epochs need."""
    count = point.axes["batch_size"] * point.axes["steps_per_epoch"]
    train, val = (Slow(point, n, 4, seed) for seed, n in enumerate((count, 4)))
    return loaders.loaders(point, train, val, 4, "slow")
