"""What the devices of calls can do, and how much of that shows in their times.

A sheet (`catalog/gpus.csv`) says what a device can do; of one without a sheet its best calls do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hpcsweep.catalog import gpus
from hpcsweep.forecast.terms import SIZES, Floats, groups

if TYPE_CHECKING:
    import pandas as pd

# Of calls by their rates: the device is at its peak there, and the very best may be mistakes.
_BEST: Final = 0.95
_LAUNCH_MS: Final = 0.01  # no roofline is below it
_SHAPE: Final = ["ran", "direction", "dtype", *SIZES]  # what makes two calls equal
_COMMON: Final = 100  # equal calls of two devices; those of fewer are of a few kinds alone
# The weight of the mean of all ratios of two devices beside their variance: it is one figure, and
# may have another cause, such as the host.
_OF_MEAN: Final = 0.25


class Rates(NamedTuple):
    """What a device can do: 10^12 operations and 10^9 bytes in a second."""

    tflops: float = 10.0
    gbs: float = 1000.0


@dataclass(frozen=True)
class Devices:
    """The rates of devices, and how their times follow from them."""

    reached: Mapping[tuple[Any, ...], Rates]  # by those without a sheet: GPU and dtype
    shown: float = 1.0  # the power of rates by which times differ; 0 where rates do not matter

    @classmethod
    def of(cls, calls: pd.DataFrame) -> Devices:
        """Return what calls with a time (`ms`) tell of their devices."""
        reached = {}
        for key, places in groups(calls, ("gpu", "dtype")).items():
            if gpus.sheet(str(key[0])) is None:
                some = calls.iloc[places]
                rates = some[["flops", "bytes_min"]].fillna(0.0).div(some["ms"], axis=0)
                flops, moved = rates.quantile(_BEST)
                # no rate is zero: logarithms are taken
                reached[key] = Rates(max(flops * 1e-9, 1e-3), max(moved * 1e-6, 1e-2))
        devices = cls(reached)
        return replace(devices, shown=_shown(devices, calls))

    def slower(self, calls: pd.DataFrame) -> Floats:
        """Return how many times longer than on a usual device an operation takes, and a byte."""
        rates = np.empty((len(calls), len(Rates._fields)))
        for key, places in groups(calls, ("gpu", "dtype")).items():
            rates[places] = self._rates(*key)
        return np.asarray((np.array(Rates()) / rates) ** self.shown)

    def roofline(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds of calls at the rates of their devices."""
        usual = Rates()
        operation, byte = self.slower(calls).T
        works = calls["flops"].fillna(0.0).to_numpy(float) / usual.tflops * 1e-9
        moves = calls["bytes_min"].fillna(0.0).to_numpy(float) / usual.gbs * 1e-6
        return np.asarray(np.log(np.maximum(works * operation, moves * byte) + _LAUNCH_MS))

    def _rates(self, name: str, dtype: str) -> Rates:
        gpu = gpus.sheet(str(name))
        if gpu is None:
            return self.reached.get((name, dtype), Rates())
        # of a type that no sheet lists, what float32 reaches
        return Rates(gpu.peak(str(dtype)) or gpu.fp32_tflops, gpu.bandwidth_gbs)


def _shown(devices: Devices, calls: pd.DataFrame) -> float:
    """Return by which power of the ratio of their rooflines the times of devices differ.

    Each pair tells it by equal calls. It is 1 where sheets explain the times, or where no two
    devices have equal calls, and near 0 where something else takes the time, such as copies to and
    from the host. Where times scatter, it is as likely 1.
    """
    logs = calls[["gpu", *_SHAPE]].fillna(0)
    logs["ms"] = np.log(calls["ms"])
    logs["roofline"] = devices.roofline(calls)
    means = logs.groupby(["gpu", *_SHAPE], observed=True)[["ms", "roofline"]].mean()
    names = means.index.unique("gpu")
    together = 0.0
    of_rooflines = 0.0
    for one, other in itertools.combinations(names, 2):
        ratios = (means.loc[one] - means.loc[other]).dropna()
        if len(ratios) < _COMMON:
            continue
        ms = ratios["ms"].to_numpy()
        roofline = ratios["roofline"].to_numpy()
        of_both = np.cov(ms, roofline, ddof=0)[0, 1] + _OF_MEAN * ms.mean() * roofline.mean()
        of_roofline = roofline.var() + _OF_MEAN * roofline.mean() ** 2
        power = np.clip(of_both / of_roofline, 0.0, 1.0) if of_roofline else 1.0
        scatter = (ms - power * roofline).var()
        together += of_both + scatter
        of_rooflines += of_roofline + scatter
    return float(np.clip(together / of_rooflines, 0.0, 1.0)) if of_rooflines else 1.0
