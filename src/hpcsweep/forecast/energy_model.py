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

from hpcsweep.forecast import intervals, terms
from hpcsweep.forecast.intervals import OWN, LeftOut
from hpcsweep.forecast.terms import Floats

_LEVELS: Final = (("gpu", "setting", "dtype", "algorithm"), ("gpu",))
_FEWEST: Final = 5  # rows of a group from which a mean is taken


Watts = Mapping[tuple[object, ...], float]  # by kind of point


def fit(points: pd.DataFrame) -> Watts:
    """Return the watts of points with `energy_j`."""
    rows = _with_energy(points)
    watts = (rows["energy_j"] / rows["total_ms"] * 1e3).to_numpy(float)
    return {
        (number, *key): float(np.median(watts[places]))
        for number, names in enumerate(_LEVELS)
        for key, places in terms.groups(rows, names).items()
        if len(places) >= _FEWEST
    }


def joules(watts: Watts, points: pd.DataFrame) -> Floats:
    """Return the joules of points that take `total_ms`; NaN where nothing is known."""
    found = np.full(len(points), np.nan)
    for number, names in reversed([*enumerate(_LEVELS)]):  # the narrowest last: it counts
        for key, places in terms.groups(points, names).items():
            if (kind := (number, *key)) in watts:
                found[places] = watts[kind]
    return found * points["total_ms"].to_numpy(float) * 1e-3


def width(left: LeftOut | None) -> float:
    """Return the factor of the 90 % interval of energies, from what was left out."""
    if left is None:
        return intervals.UNKNOWN
    parts = []
    for _, out, others in left.parts():
        points = _with_energy(out.points)
        said = joules(fit(others.points), points.assign(total_ms=points[OWN]))
        parts.append(points.assign(said=said)[~np.isnan(said)])
    rows = pd.concat(parts)
    true = rows["energy_j"].to_numpy(float)
    said = rows["said"].to_numpy(float)
    return intervals.factor(true, said, intervals.parts_of(rows, left.kind))


def cells(
    table: pd.DataFrame,
    watts: Watts,
    left: Mapping[Any, LeftOut | None],
    shift: float,
) -> dict[str, dict[str, Any]]:
    """Return the cells of points for which something is known, by id.

    `left` has what was left out for each `basis`, `shift` is that of the machine.
    """
    said = joules(watts, table)
    kinds = {} if np.isnan(said).all() else left
    factor_of = {basis: width(kind) * np.exp(shift) for basis, kind in kinds.items()}
    factors = table["basis"].map(factor_of).to_numpy(float)  # NaN for measured points
    every = zip(map(str, table.index), said.tolist(), factors.tolist(), strict=True)
    return {
        point_id: {
            "energy_j": value,
            "energy_method": "predicted",
            "predicted_lo_j": value / factor,
            "predicted_hi_j": value * factor,
        }
        for point_id, value, factor in every
        if not math.isnan(value * factor)
    }


def _with_energy(points: pd.DataFrame) -> pd.DataFrame:
    if "energy_j" not in points:
        return points.iloc[:0].assign(energy_j=[])
    return points[points["energy_j"].astype(float) > 0]
