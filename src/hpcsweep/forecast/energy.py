"""Joules of a pass, where measured rows have them: watts while it runs, and work on top.

Energy is a sum that cannot be negative: a power times the time of the pass, and energy for each
operation and byte. It is learnt per GPU, setting, type and algorithm, or per GPU where there are
too few rows. Its interval is that of parts that were left out, with their predicted times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep.forecast import intervals, physics, terms
from hpcsweep.forecast.intervals import OWN, LeftOut
from hpcsweep.forecast.terms import Floats

_LEVELS: Final = (("gpu", "setting", "dtype", "algorithm"), ("gpu",))
_FEWEST: Final = 5  # rows of a group from which a mean is taken


@dataclass(frozen=True)
class Energy:
    """The watts of a pass, and the joules of 10^12 operations and 10^9 bytes, by kind of point."""

    costs: Mapping[tuple[object, ...], Floats]

    def of(self, points: pd.DataFrame, calls: pd.DataFrame) -> Floats:
        """Return the joules of points that take `total_ms`; NaN where nothing is known."""
        joules = np.full(len(points), np.nan)
        amounts = _amounts(points, calls)
        for number, names in enumerate(_LEVELS):
            for key, places in terms.groups(points, names).items():
                cost = self.costs.get((number, *key))
                if cost is not None:
                    todo = places[np.isnan(joules[places])]
                    joules[todo] = amounts[todo] @ cost
        return joules


def fit(points: pd.DataFrame, calls: pd.DataFrame) -> Energy:
    """Return what points with `energy_j` teach."""
    rows = _with_energy(points)
    amounts = _amounts(rows, calls)
    joules = rows["energy_j"].to_numpy(float)
    return Energy({
        (number, *key): physics.solve(amounts[places], joules[places])
        for number, names in enumerate(_LEVELS)
        for key, places in terms.groups(rows, names).items()
        if len(places) >= _FEWEST
    })  # fmt: skip


def width(left: LeftOut | None) -> float:
    """Return the factor of the 90 % interval of energies, from what was left out."""
    if left is None:
        return intervals.UNKNOWN
    parts = []
    for _, out, others in left.parts():
        points = _with_energy(out.points)
        joules = fit(others.points, others.calls).of(points.assign(total_ms=points[OWN]), out.calls)
        parts.append(points.assign(joules=joules)[~np.isnan(joules)])
    rows = pd.concat(parts)
    true = rows["energy_j"].to_numpy(float)
    said = rows["joules"].to_numpy(float)
    return intervals.factor(true, said, intervals.parts_of(rows, left.kind))


def cells(
    table: pd.DataFrame,
    calls: pd.DataFrame,
    learnt: Energy,
    left: Mapping[Any, LeftOut | None],
    shift: float,
) -> dict[str, dict[str, Any]]:
    """Return the cells of points for which something is known, by id.

    `left` has what was left out for each `basis`, `shift` is that of the machine.
    """
    joules = learnt.of(table, calls)
    kinds = {} if np.isnan(joules).all() else left
    factor_of = {basis: width(kind) * np.exp(shift) for basis, kind in kinds.items()}
    factors = table["basis"].map(factor_of).to_numpy(float)  # NaN for measured points
    every = zip(map(str, table.index), joules.tolist(), factors.tolist(), strict=True)
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


def _amounts(points: pd.DataFrame, calls: pd.DataFrame) -> Floats:
    """Return seconds, 10^12 operations and 10^9 bytes of each point."""
    sums = calls.groupby("point_id", observed=True)[["flops", "bytes_min"]].sum()
    work = sums.reindex(points.index).fillna(0.0).to_numpy(float)
    return np.column_stack(
        [points["total_ms"].to_numpy(float) * 1e-3, work[:, 0] * 1e-12, work[:, 1] * 1e-9]
    )
