"""Finds the fastest algorithm of each convolution, by the layers of a collected sweep.

A layer keeps the default algorithm unless `verdicts.judge` calls another one faster, by the times
of the two in this layer alone. The winner of many is partly lucky, so what it saves is told by the
visits that did not choose it. What a visit did to all layers of an algorithm counts as noise that
these share in what a network would gain (`best` sums it up).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import scipy

from hpcsweep import catalog
from hpcsweep.analysis import dataset, verdicts
from hpcsweep.errors import UsageError

_CALL: Final = ["config", "call_index"]
_PAIR: Final = ["config", "algorithm"]
_KEY: Final = [*_CALL, "algorithm"]


def per_layer(
    data: dataset.Dataset, points: pd.DataFrame, default: str = catalog.AUTO
) -> pd.DataFrame:
    """Return a row per configuration and convolution call, in call order.

    `config` is the number of the configuration and `default_ms` the time under the default.
    `algorithm` is the fastest that beats the default, else the default. It saves `saving_ms` with
    the variance `own` of this layer, and `shared` with all layers that have this algorithm, so its
    time is `ms`. `tried` counts the others. `UsageError` where no convolution was timed under the
    default.
    """
    control = dataset.cells(points, "control_ms", np.nan).astype(float)
    numbers = points[["point_id"]].assign(
        config=dataset.configurations(points), visit=dataset.visits(points),
        control=np.log(control.where(control > 0)),
    )  # fmt: skip
    rows = data.of_layers(points).drop(columns="visit").merge(numbers, on="point_id")
    rows = _with_logs(rows[~dataset.gradients(rows) & rows["algorithm"].map(catalog.is_algorithm)])
    times = rows[(rows["op"] == "conv2d") & ~dataset.fell_back(rows)]
    if default not in set(times["algorithm"]):
        raise UsageError(
            f"{data.sweep_dir.layers}: no convolution under `{default}`, which every layer would "
            "keep; --over names another algorithm"
        )
    return choose(times, default)


def choose(times: pd.DataFrame, default: str) -> pd.DataFrame:
    """Return the default's rows with the fastest algorithm that beats it (see `per_layer`)."""
    rows = times[times["algorithm"] == default].groupby(_CALL).agg(
        layer=("layer", "first"), unique_key=("unique_key", "first"), default_ms=("ms", "median")
    )  # fmt: skip
    visits = _visits(times, default)
    gaps = _gaps(visits)
    passed = gaps[gaps.index.isin(_faster(times, default))]
    best = passed.sort_values("gap", ascending=False).reset_index("algorithm")
    best = best.groupby(level=_CALL).first().reindex(rows.index)
    saved = _without_luck(visits, passed).reindex(rows.index).astype(float)
    ms = rows["default_ms"] * np.exp(-saved.fillna(0.0))
    return rows.assign(
        algorithm=best["algorithm"].astype(object).fillna(default), ms=ms,
        saving_ms=rows["default_ms"] - ms,
        own=ms**2 * best["own"].astype(float).fillna(0.0),
        shared=ms**2 * best["shared"].astype(float).fillna(0.0),
        tried=gaps.groupby(level=_CALL).size().reindex(rows.index, fill_value=0),
    ).sort_index().reset_index()  # fmt: skip


def _with_logs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have a time, with its logarithm and the variance of that in a visit."""
    ms = dataset.first_known(rows, "median_ms", "mean_ms")
    halves = verdicts.half_intervals(rows)
    error = halves["median_ms"].fillna(halves["mean_ms"]) / ms / verdicts.OF_MEAN
    timed = rows.assign(ms=ms, log=np.log(ms.where(ms > 0)), within=error**2)
    return timed.dropna(subset="log").fillna({"within": 0.0})


def _faster(times: pd.DataFrame, default: str) -> pd.MultiIndex:
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
    return pd.MultiIndex.from_frame(judged.loc[is_faster, _KEY])


def _visits(times: pd.DataFrame, default: str) -> pd.DataFrame:
    """Return a row per call, rival and visit that has both: `gap`, and its variance `within`.

    A gap is the logarithm of the default's time over the rival's: above 0 it saves time.
    """
    keys = [*_CALL, "visit"]
    mine = times["algorithm"] == default
    own = times[mine].groupby(keys)[["log", "within"]].mean()
    rivals = times[~mine].groupby([*_KEY, "visit"])[["log", "within"]].mean()
    both = rivals.reset_index().merge(own.reset_index(), on=keys, suffixes=("", "_default"))
    return both[[*_KEY, "visit"]].assign(
        gap=both["log_default"] - both["log"], within=both["within"] + both["within_default"]
    )


def _gaps(visits: pd.DataFrame) -> pd.DataFrame:
    """Return a row per call and rival: `gap` and its variances, for what the network would gain.

    `own` is that of this layer, `shared` what all layers of a configuration's rival have in common.
    """
    gaps = visits.groupby(_KEY)[["gap", "within"]].mean()
    within = gaps["within"].to_numpy()
    own = np.zeros(len(gaps))
    shared = np.zeros(len(gaps))
    wide = visits.set_index([*_KEY, "visit"])["gap"].unstack("visit").to_numpy()  # noqa: PD010
    for place in gaps.groupby(level=_PAIR).indices.values():
        logs = wide[place]
        logs = logs[:, ~np.isnan(logs).all(axis=0)]  # visits that this rival has
        own[place], shared[place] = _variances(logs, within[place])
    return gaps.assign(own=own, shared=shared)


def _variances(logs: verdicts.Floats, within: verdicts.Floats) -> tuple[verdicts.Floats, ...]:
    """Return the variances of the mean gaps of one rival, its own and the shared one of each call.

    `logs` has a row per call and a column per visit, `within` the variance of a call in a visit.
    """
    visits = (~np.isnan(logs)).sum(axis=1)
    noise = verdicts.scatter(logs, within)
    own, shared, _ = noise.of_means(visits, logs.shape[1])
    if noise.is_common:  # few visits tell it: as wide as Student's t makes an interval
        shared = shared * (scipy.special.stdtrit(noise.shared_df, 0.975) / verdicts.OF_MEAN) ** 2
    once = visits < verdicts.VISITS
    alone = within + 2 * verdicts.ONCE**2
    return np.where(once, alone, own), np.where(once, 0.0, shared)


def _without_luck(visits: pd.DataFrame, passed: pd.DataFrame) -> pd.Series[float]:
    """Return the gap of each call's winner without the luck that made it win.

    Each visit tells the gap of the rival that the other visits would choose. Of a single visit the
    gap is drawn towards nothing by as much as it may be noise (James and Stein's estimate).
    """
    rows = visits[[*_KEY, "visit", "gap"]].merge(passed[["own", "shared"]], on=_KEY)
    gap = rows["gap"]
    rivals = gap.groupby([rows[name] for name in _KEY])
    others = (rivals.transform("sum") - gap) / (rivals.transform("size") - 1)
    drawn = gap * (1 - (rows["own"] + rows["shared"]) / gap**2).clip(lower=0.0)
    rows["told"] = gap.where(others.notna(), drawn)
    ranked = rows.assign(others=others.fillna(gap)).sort_values("others")
    return ranked.groupby([*_CALL, "visit"])["told"].last().groupby(level=_CALL).mean()
