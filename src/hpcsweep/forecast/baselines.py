"""What a prediction has to beat: FLOPs, the roofline, and boosting on raw columns.

Each learns from the same points. Its sum over the layers becomes a network's time by the median
of the factor between both, so that none suffers from what happens between layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from hpcsweep.catalog import gpus
from hpcsweep.forecast.tables import WORK

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.forecast.tables import Measured
    from hpcsweep.forecast.terms import Floats

_BEST: Final = 0.95  # the rate that a device can reach, where no table says it
_ROWS: Final = 50_000


def times(name: str, train: Measured, test: Measured) -> tuple[Floats, Floats]:
    """Return what a baseline says of layers and, by the factor of its sums, of networks."""
    seen, asked = _calls(train), _calls(test)
    again, ms = (pd.Series(np.asarray(column, float)) for column in ALL[name](seen, asked))
    sums = again.groupby(seen["point_id"].to_numpy()).sum()
    factor = (train.points["total_ms"] / sums[sums > 0].reindex(train.points.index)).median()
    totals = ms.groupby(asked["point_id"].to_numpy()).sum().reindex(test.points.index)
    return ms.to_numpy(), factor * totals.to_numpy(float)


def _flops(seen: pd.DataFrame, asked: pd.DataFrame) -> tuple[Any, Any]:
    """Return times as operations times a constant per GPU and algorithm."""
    works = seen["flops"] > 0
    rate = (seen["ms"] / seen["flops"])[works].groupby(_kind(seen)[works]).median()
    again = seen["flops"] * _kind(seen).map(rate)
    return again, asked["flops"] * _kind(asked).map(rate).fillna(rate.median())


def _roofline(seen: pd.DataFrame, asked: pd.DataFrame) -> tuple[Any, Any]:
    """Return times at the device's peaks, scaled by the median share that it reaches of them."""
    bare = _roof(seen, seen)
    share = (seen["ms"] / bare).groupby(_kind(seen)).median()
    again = bare * _kind(seen).map(share)
    return again, _roof(asked, seen) * _kind(asked).map(share).fillna(share.median())


def _boosting(seen: pd.DataFrame, asked: pd.DataFrame) -> tuple[Any, Any]:
    """Return times by gradient boosting on log times, with the raw columns of the table."""
    sample = seen.sample(min(len(seen), _ROWS), random_state=0)
    learner = HistGradientBoostingRegressor(random_state=0)
    with threadpool_limits(limits=1):
        learner.fit(_raw(sample, sample), np.log(sample["ms"]))
        again, ms = (np.exp(learner.predict(_raw(rows, sample))) for rows in (seen, asked))
    return again, ms


# each returns the times of calls that it has seen, and of those that are asked for
ALL: Final[dict[str, Callable[[pd.DataFrame, pd.DataFrame], tuple[Any, Any]]]] = {
    "FLOPs times a constant": _flops,
    "roofline": _roofline,
    "gradient boosting": _boosting,
}


def _calls(measured: Measured) -> pd.DataFrame:
    return measured.calls.fillna({"flops": 0, "bytes_min": 0})


def _kind(calls: pd.DataFrame) -> pd.Series[str]:
    return calls["gpu"].astype(str) + " " + calls["algorithm"].astype(str)


def _roof(calls: pd.DataFrame, seen: pd.DataFrame) -> pd.Series[float]:
    """Return the roofline's milliseconds; where no table has peaks, the best rates seen."""
    gpu = gpus.sheet(str(seen["gpu"].iloc[0]))
    peak = float((seen["flops"] / seen["ms"]).quantile(_BEST)) or 1.0
    width = float((seen["bytes_min"] / seen["ms"]).quantile(_BEST)) or 1.0
    if gpu:
        peak, width = 1e9 * gpu.fp32_tflops, 1e6 * gpu.bandwidth_gbs
    moving, working = calls["bytes_min"].clip(lower=1.0) / width, calls["flops"] / peak
    return moving.where(moving > working, working)


def _raw(calls: pd.DataFrame, seen: pd.DataFrame) -> pd.DataFrame:
    codes: dict[str, Any] = {}
    for name in ("gpu", "algorithm", "op"):
        values = sorted(seen[name].astype(str).unique())
        places = {value: place for place, value in enumerate(values)}
        codes[name] = calls[name].astype(str).map(places).astype(float)
    numbers = [name for name in WORK if seen[name].notna().any()]
    return calls[numbers].assign(**codes)
