"""Finds the fastest algorithm of each convolution, and what a network of these would gain.

A layer keeps the default algorithm unless the interval of another one lies below the default's: a
difference within the noise is no difference. Its fastest pass must be faster, too, since load on
the machine makes passes slower and none faster. Algorithms were measured one after the other, so
the machine may have been slower meanwhile. The layers that do not convolve tell: they do the same
work under every algorithm, so by as much as they differ, the intervals of that algorithm are
widened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from hpcsweep.analysis.dataset import Dataset

_CALL: Final = ["config", "call_index"]
# half of a 95 % interval of a median is 1.96 x 1.2533 x IQR / 1.349 / sqrt(n), of a mean:
_OF_MEDIAN: Final = 1.82
_OF_MEAN: Final = 1.96


def per_layer(data: Dataset, points: pd.DataFrame, default: str = catalog.AUTO) -> pd.DataFrame:
    """Return a row per configuration and convolution call, in call order.

    `config` is the number of the configuration and `default_ms` the time under the default.
    `algorithm` is the fastest that is separated from the default, else the default; `ms` is its
    time, and `saving_ms` what it saves, give or take `half_ms`. `tried` counts the others.

    Raises:
        UsageError: no convolution was timed under the default.

    """
    numbers = pd.DataFrame(
        {"point_id": points["point_id"], "config": dataset.configurations(points)}
    )
    rows = data.of_layers(points).merge(numbers, on="point_id")
    backward = rows.get("direction", pd.Series("", rows.index)) == "backward"
    rows = rows[~backward & rows["algorithm"].isin(catalog.ALGORITHMS)]
    conv = rows["op"] == "conv2d"
    timed = _timed(_as_requested(rows[conv]))
    timed["half"] += (
        timed["ms"]
        * _drift(rows[~conv], default)
        .reindex(pd.MultiIndex.from_frame(timed[["config", "algorithm"]]), fill_value=0.0)
        .to_numpy()
    )
    base = timed[timed["algorithm"] == default]
    if base.empty:
        raise UsageError(
            f"{data.run.layers}: no convolution under `{default}`, which every layer would keep; "
            "--over names another algorithm"
        )
    return _chosen(base, timed[timed["algorithm"] != default])


def half_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    """Return half of the 95 % interval of median and mean of each row; NaN where unknown."""
    known = rows.reindex(columns=["n", "q1_ms", "q3_ms", "std_ms"]).astype(float)
    root = np.sqrt(known["n"].fillna(1.0))
    of_median = _OF_MEDIAN * (known["q3_ms"] - known["q1_ms"]) / root
    return pd.DataFrame({"median_ms": of_median, "mean_ms": _OF_MEAN * known["std_ms"] / root})


def _as_requested(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the calls that ran the algorithm of their point, not a fallback."""
    used = rows.get("algorithm_used", pd.Series(None, rows.index, dtype=object))
    return rows[used.isna() | (used == rows["algorithm"])]


def _timed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the time of each call under each algorithm, and half of its interval.

    That is the median with the quartiles, or the mean with the standard deviation. Of repeats it is
    the median, and the interval covers how they differ.
    """
    known = rows.reindex(columns=["median_ms", "mean_ms"]).astype(float)
    halves = half_intervals(rows)
    of_median = halves["median_ms"]
    half = of_median.fillna(halves["mean_ms"])
    ms = known["median_ms"].where(of_median.notna(), known["mean_ms"])
    least = rows.get("min_ms", np.nan)
    rows = rows.assign(ms=ms.fillna(known["median_ms"]), square=half**2, least=least)
    names = {"layer": "layer", "unique_key": "unique_key"}
    grouped = rows.dropna(subset="ms").groupby([*_CALL, "algorithm"], sort=False).agg(
        ms=("ms", "median"), n=("ms", "size"), spread=("ms", "var"), square=("square", "mean"),
        least=("least", "min"),
        **{name: (column, "first") for name, column in names.items()},
    ).reset_index()  # fmt: skip
    spread = 4 * grouped["spread"].fillna(0.0)
    return grouped.assign(half=np.sqrt((grouped["square"] + spread) / grouped["n"]))


def _drift(rows: pd.DataFrame, default: str) -> pd.Series[float]:
    """Return by how much the other layers differ from the default's, as a share of their time."""
    same_work = rows[(rows["layer"] != "__other__") & (rows["median_ms"] > 0)]
    times = same_work.groupby([*_CALL, "algorithm"])["median_ms"].median()
    own = times.index.get_level_values("algorithm") == default
    ratios = np.log(times / times[own].droplevel("algorithm"))
    return np.expm1(ratios.groupby(["config", "algorithm"]).median().abs()).dropna()


def _chosen(base: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the default's rows with the fastest algorithm that is separated from it."""
    default = base.set_index(_CALL)
    pairs = others.merge(base[[*_CALL, "ms", "half", "least"]], on=_CALL, suffixes=("", "_default"))
    below = pairs["ms"] + pairs["half"] < pairs["ms_default"] - pairs["half_default"]
    below &= ~(pairs["least"] >= pairs["least_default"])  # one that is unknown tells nothing
    best = pairs[below].sort_values("ms").groupby(_CALL).first()
    found = best.reindex(default.index)
    saving = found["ms_default"] - found["ms"]
    half = np.sqrt(found["half"] ** 2 + found["half_default"] ** 2)
    table = default[["layer", "unique_key"]].assign(
        default_ms=default["ms"],
        algorithm=found["algorithm"].fillna(base["algorithm"].iloc[0]),
        ms=found["ms"].fillna(default["ms"]),
        saving_ms=saving.fillna(0.0),
        half_ms=half.fillna(0.0),
        tried=pairs.groupby(_CALL).size().reindex(default.index, fill_value=0),
    )
    return table.sort_index().reset_index()
