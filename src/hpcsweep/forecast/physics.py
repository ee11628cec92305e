"""What physics knows of a layer call: its time is a sum of costs that cannot be negative.

A call costs something, each byte in, out and of weights does, and each operation. A fit is of calls
of one operator, algorithm and device. Where there are too few of them a wider kind serves: any
setting, any algorithm, any operator, and at last any GPU, in units of its rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.optimize import nnls

from hpcsweep.catalog import gpus
from hpcsweep.forecast import terms
from hpcsweep.forecast.devices import Devices
from hpcsweep.forecast.terms import Floats, Integers

if TYPE_CHECKING:
    import pandas as pd

KIND: Final = ("gpu", "setting", "dtype", "direction", "op", "ran")
_NAMES: Final = ("op", "direction", "ran")
# Kinds of calls, narrow to wide: the columns whose values they share.
LEVELS: Final = (
    KIND,
    ("gpu", "direction", "op", "ran"),
    ("gpu", "direction", "op"),
    ("gpu", "direction", "multiplies"),
    ("direction", "multiplies"),
)
_ANY_GPU: Final = len(LEVELS) - 1
_OF_A_GPU: Final = _ANY_GPU - 1  # from here on any number of calls will do
_FEWEST: Final = 12  # distinct convolutions of a kind: two for each cost, and two
_FEWEST_OTHERS: Final = 3  # distinct calls of another operator, whose time is that of its bytes
_WINOGRAD_SAVES: Final = 4.0  # the most multiplications that F(2), 5x5, saves is 2.8
_UNNAMED: Final = ("-", "auto", "unknown")
_FLOOR: Final = 1e-6  # ms, so that logarithms exist


@dataclass(frozen=True)
class Physics:
    """The cost of a unit of each amount, by kind of call."""

    costs: Mapping[tuple[object, ...], Floats]
    devices: Devices

    def times(self, calls: pd.DataFrame) -> Floats:
        """Return milliseconds of calls, each by the narrowest fit that there is."""
        ms = np.full(len(calls), np.nan)
        amounts = _costly(calls)
        for level, names in enumerate(LEVELS):
            todo = np.flatnonzero(np.isnan(ms))
            if not len(todo):
                break
            rest = calls.iloc[todo]
            for key, found in terms.groups(rest, names).items():
                costs = self.costs.get((level, *key))
                if costs is not None:
                    places = todo[found]
                    ms[places] = _in_units(amounts, calls, places, level, self.devices) @ costs
        floor = np.maximum(roofline(calls), _FLOOR)
        return np.fmax(ms, floor)

    def logs(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds of calls."""
        return np.asarray(np.log(self.times(calls)))


def fit(calls: pd.DataFrame, devices: Devices) -> Physics:
    """Return the costs that explain the times of distinct calls (`ms`) best, by relative error."""
    amounts = _costly(calls)
    ms = calls["ms"].to_numpy(float)
    convolves = calls["kernel_h"].to_numpy(float) > 0
    costs: dict[tuple[object, ...], Floats] = {}
    for level, names in enumerate(LEVELS):
        for key, places in terms.groups(calls, names).items():
            fewest = _FEWEST if convolves[places[0]] else _FEWEST_OTHERS
            if len(places) >= fewest or level >= _OF_A_GPU:
                some = _in_units(amounts, calls, places, level, devices)
                kind = (level, *key)
                costs[kind] = _solve(some, ms[places])
    return Physics(costs, devices)


def _costly(calls: pd.DataFrame) -> Floats:
    """Return the call, its megabytes in, out and of weights, and its gigaflops: a row for each."""
    work = terms.amounts(calls)
    moved = work[["in_bytes", "out_bytes", "weight_bytes"]] * 1e-6
    return np.column_stack([np.ones(len(calls)), moved, work["flops"] * 1e-9])


def _in_units(
    amounts: Floats, calls: pd.DataFrame, places: Integers, level: int, devices: Devices
) -> Floats:
    """Return the amounts of some calls; for all GPUs as the time that they take at each's rates."""
    if level < _ANY_GPU:
        return amounts[places]
    flop, byte = devices.slower(calls.iloc[places]).T
    return amounts[places] * np.column_stack([np.ones_like(byte), byte, byte, byte, flop])


def _solve(amounts: Floats, ms: Floats) -> Floats:
    """Return the non-negative costs that minimise the squares of relative errors.

    Such costs are too low where times scatter, so they are scaled until as many times lie above.
    """
    relative = amounts / ms[:, None]
    size = np.linalg.norm(relative, axis=0)
    size[size == 0] = 1.0
    # a triangle has the same solution as the many rows that it stands for
    orthogonal, triangle = np.linalg.qr(relative / size)
    costs = nnls(triangle, orthogonal.sum(axis=0))[0] / size
    return np.asarray(costs * np.median(ms / np.maximum(amounts @ costs, _FLOOR)))


def roofline(calls: pd.DataFrame) -> Floats:
    """Return the milliseconds below which no call can be; 0 where the device has no sheet.

    Transforms need fewer operations than the definition, and operands may be in the cache.
    """
    floor = np.zeros(len(calls))
    flops = calls["flops"].fillna(0.0).to_numpy(float)
    moved = calls["bytes_min"].fillna(0.0).to_numpy(float)
    ran = calls["ran"].astype(str)
    saves = ran.str.startswith("winograd") | ran.isin(_UNNAMED)  # a library may have taken it
    fewer = np.where(saves, _WINOGRAD_SAVES, 1.0)
    fewer[ran.str.startswith("fft")] = np.inf
    for (name, dtype), places in terms.groups(calls, ("gpu", "dtype")).items():
        gpu = gpus.sheet(str(name))
        if gpu is None:
            continue
        peak = gpu.peak(str(dtype), tf32=True) or np.inf
        works = flops[places] / fewer[places] / (1e9 * peak)
        beyond = np.maximum(moved[places] - 1e6 * gpu.l2_mb, 0.0)
        floor[places] = np.maximum(works, beyond / (1e6 * gpu.bandwidth_gbs))
    return floor


def prepared(calls: pd.DataFrame) -> pd.DataFrame:
    """Return calls with the columns that name their kind, `ran` and `multiplies` among them."""
    if "ran" in calls:
        ran = calls["ran"]
    else:  # what ran; where a table does not say, what was asked of a convolution
        used = calls["algorithm_used"].astype(object)
        asked = calls["algorithm"].astype(object).where(calls["kernel_h"].notna())
        ran = used.where(used.notna(), asked)
    named = calls.assign(
        ran=ran.astype(object).where(ran.notna(), "-"), multiplies=calls["flops"].fillna(0) > 0
    )
    # few names in many rows: a category is looked up once, not in each row
    return named.astype(dict.fromkeys(_NAMES, str)).astype(dict.fromkeys(_NAMES, "category"))


def distinct(calls: pd.DataFrame) -> pd.DataFrame:
    """Return each distinct call once, with its median time."""
    groups = calls.groupby([*KIND, "unique_key", "batch_size"], observed=True, sort=False)
    return groups.first().assign(ms=groups["ms"].median()).reset_index()
