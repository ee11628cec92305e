"""Joules of a pass, where measured rows have them: the watts of such passes, times its time.

Watts are the median per GPU, setting, type and algorithm, or per GPU where there are too few rows:
on measured networks that was nearer than a power and energies of operations and bytes. The interval
is that of parts that were left out, with their predicted times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep.forecast import intervals
from hpcsweep.forecast.intervals import OWN, LeftOut
from hpcsweep.forecast.terms import Floats

_KIND: Final = ("gpu", "setting", "dtype", "algorithm")
# rows of a kind from which a median is taken: it stays where it is if two of them are odd
_FEWEST: Final = 5

Watts = Mapping[tuple[Any, ...], float]  # by kind of point, and by GPU alone


def fit(points: pd.DataFrame) -> Watts:
    """Return the watts of points with `energy_j`."""
    rows = _with_energy(points)
    watts = rows["energy_j"].astype(float) / rows["total_ms"] * 1e3
    found: dict[tuple[Any, ...], float] = {}
    for names in (_KIND, _KIND[:1]):
        for key, of_kind in watts.groupby([rows[name] for name in names], observed=True):
            if len(of_kind) >= _FEWEST:
                found[key] = float(of_kind.median())
    return found


def joules(watts: Watts, points: pd.DataFrame) -> Floats:
    """Return the joules of points that take `total_ms`; NaN where nothing is known."""
    kinds = points[[*_KIND]].itertuples(index=False, name=None)
    found = [watts.get(kind, watts.get(kind[:1], math.nan)) for kind in kinds]
    return np.array(found, float) * points["total_ms"].to_numpy(float) * 1e-3


def width(left: LeftOut | None) -> float:
    """Return the factor of the 90 % interval of energies, from what was left out."""
    if left is None:
        return intervals.UNKNOWN
    rows = _with_energy(left.points)
    said = pd.Series(np.nan, rows.index)
    for fold in rows["fold"].unique():
        out = rows["fold"] == fold
        said[out] = joules(fit(rows[~out]), rows[out].assign(total_ms=rows[OWN]))
    rows = rows[said.notna()]
    true = rows["energy_j"].to_numpy(float)
    parts = intervals.parts_of(rows, left.kind)
    return intervals.factor(true, said.dropna().to_numpy(), parts)


def _with_energy(points: pd.DataFrame) -> pd.DataFrame:
    if "energy_j" not in points:
        return points.iloc[:0].assign(energy_j=[])
    return points[points["energy_j"].astype(float) > 0]
