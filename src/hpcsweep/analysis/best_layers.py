"""Finds the fastest algorithm of each convolution, and what a network of these would gain.

A layer keeps the default algorithm unless `verdicts.judge` calls another one faster, by the times
of the two in this layer alone. The winner of many is partly lucky, so what it saves is told by the
visits that did not choose it. What a visit did to all layers of an algorithm counts as noise that
these share in what a network would gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
import scipy

from hpcsweep import catalog
from hpcsweep.analysis import dataset, verdicts
from hpcsweep.errors import UsageError

Pair = tuple[int, str]  # configuration and algorithm

_CALL: Final = ["config", "call_index"]
_PAIR: Final = ["config", "algorithm"]
_KEY: Final = [*_CALL, "algorithm"]
_GAP: Final = [*_CALL, "algorithm", "gap", "own", "shared", "visit", "by_visit"]


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
    gaps = _gaps(times, default)
    rows = times[times["algorithm"] == default].groupby(_CALL).agg(
        layer=("layer", "first"), unique_key=("unique_key", "first"), default_ms=("ms", "median")
    )  # fmt: skip
    rivals = gaps.groupby(_CALL)
    faster = _faster(times, default)
    keys = zip(*(gaps[name] for name in _KEY), strict=True)
    passed = gaps[np.array([key in faster for key in keys], dtype=bool)]
    best = passed.sort_values("gap", ascending=False).groupby(_CALL).first().reindex(rows.index)
    gap = _without_luck(passed).reindex(rows.index).astype(float)
    ms = rows["default_ms"] * np.exp(-gap.fillna(0.0))
    return rows.assign(
        algorithm=best["algorithm"].astype(object).fillna(default), ms=ms,
        saving_ms=rows["default_ms"] - ms,
        own=ms**2 * best["own"].astype(float).fillna(0.0),
        shared=ms**2 * best["shared"].astype(float).fillna(0.0),
        tried=rivals.size().reindex(rows.index, fill_value=0),
    ).sort_index().reset_index()  # fmt: skip


def _with_logs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have a time, with its logarithm and the variance of that in a visit."""
    ms = dataset.first_known(rows, "median_ms", "mean_ms")
    halves = verdicts.half_intervals(rows)
    error = halves["median_ms"].fillna(halves["mean_ms"]) / ms / verdicts.OF_MEAN
    timed = rows.assign(ms=ms, log=np.log(ms.where(ms > 0)), within=error**2)
    return timed.dropna(subset="log").fillna({"within": 0.0})


def _faster(times: pd.DataFrame, default: str) -> set[tuple[Any, ...]]:
    """Return the calls and algorithms that are faster than the default, by `verdicts.judge`."""
    cells = times.reindex(columns=[*_KEY, "visit", "log", "within", "control"]).assign(origin="")
    is_default = cells["algorithm"] == default
    rivals = cells[~is_default]
    pairs = rivals[_KEY].drop_duplicates().reset_index(drop=True)
    pairs["pair"] = pairs.index
    own = cells[is_default].drop(columns="algorithm").merge(pairs, on=_CALL)
    both = pd.concat([rivals.merge(pairs, on=_KEY).assign(side=0), own.assign(side=1)])
    judged = pairs.join(verdicts.judge(both), on="pair")
    found = judged.loc[judged["differs"].eq(other=True) & (judged["gap"] > 0), _KEY]
    return {*found.itertuples(index=False, name=None)}


class _Gaps(NamedTuple):
    """Gaps to the default: a row of `logs` per call, a column per visit, NaN where one is missing.

    A gap is the logarithm of the default's time over the algorithm's: above 0 it saves time.
    `within` is the variance of each call's gap in a visit.
    """

    calls: verdicts.Floats
    visits: verdicts.Floats
    logs: verdicts.Floats
    within: verdicts.Floats


def _paired(rows: pd.DataFrame, default: str) -> Iterator[tuple[Pair, _Gaps]]:
    """Yield the gaps of each configuration and algorithm."""
    keys = [*_CALL, "visit"]
    mine = rows["algorithm"] == default
    own = rows[mine].groupby(keys)[["log", "within"]].mean()
    times = rows[~mine].groupby([*_PAIR, "call_index", "visit"])[["log", "within"]].mean()
    both = times.reset_index().merge(own.reset_index(), on=keys, suffixes=("", "_default"))
    both["within"] += both["within_default"]
    gap = (both["log_default"] - both["log"]).to_numpy()
    call = both["call_index"].to_numpy()
    visit = both["visit"].to_numpy()
    within = both.groupby([*_PAIR, "call_index"])["within"].mean().to_numpy()
    for pair, place in both.groupby(_PAIR).indices.items():  # both are in the order of pairs
        calls, row = np.unique(call[place], return_inverse=True)
        visits, column = np.unique(visit[place], return_inverse=True)
        logs = np.full((len(calls), len(visits)), np.nan)
        logs[row, column] = gap[place]
        yield pair, _Gaps(calls, visits, logs, within[: len(calls)])
        within = within[len(calls) :]


def _gaps(times: pd.DataFrame, default: str) -> pd.DataFrame:
    """Return a row per call and rival: `gap` and its variances, for what the network would gain.

    `visit` and `by_visit` are the visits and their gaps.
    """
    columns_of: dict[str, list[Any]] = {name: [] for name in _GAP}
    for (config, algorithm), (calls, visit, logs, within) in _paired(times, default):
        visits = (~np.isnan(logs)).sum(axis=1)
        runs = logs.shape[1]
        noise = verdicts.scatter(logs, within)
        mean = np.nanmean(logs, axis=1)
        own, shared, _ = noise.of_means(visits, runs)
        once = visits < verdicts.VISITS
        own = np.where(once, within + 2 * verdicts.ONCE**2, own)
        if noise.is_common:  # few visits tell it
            shared = (
                shared * (scipy.special.stdtrit(noise.shared_df, 0.975) / verdicts.OF_MEAN) ** 2
            )
        columns = (
            [config] * len(calls), calls, [algorithm] * len(calls), mean, own,
            np.where(once, 0, shared), [visit] * len(calls), logs,
        )  # fmt: skip
        for name, values in zip(_GAP, columns, strict=True):
            columns_of[name] += list(values)
    return pd.DataFrame(columns_of)


def _without_luck(passed: pd.DataFrame) -> pd.Series[float]:
    """Return the gap of each call's winner without the luck that made it win.

    Each visit tells the gap of the rival that the other visits would choose. Of a single visit the
    gap is drawn towards nothing by as much as it may be noise (James and Stein's estimate).
    """
    both: Any = ["visit", "by_visit"]
    by_visit = passed.explode(both).dropna(subset="by_visit").reset_index(drop=True)
    gap = by_visit["by_visit"].astype(float)
    grouped = gap.groupby([by_visit[name] for name in (*_CALL, "algorithm")])
    others = (grouped.transform("sum") - gap) / (grouped.transform("size") - 1)
    total = (by_visit["own"] + by_visit["shared"]).astype(float)
    told = gap.where(others.notna(), gap * (1 - total / gap**2).clip(lower=0.0))
    ranked = by_visit.assign(told=told, others=others.fillna(gap)).sort_values("others")
    return ranked.groupby([*_CALL, "visit"])["told"].last().groupby(_CALL).mean()
