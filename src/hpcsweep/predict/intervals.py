"""Intervals that hold nine times in ten, by what predictions were wrong by when left out.

Conformal: the width is a quantile of the errors of parts (networks, sizes) that a model had not
seen, never of random rows. It is a factor: a time between `said / w` and `said * w`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.predict.leaving_out import OWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

    from hpcsweep.predict.leaving_out import Left

    Floats = NDArray[np.float64]

LEVEL: Final = 0.9
UNKNOWN: Final = 4.0  # the factor where nothing of that kind could be left out


@dataclass(frozen=True)
class Widths:
    """The factor of an interval for networks, and for layers with and without products."""

    total: float = UNKNOWN
    layers: Mapping[bool, float] = field(default_factory=dict)

    def of_layers(self, calls: pd.DataFrame) -> Floats:
        """Return the factor of each call."""
        found = calls["multiplies"].map(dict(self.layers)).fillna(UNKNOWN)
        return np.asarray(found.to_numpy(float))


def calibrate(left: Left | None, without: str | None = None) -> Widths:
    """Return the factors that held for what was left out, but for one fold."""
    if left is None:
        return Widths()
    points = left.points[left.points["fold"] != without]
    calls = left.calls[left.calls["fold"] != without]
    if points.empty:
        return Widths()
    kinds = calls.groupby("multiplies")
    return Widths(
        factor(points["total_ms"].to_numpy(float), points[OWN].to_numpy(float)),
        {
            bool(kind): factor(rows["ms"].to_numpy(float), rows[OWN].to_numpy(float))
            for kind, rows in kinds
        },
    )


def factor(true: Floats, said: Floats) -> float:
    """Return the quantile of the errors, as conformal prediction takes it."""
    errors = np.abs(np.log(true / said))
    level = min(1.0, LEVEL * (1.0 + 1.0 / len(errors)))
    return float(np.exp(np.quantile(errors, level)))


def held(true: Floats, said: Floats, factor: Floats | float) -> Floats:
    """Return 1 where a time lies in its interval, else 0."""
    return np.asarray((np.abs(np.log(true / said)) <= np.log(factor)).astype(float))
