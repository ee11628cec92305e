"""Times of layer calls as sums of non-negative terms, fitted per kind of call.

A fit is of calls of one operator, algorithm and device. Where there are too few of them, a wider
kind serves: any shape of filter, any setting, any algorithm, any operator, and at last any GPU,
with work in units of the peaks of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.optimize import nnls

from hpcsweep.catalog import gpus
from hpcsweep.forecast import terms
from hpcsweep.forecast.terms import Floats, Integers

if TYPE_CHECKING:
    import pandas as pd

KIND: Final = ("gpu", "setting", "dtype", "direction", "op", "ran")
# Kinds of calls, narrow to wide: the columns whose values they share.
LEVELS: Final = (
    (*KIND, "filter"),
    KIND,
    ("gpu", "direction", "op", "ran"),
    ("gpu", "direction", "op"),
    ("gpu", "direction", "multiplies"),
    ("in_table", "direction", "multiplies"),
    ("direction", "multiplies"),  # a GPU that no table has counts as a standard one
)
_ANY_GPU: Final = len(LEVELS) - 2
_FEWEST: Final = 12  # distinct convolutions of a kind
_FEWEST_PLAIN: Final = 3  # distinct calls of another operator
_WINOGRAD_SAVES: Final = 4.0  # the most multiplications that F(2), 5x5, saves is 2.8
_UNNAMED: Final = ("-", "auto", "unknown")
_FLOOR: Final = 1e-6  # ms, so that logarithms exist


@dataclass(frozen=True)
class Physics:
    """The cost of a unit of each term, by kind of call."""

    costs: Mapping[tuple[object, ...], Floats]
    number: int | None = None  # of the terms that count; None for all

    def times(self, calls: pd.DataFrame) -> Floats:
        """Return milliseconds of calls, each by the narrowest fit that there is."""
        ms = np.full(len(calls), np.nan)
        amounts = terms.matrix(calls)[:, : self.number]
        for number, names in enumerate(LEVELS):
            for key, places in terms.groups(calls, names).items():
                cost = self.costs.get((number, *key))
                if cost is not None:
                    todo = places[np.isnan(ms[places])]
                    ms[todo] = _scaled(amounts, calls, todo, number) @ cost
        floor = roofline(calls)
        return np.maximum(np.where(np.isnan(ms), floor, ms), np.maximum(floor, _FLOOR))


def fit(calls: pd.DataFrame, *, plain: bool = False) -> Physics:
    """Return the costs that explain the times of distinct calls (`ms`) best, by relative error.

    A `plain` law has bytes and operations alone, and one cost for all filters of an algorithm.
    """
    columns = terms.PLAIN if plain else None
    amounts = terms.matrix(calls)[:, :columns]
    times = calls["ms"].to_numpy(float)
    costs: dict[tuple[object, ...], Floats] = {}
    for number, names in [*enumerate(LEVELS)][plain:]:
        for key, places in terms.groups(calls, names).items():
            fewest = _FEWEST if calls["kernel_h"].iloc[places[0]] > 0 else _FEWEST_PLAIN
            if len(places) >= fewest or number >= _ANY_GPU - 1:
                kind = (number, *key)
                costs[kind] = solve(_scaled(amounts, calls, places, number), times[places])
    return Physics(costs, columns)


def _scaled(amounts: Floats, calls: pd.DataFrame, places: Integers, level: int) -> Floats:
    """Return the amounts of some calls, for a fit of all GPUs in units of the peaks of each."""
    if level < _ANY_GPU:
        return amounts[places]
    return amounts[places] * terms.of_peaks(calls.iloc[places])[:, : amounts.shape[1]]


def solve(amounts: Floats, times: Floats) -> Floats:
    """Return the non-negative costs that minimise the squares of relative errors.

    Such costs are too low where times scatter, so they are scaled until as many times lie above.
    """
    relative = amounts / times[:, None]
    size = np.linalg.norm(relative, axis=0)
    size[size == 0] = 1.0
    costs = nnls(relative / size, np.ones_like(times))[0] / size
    return np.asarray(costs * np.median(times / np.maximum(amounts @ costs, _FLOOR)))


def roofline(calls: pd.DataFrame) -> Floats:
    """Return the milliseconds below which no call can be; 0 where the device is in no table.

    Transforms need fewer operations than the definition, and operands may be in the cache.
    """
    floor = np.zeros(len(calls))
    flops = calls["flops"].fillna(0).to_numpy()
    moved = calls["bytes_min"].fillna(0).to_numpy()
    ran = calls["ran"].astype(str)
    saves = ran.str.startswith("winograd") | ran.isin(_UNNAMED)  # a library may have taken it
    fewer = np.where(saves, _WINOGRAD_SAVES, 1.0)
    fewer = np.where(ran.str.startswith("fft"), np.inf, fewer)
    for (name, dtype), places in terms.groups(calls, ("gpu", "dtype")).items():
        gpu = gpus.sheet(str(name))
        if gpu is None:
            continue
        peak = 1e9 * (gpu.peak(str(dtype), tf32=True) or np.inf)
        beyond = np.maximum(moved[places] - 1e6 * gpu.l2_mb, 0.0)
        floor[places] = np.maximum(
            flops[places] / fewer[places] / peak, beyond / (1e6 * gpu.bandwidth_gbs)
        )
    return floor


def prepared(calls: pd.DataFrame) -> pd.DataFrame:
    """Return calls with the columns that name their kind."""
    multiplies = calls["flops"].fillna(0) > 0
    if "ran" in calls:
        ran = calls["ran"]
    else:  # what ran; where a table does not say, what was asked of a convolution
        used = calls["algorithm_used"].astype(object)
        asked = calls["algorithm"].astype(object).where(calls["kernel_h"].notna())
        ran = used.where(used.notna(), asked)
    return calls.assign(
        op=calls["op"].astype(str),
        direction=calls["direction"].astype(str),
        ran=ran.astype(object).where(ran.notna(), "-").astype(str),
        filter=_filters(calls),
        multiplies=multiplies,
        in_table=calls["gpu"].astype(str).map(gpus.sheet).notna(),
    )


def distinct(calls: pd.DataFrame) -> pd.DataFrame:
    """Return each distinct call once, with its median time and the number of its rows."""
    groups = calls.groupby([*KIND, "unique_key", "batch_size"], observed=True, sort=False)
    first = groups.first()
    return first.assign(ms=groups["ms"].median(), rows=groups.size()).reset_index()


def _filters(calls: pd.DataFrame) -> Floats:
    """Return 0 for other operators, else 1 for 1x1, 2 for larger, 3 per channel, 4 for groups."""
    grouped = calls["groups"].fillna(1) > 1
    large = calls["kernel_h"].fillna(1) * calls["kernel_w"].fillna(1) > 1
    per_channel = grouped & (calls["groups"] == calls["in_channels"])
    kinds = [calls["kernel_h"].isna(), per_channel, grouped, large]
    return np.select(kinds, [0, 3, 4, 2], 1)
