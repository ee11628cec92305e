"""Finds the fastest algorithm of each convolution, by the layers of a collected sweep.

A layer keeps the default algorithm unless `verdicts.judge` calls another one faster, by the times
of the two in this layer alone. What all layers together save in each visit is the noise of what the
network would gain: what a visit did to all layers at once is in it. What the choice owes to luck is
not, since all visits chose; so it is told apart.
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
# the standard error of a median is 1.2533 IQR / 1.349 / sqrt(n), if passes are independent
_OF_QUARTILES: Final = 0.929


@dataclass(frozen=True)
class LayerChoices:
    """The choice for each convolution call, and what all choices of a configuration save.

    `calls` has a row per configuration and call, in call order. `config` is the number of the
    configuration and `default_ms` the time under the default. `algorithm` is the fastest that beats
    the default, else the default; then the call is not `changed`. It takes `ms`. `tried` counts
    rivals, which by chance alone seem to save `luck_ms` all together.

    `gains` has a row per configuration, and a column per visit: the share of the time of all calls
    that is saved, NaN in visits that the configuration does not have.
    """

    calls: pd.DataFrame
    gains: pd.DataFrame


def per_layer(
    data: dataset.Dataset, points: pd.DataFrame, default: str = catalog.AUTO
) -> LayerChoices:
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


def _with_logs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have a time, with its logarithm and the variance of that in a visit."""
    ms = dataset.first_known(rows, "median_ms", "mean_ms")
    cells = rows.reindex(columns=["n", "q1_ms", "q3_ms", "std_ms"]).astype(float)
    spread = _OF_QUARTILES * (cells["q3_ms"] - cells["q1_ms"])
    error = spread.fillna(cells["std_ms"]) / np.sqrt(cells["n"].fillna(1.0)) / ms
    timed = rows.assign(ms=ms, log=np.log(ms.where(ms > 0)), within=error**2)
    return timed.dropna(subset="log").fillna({"within": 0.0})


def choose(times: pd.DataFrame, default: str) -> LayerChoices:
    """Choose for each call by its rows, which have the time `ms` and its logarithm `log`."""
    calls = times[times["algorithm"] == default].groupby(_CALL).agg(
        layer=("layer", "first"), unique_key=("unique_key", "first"), default_ms=("ms", "median")
    )  # fmt: skip
    rivals = _rivals(times, default)
    faster = rivals[rivals["is_faster"]].sort_values("gap")
    winners = faster.groupby(_CALL)["algorithm"].last()
    of_calls = rivals.groupby(_CALL)
    by_visit = np.exp(times.pivot_table(index=_KEY, columns="visit", values="log"))
    own = by_visit.xs(default, level="algorithm")
    chosen = by_visit.reindex(pd.MultiIndex.from_frame(winners.reset_index()))
    ratios = chosen.droplevel("algorithm") / own.reindex(winners.index)
    calls["algorithm"] = winners.reindex(calls.index).astype(object).fillna(default)
    calls["changed"] = calls["algorithm"] != default
    calls["ms"] = calls["default_ms"] * ratios.mean(axis=1).reindex(calls.index).fillna(1.0)
    calls["tried"] = of_calls.size().reindex(calls.index, fill_value=0)
    calls["luck_ms"] = calls["default_ms"] * of_calls["luck"].sum().reindex(calls.index).fillna(0.0)
    return LayerChoices(calls.sort_index().reset_index(), _gains(own, ratios))


def _rivals(times: pd.DataFrame, default: str) -> pd.DataFrame:
    """Return a row per call and rival that share a visit with the default, by `verdicts.judge`.

    `gap` is the logarithm of the default's time over the rival's. `luck` is what a rival that is no
    faster gains by chance, on average, as a share of the default's time.
    """
    cells = times.reindex(columns=[*_KEY, "visit", "log", "within", "control"]).assign(origin="")
    is_default = cells["algorithm"] == default
    rivals = cells[~is_default]
    own = cells[is_default].drop(columns="algorithm")
    together = rivals.merge(own, on=[*_CALL, "visit"])
    pairs = together[_KEY].drop_duplicates().reset_index(drop=True)
    pairs["pair"] = pairs.index
    sides = [rivals.merge(pairs, on=_KEY).assign(side=0), own.merge(pairs, on=_CALL).assign(side=1)]
    judged = pairs.join(verdicts.judge(pd.concat(sides)), on="pair")
    judged["is_faster"] = judged["differs"].eq(other=True) & (judged["gap"] > 0)
    # Half of the wrong verdicts are in favour of the rival. It then seems to save half of its
    # interval, or it would not be chosen. Single visits are hardly ever wrong.
    half = (judged["high"] - judged["low"]) / 2
    judged["luck"] = verdicts.WRONG / 2 * half.where(judged["visits"] >= verdicts.VISITS, 0.0)
    return judged


def _gains(own: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """Return the share of time that each configuration saves in each visit that it has.

    `own` is the ms of each call under the default, `ratios` the time of the changed ones over it. A
    call that lacks a visit takes its mean there.
    """
    own = own.where(own.notna(), own.mean(axis=1), axis=0)
    filled = ratios.where(ratios.notna(), ratios.mean(axis=1), axis=0)
    saved = own.reindex(ratios.index) * (1 - filled)
    gains = saved.groupby(level="config").sum() / own.groupby(level="config").sum()
    return gains.where(ratios.notna().groupby(level="config").any())
