"""Joules of a pass, where measured rows have them: the watts of such passes, times its time.

Watts are the median per GPU, setting, type and algorithm, or per GPU where there are too few rows:
on measured networks that was nearer than a power and energies of operations and bytes. The interval
is that of the time, times that of the watts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcsweep.forecast import intervals
from hpcsweep.forecast.terms import Floats

if TYPE_CHECKING:
    import pandas as pd

_KIND: Final = ("gpu", "setting", "dtype", "algorithm")
# rows of a kind from which a median is taken: it stays where it is if two of them are odd
_FEWEST: Final = 5

# by kind of point, and by GPU alone: watts, and the factor of their interval
Power = Mapping[tuple[Any, ...], tuple[float, float]]


def fit(points: pd.DataFrame) -> Power:
    """Return the power of points with `energy_j`."""
    rows = points[points["energy_j"] > 0]
    found = {}
    for names in (_KIND, _KIND[:1]):
        for key, of_kind in rows.groupby([*names], observed=True):
            if len(of_kind) >= _FEWEST:
                watts = (of_kind["energy_j"] / of_kind["total_ms"] * 1e3).to_numpy(float)
                usual = np.median(watts)
                sizes = intervals.parts_of(of_kind, "size")
                found[key] = float(usual), intervals.factor(watts, usual, sizes)
    return found


def joules(power: Power, points: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return the joules of points that take `total_ms`, and the factor of their watts.

    They are NaN where nothing is known.
    """
    unknown = np.nan, np.nan
    kinds = points[[*_KIND]].itertuples(index=False, name=None)
    found = [power.get(kind, power.get(kind[:1], unknown)) for kind in kinds]
    watts, factors = np.array(found, float).T
    return watts * points["total_ms"].to_numpy(float) * 1e-3, factors
