"""Joules of a pass, where measured rows have them: watts while it runs, and work on top.

Energy is a sum that cannot be negative: a power times the time of the pass, and energy for each
operation and byte. It is learnt per GPU, setting, type and algorithm, or per GPU where there are
too few rows. Its interval is that of parts that were left out, with their predicted times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from hpcsweep.forecast import intervals, physics, terms
from hpcsweep.forecast.intervals import OWN
from hpcsweep.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from numpy.typing import NDArray

    from hpcsweep.forecast.check import Left

    Floats = NDArray[np.float64]

_LEVELS: Final = (("gpu", "setting", "dtype", "algorithm"), ("gpu",))
_FEWEST: Final = 5
METHOD: Final = "predicted"


@dataclass(frozen=True)
class Energy:
    """The watts of a pass, and the joules of 10^12 operations and 10^9 bytes, by kind of point."""

    costs: Mapping[tuple[object, ...], Floats] = field(default_factory=dict)

    def of(self, points: pd.DataFrame, calls: pd.DataFrame) -> Floats:
        """Return the joules of points that take `total_ms`; NaN where nothing is known."""
        found, amounts = np.full(len(points), np.nan), _amounts(points, calls)
        for number, names in enumerate(_LEVELS):
            for key, places in terms.groups(points, names).items():
                cost = self.costs.get((number, *key))
                if cost is not None:
                    todo = places[np.isnan(found[places])]
                    found[todo] = amounts[todo] @ cost
        return found


def fit(points: pd.DataFrame, calls: pd.DataFrame) -> Energy:
    """Return what points with `energy_j` teach."""
    known = _with_energy(points)
    amounts, joules = _amounts(known, calls), known["energy_j"].to_numpy(float)
    return Energy({
        (number, *key): physics.solve(amounts[places], joules[places])
        for number, names in enumerate(_LEVELS)
        for key, places in terms.groups(known, names).items()
        if len(places) >= _FEWEST
    })  # fmt: skip


def width(left: Left | None) -> float:
    """Return the factor of the 90 % interval of energies, from what was left out."""
    if left is None:
        return intervals.UNKNOWN
    parts = []
    for _, out, others in left.parts():
        points = _with_energy(out.points)
        joules = fit(others.points, others.calls).of(points.assign(total_ms=points[OWN]), out.calls)
        parts.append(points.assign(joules=joules)[~np.isnan(joules)])
    rows = pd.concat(parts)
    true, said = rows["energy_j"].to_numpy(float), rows["joules"].to_numpy(float)
    return intervals.factor(true, said, intervals.parts_of(rows, left.kind))


def cells(
    table: pd.DataFrame,
    calls: pd.DataFrame,
    learnt: Energy,
    left: Mapping[Any, Left | None],
    shift: float = 0.0,
) -> dict[Hashable, dict[str, Any]]:
    """Return the cells of points for which something is known, by id.

    `left` has what was left out for each `basis`; points of another basis were measured. `shift` is
    that of the machine.
    """
    joules = pd.Series(learnt.of(table, calls), table.index).dropna()
    more = np.exp(shift)
    widths = {basis: width(one) * more for basis, one in left.items()} if len(joules) else {}
    bases = table["basis"].to_dict()
    found: dict[Hashable, dict[str, Any]] = {}
    for point_id, value in joules.items():
        factor = widths.get(bases[point_id])
        if factor is not None:
            found[point_id] = {
                "energy_j": value,
                "energy_method": METHOD,
                "predicted_lo_j": value / factor,
                "predicted_hi_j": value * factor,
            }
    return found


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
