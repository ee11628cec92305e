"""Finds the fastest algorithm of each convolution, by the layers of a collected sweep.

A layer keeps the default algorithm unless `verdicts.judge` calls another one faster, by the times
of the two in this layer alone. The winner of many is partly lucky, so what it saves is told by the
visits that did not choose it. What all layers together save in each visit is the noise of what the
network would gain: what a visit did to all layers at once is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset, verdicts
from hpcsweep.errors import UsageError

_CALL: Final = ["config", "call_index"]
_KEY: Final = [*_CALL, "algorithm"]
_ONCE: Final = 2 * verdicts.ONCE**2  # variance of a gap between two single visits


@dataclass(frozen=True)
class Chosen:
    """The choice for each convolution call, and what all choices of a configuration save.

    `calls` has a row per configuration and call, in call order. `config` is the number of the
    configuration and `default_ms` the time under the default. `algorithm` is the fastest that beats
    the default, else the default. It saves `saving_ms`, so its time is `ms`. `tried` counts rivals.

    `savings` has a row per configuration, and the ms that each visit says in its column; NaN in
    visits that the configuration does not have.
    """

    calls: pd.DataFrame
    savings: pd.DataFrame


def per_layer(data: dataset.Dataset, points: pd.DataFrame, default: str = catalog.AUTO) -> Chosen:
    """Choose for each convolution of each configuration.

    `UsageError` where no convolution was timed under the default.
    """
    control = dataset.cells(points, "control_ms", np.nan).astype(float)
    numbers = points[["point_id"]].assign(
        config=dataset.configurations(points),
        visit=dataset.visits(points),
        control=np.log(control.where(control > 0)),
    )
    rows = data.of_layers(points).drop(columns="visit").merge(numbers, on="point_id")
    rows = _with_logs(rows[~dataset.gradients(rows) & rows["algorithm"].map(catalog.is_algorithm)])
    times = rows[(rows["op"] == "conv2d") & ~dataset.fell_back(rows)]
    if default not in set(times["algorithm"]):
        raise UsageError(
            f"{data.sweep_dir.layers}: no convolution under `{default}`, which every layer would "
            "keep; --over names another algorithm"
        )
    return choose(times, default)


def choose(times: pd.DataFrame, default: str) -> Chosen:
    """Choose for each call by its rows, which have the time `ms` and its logarithm `log`."""
    of_default = times[times["algorithm"] == default].groupby(_CALL)
    calls = of_default.agg(
        layer=("layer", "first"),
        unique_key=("unique_key", "first"),
        default_ms=("ms", "median"),
    )
    gaps = _gaps(times, default)
    tried = gaps.groupby(_KEY).size().groupby(level=_CALL).size()
    gaps = gaps.merge(_faster(times, default), on=_KEY)
    means = gaps.groupby(_KEY)["gap"].mean().sort_values()
    fastest = means.reset_index("algorithm").groupby(level=_CALL)["algorithm"].last()
    saved = 1 - np.exp(-_without_luck(gaps))
    savings = saved.mul(calls["default_ms"].reindex(saved.index), axis=0)
    calls["algorithm"] = fastest.reindex(calls.index).astype(object).fillna(default)
    calls["saving_ms"] = savings.mean(axis=1).reindex(calls.index).fillna(0.0)
    calls["ms"] = calls["default_ms"] - calls["saving_ms"]
    calls["tried"] = tried.reindex(calls.index, fill_value=0)
    return Chosen(calls.sort_index().reset_index(), _by_configuration(savings))


def _by_configuration(savings: pd.DataFrame) -> pd.DataFrame:
    """Return what the calls of each configuration save in each visit that it has.

    A call that lacks a visit saves there what it saves on average.
    """
    filled = savings.T.fillna(savings.mean(axis=1)).T
    has_visit = savings.notna().groupby(level="config").any()
    return filled.groupby(level="config").sum().where(has_visit)


def _with_logs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have a time, with its logarithm and the variance of that in a visit."""
    ms = dataset.first_known(rows, "median_ms", "mean_ms")
    halves = verdicts.half_intervals(rows)
    error = halves["median_ms"].fillna(halves["mean_ms"]) / ms / verdicts.OF_MEAN
    timed = rows.assign(ms=ms, log=np.log(ms.where(ms > 0)), within=error**2)
    return timed.dropna(subset="log").fillna({"within": 0.0})


def _faster(times: pd.DataFrame, default: str) -> pd.DataFrame:
    """Return the calls and algorithms that are faster than the default, by `verdicts.judge`."""
    cells = times.reindex(columns=[*_KEY, "visit", "log", "within", "control"]).assign(origin="")
    is_default = cells["algorithm"] == default
    rivals = cells[~is_default]
    pairs = rivals[_KEY].drop_duplicates().reset_index(drop=True)
    pairs["pair"] = pairs.index
    own = cells[is_default].drop(columns="algorithm").merge(pairs, on=_CALL)
    both = pd.concat([rivals.merge(pairs, on=_KEY).assign(side=0), own.assign(side=1)])
    judged = pairs.join(verdicts.judge(both), on="pair")
    is_faster = judged["differs"].eq(other=True) & (judged["gap"] > 0)
    return judged.loc[is_faster, _KEY]


def _gaps(times: pd.DataFrame, default: str) -> pd.DataFrame:
    """Return a row per call, rival and visit that has both, with its `gap`.

    A gap is the logarithm of the default's time over the rival's: above 0 it saves time.
    """
    keys = [*_CALL, "visit"]
    is_default = times["algorithm"] == default
    own = times[is_default].groupby(keys)["log"].mean()
    rivals = times[~is_default].groupby([*_KEY, "visit"])["log"].mean()
    both = rivals.reset_index().merge(own.reset_index(), on=keys, suffixes=("", "_default"))
    return both[[*_KEY, "visit"]].assign(gap=both["log_default"] - both["log"])


def _without_luck(gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the gap of each call's winner, by visit, without the luck that made it win.

    Each visit tells the gap of the rival that the other visits would choose. Of a single visit the
    gap is drawn towards nothing by as much as it may be noise (James and Stein's estimate).
    """
    gap = gaps["gap"]
    rivals = gap.groupby([gaps[name] for name in _KEY])
    others = (rivals.transform("sum") - gap) / (rivals.transform("size") - 1)
    drawn = gap * (1 - _ONCE / gap**2).clip(lower=0.0)
    rows = gaps.assign(told=gap.where(others.notna(), drawn), others=others.fillna(gap))
    told = rows.sort_values("others").groupby([*_CALL, "visit"])["told"].last()
    return told.unstack("visit")  # noqa: PD010
