"""Times of layer calls as sums of non-negative terms, fitted per kind of call, and corrected.

A fit is of calls of one operator, algorithm and device. Where there are too few of them, a wider
kind serves: any shape of filter, any setting, any algorithm, any operator, and at last any GPU,
with work in units of the peaks of each. What nearby calls took corrects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.optimize import nnls
from sklearn.neighbors import NearestNeighbors

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
_ROUNDS: Final = 6
_CLIP: Final = 1.0  # one wild time moves the fit as much as one that is wrong by e
_WINOGRAD_SAVES: Final = 4.0  # the most multiplications that F(2), 5x5, saves is 2.8
_UNNAMED: Final = ("-", "auto", "unknown")
_FLOOR: Final = 1e-6  # ms, so that logarithms exist
_NEIGHBOURS: Final = 8  # calls whose errors correct one
_REACH: Final = 0.5  # the distance at which a neighbour's weight is 1/e
_PRIOR: Final = 0.3  # the weight of no correction
_CLIP_OF_NEIGHBOURS: Final = 1.5


@dataclass(frozen=True)
class Physics:
    """The cost of a unit of each term, by kind of call."""

    costs: Mapping[tuple[object, ...], Floats] = field(default_factory=dict)
    plain: bool = False  # from bytes and operations alone

    def times(self, calls: pd.DataFrame) -> Floats:
        """Return milliseconds of calls, each by the narrowest fit that there is."""
        ms = np.full(len(calls), np.nan)
        amounts = _matrix(calls, plain=self.plain)
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
    amounts = _matrix(calls, plain=plain)
    times = calls["ms"].to_numpy(float)
    costs: dict[tuple[object, ...], Floats] = {}
    for number, names in enumerate(LEVELS):
        if plain and number == 0:
            continue
        for key, places in terms.groups(calls, names).items():
            fewest = _FEWEST if calls["kernel_h"].iloc[places[0]] > 0 else _FEWEST_PLAIN
            if len(places) >= fewest or number >= _ANY_GPU - 1:
                kind = (number, *key)
                costs[kind] = solve(_scaled(amounts, calls, places, number), times[places])
    return Physics(costs, plain)


def _matrix(calls: pd.DataFrame, *, plain: bool) -> Floats:
    return terms.matrix(calls)[:, : terms.PLAIN if plain else None]


def _scaled(amounts: Floats, calls: pd.DataFrame, places: Integers, level: int) -> Floats:
    """Return the amounts of some calls, for a fit of all GPUs in units of the peaks of each."""
    if level < _ANY_GPU:
        return amounts[places]
    return amounts[places] * terms.of_peaks(calls.iloc[places])[:, : amounts.shape[1]]


def solve(amounts: Floats, times: Floats) -> Floats:
    """Return non-negative costs that minimise the (clipped) squares of log errors.

    The first guess minimises relative errors; each round solves a linear problem around the last.
    """
    size = np.linalg.norm(amounts / times[:, None], axis=0)
    size[size == 0] = 1.0
    scaled = amounts / size
    costs, _ = nnls(scaled / times[:, None], np.ones_like(times))
    for _ in range(_ROUNDS):
        guess = np.maximum(scaled @ costs, _FLOOR)
        wrong = np.clip(np.log(times / guess), -_CLIP, _CLIP)
        costs, _ = nnls(scaled / guess[:, None], 1.0 + wrong)
    return np.asarray(costs / size)


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


@dataclass(frozen=True)
class Residual:
    """The log errors of physics at the calls that were seen, by kind.

    Calls are near each other if their shapes differ by small factors: a distance of 1 is a factor
    of two in one amount. A correction is a mean of the errors of calls of the same kind, weighted
    by distance, with one more call of error zero in it: far from all that was seen, it vanishes.
    """

    seen: Mapping[tuple[object, ...], tuple[NearestNeighbors, Floats]]

    @classmethod
    def fit(cls, calls: pd.DataFrame, ms: Floats) -> Residual:
        """Return the corrections of distinct calls with a time (`ms`), given what physics says."""
        errors = np.log(calls["ms"].to_numpy(float) / ms)
        errors = np.clip(errors, -_CLIP_OF_NEIGHBOURS, _CLIP_OF_NEIGHBOURS)
        shapes = _shapes(calls)
        seen: dict[tuple[object, ...], tuple[NearestNeighbors, Floats]] = {}
        for key, places in terms.groups(calls, KIND).items():
            near = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(places)))
            seen[key] = near.fit(shapes[places]), errors[places]
        return cls(seen)

    def of(self, calls: pd.DataFrame) -> Floats:
        """Return the log of the factor by which physics is wrong for each call."""
        factors = np.zeros(len(calls))
        shapes = _shapes(calls)
        for key, places in terms.groups(calls, KIND).items():
            if key in self.seen:
                near, errors = self.seen[key]
                distances, neighbours = near.kneighbors(shapes[places])
                weights = np.exp(-((distances / _REACH) ** 2))
                total: Any = (weights * errors[neighbours]).sum(axis=1)
                factors[places] = total / (weights.sum(axis=1) + _PRIOR)
        return factors


def _shapes(calls: pd.DataFrame) -> Floats:
    """Return the shapes of calls as logarithms of amounts, base 2."""
    a = terms.Amounts(calls)
    columns = (
        a.in_bytes, a.out_bytes, a.weight_bytes, a.flops, a.in_channels, a.out_channels, a.pixels,
        a.kernel_h * a.kernel_w, a.groups,
    )  # fmt: skip
    return np.column_stack([np.log2(column + 1.0) for column in columns])


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
