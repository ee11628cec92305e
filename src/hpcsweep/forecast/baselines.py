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

    from numpy.typing import NDArray

    from hpcsweep.forecast.tables import Measured

    Floats = NDArray[np.float64]
    Rival = Callable[[Measured, Measured], tuple[Floats, Floats]]

_BEST: Final = 0.95  # the rate that a device can reach, where no table says it
_ROWS: Final = 50_000


def flops(train: Measured, test: Measured) -> tuple[Floats, Floats]:
    """Return times as operations times a constant per GPU and algorithm."""
    seen, asked = _calls(train), _calls(test)
    works = seen["flops"] > 0
    rate = (seen["ms"] / seen["flops"])[works].groupby(_kind(seen)[works]).median()
    times = asked["flops"] * _kind(asked).map(rate).fillna(rate.median())
    again = seen["flops"] * _kind(seen).map(rate)
    return _answer(train, test, again, times)


def roofline(train: Measured, test: Measured) -> tuple[Floats, Floats]:
    """Return times at the device's peaks, scaled by the median share that it reaches of them."""
    seen, asked = _calls(train), _calls(test)
    bare = _roof(seen, seen)
    share = (seen["ms"] / bare).groupby(_kind(seen)).median()
    times = _roof(asked, seen) * _kind(asked).map(share).fillna(share.median())
    return _answer(train, test, bare * _kind(seen).map(share), times)


def boosting(train: Measured, test: Measured) -> tuple[Floats, Floats]:
    """Return times by gradient boosting on log times, with the raw columns of the table."""
    seen, asked = _calls(train), _calls(test)
    sample = seen.sample(min(len(seen), _ROWS), random_state=0)
    learner = HistGradientBoostingRegressor(random_state=0)
    with threadpool_limits(limits=1):
        learner.fit(_raw(sample, sample), np.log(sample["ms"]))
        times, again = (np.exp(learner.predict(_raw(rows, sample))) for rows in (asked, seen))
    return _answer(train, test, again, times)


ALL: Final[dict[str, Rival]] = {
    "FLOPs times a constant": flops,
    "roofline": roofline,
    "gradient boosting": boosting,
}


def _calls(measured: Measured) -> pd.DataFrame:
    calls = measured.calls
    return calls.assign(flops=calls["flops"].fillna(0), bytes_min=calls["bytes_min"].fillna(0))


def _kind(calls: pd.DataFrame) -> pd.Series[str]:
    return calls["gpu"].astype(str) + " " + calls["algorithm"].astype(str)


def _roof(calls: pd.DataFrame, seen: pd.DataFrame) -> pd.Series[float]:
    """Return the roofline's milliseconds; where no table has peaks, the best rates seen."""
    gpu = gpus.sheet(str(seen["gpu"].iloc[0]))
    peak = float((seen["flops"] / seen["ms"]).quantile(_BEST)) or 1.0
    width = float((seen["bytes_min"] / seen["ms"]).quantile(_BEST)) or 1.0
    if gpu:
        peak, width = 1e9 * gpu.fp32_tflops, 1e6 * gpu.bandwidth_gbs
    moving = calls["bytes_min"].clip(lower=1.0) / width
    return moving.where(moving > calls["flops"] / peak, calls["flops"] / peak)


def _raw(calls: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    codes: dict[str, Any] = {}
    for name in ("gpu", "algorithm", "op"):
        values = {
            value: code for code, value in enumerate(sorted(known[name].astype(str).unique()))
        }
        codes[name] = calls[name].astype(str).map(values).astype(float)
    numbers = [name for name in WORK if known[name].notna().any()]
    return calls[numbers].assign(**codes)


def _answer(
    train: Measured,
    test: Measured,
    again: Any,  # noqa: ANN401 - a column
    times: Any,  # noqa: ANN401 - a column
) -> tuple[Floats, Floats]:
    """Return layer times, and network times: the sums by the factor that they are wrong by."""
    seen, asked = _calls(train), _calls(test)
    sums = pd.Series(np.asarray(again, float), seen["point_id"]).groupby(level=0).sum()
    factor = (train.points["total_ms"] / sums[sums > 0].reindex(train.points.index)).median()
    total = pd.Series(np.asarray(times, float), asked["point_id"]).groupby(level=0).sum()
    return np.asarray(times, float), factor * total.reindex(test.points.index).to_numpy(float)
