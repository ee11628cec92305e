"""What other GPUs say of one: their times, moved to its roofline, and corrected by its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.catalog import gpus
from hpcsweep.forecast import learner, physics, terms
from hpcsweep.forecast.learner import Features, Guess
from hpcsweep.forecast.terms import Floats

if TYPE_CHECKING:
    import pandas as pd

_QUARTER: Final = 0.25  # the weight of a GPU whose sheet differs by a factor of two
# physics is worth a GPU at a distance of four, and no more than all GPUs
_OF_PHYSICS: Final = _QUARTER**4
_PARTS: Final = 3  # of own shapes, each left out
# of the other GPUs, beside physics; the first of equals counts. Own shapes that are left out are
# like the others, so they flatter physics: less than half is never good on other networks.
_SHARES: Final = (0.5, 0.75, 1.0)


@dataclass(frozen=True)
class OtherGpus:
    """GPUs with rows, and what these say of each."""

    features: Features
    known: Mapping[str, Guess]

    def of(self, gpu: str, by_physics: Guess) -> Guess:
        """Return what they and physics say of a GPU without rows.

        They count by how alike their sheets are to its sheet, as far as rates show in times at
        all; without a sheet physics has no units.
        """
        devices = self.features.devices
        apart = np.array([_distance(gpu, name) for name in self.known])
        worth = _QUARTER ** (apart * devices.shown)
        total = worth.sum()
        weights = worth / total if total else np.full(len(worth), 1 / len(worth))
        share = max(total / (total + _OF_PHYSICS), 0.5) if total else 1.0

        def said(calls: pd.DataFrame) -> Floats:
            theirs = devices.roofline(calls) + self._beyond_roofline(calls) @ weights
            return np.asarray(share * theirs + (1 - share) * by_physics(calls))

        return said

    def corrected_by(self, own: pd.DataFrame) -> Guess:
        """Return a mean of physics and of what they say, corrected by a GPU's few rows.

        Their share is the one that is least wrong at own shapes that are left out.
        """
        parts = own.groupby("unique_key", sort=False).ngroup().to_numpy() % _PARTS
        held = np.zeros((2, len(own)))
        for part in np.unique(parts):
            out = parts == part
            if not out.all():
                held[:, out] = self._both(own[~out])(own[out])
        wrong = held - np.log(own["ms"].to_numpy(float))
        errors = [np.abs(_mixed(wrong, share)).mean() for share in _SHARES]
        share = _SHARES[int(np.argmin(errors))]
        both = self._both(own)
        return lambda calls: _mixed(both(calls), share)

    def _both(self, own: pd.DataFrame) -> Guess:
        """Return what they (first row) and physics (second) say, knowing own rows."""
        process = learner.process(self._moved(own), self._places, own)
        by_physics = physics.fit(own, self.features.devices)
        return lambda calls: np.array([process(calls), by_physics.logs(calls)])

    def _moved(self, own: pd.DataFrame) -> Guess:
        """Return their mean, moved to the own roofline as far as own rows show the difference."""

        def apart(calls: pd.DataFrame) -> Floats:
            return self.features.devices.roofline(calls) - self._rooflines(calls).mean(axis=1)

        of_own = apart(own)
        of_own -= of_own.mean()
        wrong = np.log(own["ms"].to_numpy(float)) - self._said(own).mean(axis=1)
        slope = float(np.clip(of_own @ wrong / max(of_own @ of_own, 1e-9), 0.0, 1.0))
        return lambda calls: self._said(calls).mean(axis=1) + slope * apart(calls)

    def _places(self, calls: pd.DataFrame) -> Floats:
        """Return where calls lie for a process: algorithm, work, and how the GPUs differ there."""
        work = terms.amounts(calls)
        flops = np.log(work["flops"] + 1)
        moved = np.log(work["bytes_min"] + 1)
        each = self._beyond_roofline(calls)
        return np.column_stack([
            self.features.ran(calls), flops, moved, flops - moved, work["kernel"] > 1,
            each - each.mean(axis=1, keepdims=True),
        ])  # fmt: skip

    def _rooflines(self, calls: pd.DataFrame) -> Floats:
        """Return the logs of the rooflines of calls, a column for each GPU."""
        roofline = self.features.devices.roofline
        return np.column_stack([roofline(calls.assign(gpu=gpu)) for gpu in self.known])

    def _said(self, calls: pd.DataFrame) -> Floats:
        """Return the logs of the times that calls take on each GPU, a column for each."""
        said = [guess(calls.assign(gpu=gpu)) for gpu, guess in self.known.items()]
        return np.column_stack(said)

    def _beyond_roofline(self, calls: pd.DataFrame) -> Floats:
        """Return the logs of how much longer than their rooflines calls take on each GPU."""
        return self._said(calls) - self._rooflines(calls)


def _mixed(both: Floats, share: float) -> Floats:
    return np.asarray(share * both[0] + (1 - share) * both[1])


def _distance(gpu: str, other: str) -> float:
    """Return how many factors of two are between two sheets; infinity where one is missing.

    They are between the peaks, the bandwidths, and the rates of double precision, which tell chips
    for computing from those for graphics.
    """
    rates = []
    for name in (gpu, other):
        sheet = gpus.sheet(name)
        if sheet is None:
            return np.inf
        peak = sheet.peak("float32") or sheet.fp32_tflops
        rates.append((peak, sheet.bandwidth_gbs, sheet.fp64_tflops / sheet.fp32_tflops))
    one, two = np.log2(rates)
    return float(np.abs(one - two).sum())
