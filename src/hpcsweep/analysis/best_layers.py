"""Finds the fastest algorithm of each convolution by the layers of a sweep, and what that gains.

A layer keeps the default algorithm unless `verdicts.judge` calls another one faster, by the times
of the two in this layer alone. What all layers together save in each visit is the noise of what the
network would gain: what a visit did to all layers at once is in it. What the choice owes to luck is
not, since all visits chose; so it is told apart. `best` makes the maps and the table of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
import scipy  # its parts are loaded where they are used: they take as long as the rest

from hpcsweep import catalog
from hpcsweep.analysis import dataset, reliability, verdicts
from hpcsweep.analysis.plain_rows import cells
from hpcsweep.errors import UsageError

_CALL: Final = ["config", "call_index"]
_KEY: Final = [*_CALL, "algorithm"]
_TIMES: Final = ("median_ms", "mean_ms")
# the standard error of a median is 1.2533 IQR / 1.349 / sqrt(n), if passes are independent
_OF_QUARTILES: Final = 0.929
# gains below a tenth are noise over nothing: their relative errors say little of the model
_LARGE_GAIN: Final = 0.1
_UPPER: Final = 0.975  # of a distribution: with the lower 2.5 %, outside of a 95 % interval


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
    numbers = points[["point_id"]].copy()
    numbers["config"] = dataset.configurations(points)
    numbers["visit"] = dataset.visits(points)
    numbers["control"] = verdicts.log(cells(points, "control_ms", np.nan))
    rows = data.of_layers(points).drop(columns="visit").merge(numbers, on="point_id")
    is_known = rows["algorithm"].map(catalog.is_algorithm)
    rows = _with_logs(rows[~dataset.gradients(rows) & is_known])
    times = rows[(rows["op"] == "conv2d") & ~reliability.fell_back(rows)]
    if default not in set(times["algorithm"]):
        raise UsageError(
            f"{data.sweep_dir.layers}: no convolution under `{default}`, which every layer would "
            "keep; --over names another algorithm"
        )
    return choose(times, default)


def _with_logs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have a time, with its logarithm and the variance of that in a visit."""
    ms = dataset.first_known(rows, *_TIMES)
    known = rows.reindex(columns=["n", "q1_ms", "q3_ms", "std_ms"]).astype(float)
    spread = _OF_QUARTILES * (known["q3_ms"] - known["q1_ms"])
    error = spread.fillna(known["std_ms"]) / np.sqrt(known["n"].fillna(1.0)) / ms
    timed = rows.assign(ms=ms, log=verdicts.log(ms), within=error**2)
    return timed.dropna(subset="log").fillna({"within": 0.0})


def choose(times: pd.DataFrame, default: str) -> LayerChoices:
    """Choose for each call by its rows, which have the time `ms` and its logarithm `log`."""
    by_call = times[times["algorithm"] == default].groupby(_CALL)
    calls = by_call[["layer", "unique_key"]].first()
    calls["default_ms"] = by_call["ms"].median()
    rivals = _rivals(times, default)
    faster = rivals[rivals["is_faster"]].sort_values("gap", ascending=False)
    winners = faster.groupby(_CALL)["algorithm"].last()
    by_visit = np.exp(times.pivot_table(index=_KEY, columns="visit", values="log"))
    own = by_visit.xs(default, level="algorithm")
    chosen = by_visit.reindex(pd.MultiIndex.from_frame(winners.reset_index()))
    ratios = chosen.droplevel("algorithm") / own.reindex(winners.index)
    calls["algorithm"] = winners.reindex(calls.index).astype(object).fillna(default)
    calls["changed"] = calls["algorithm"] != default
    calls["ms"] = calls["default_ms"] * ratios.mean(axis=1).reindex(calls.index).fillna(1.0)
    rivals_of_call = rivals.groupby(_CALL)
    calls["tried"] = rivals_of_call.size().reindex(calls.index, fill_value=0)
    luck = rivals_of_call["luck"].sum().reindex(calls.index).fillna(0.0)
    calls["luck_ms"] = calls["default_ms"] * luck
    return LayerChoices(calls.sort_index().reset_index(), _gains(own, ratios))


def _rivals(times: pd.DataFrame, default: str) -> pd.DataFrame:
    """Return a row per call and rival that share a visit with the default, by `verdicts.judge`.

    `gap` is the logarithm of the rival's time over the default's. `luck` is what a rival that is no
    faster gains by chance, on average, as a share of the default's time.
    """
    rows = times.reindex(columns=[*_KEY, "visit", "log", "within", "control"]).assign(origin="")
    is_default = rows["algorithm"] == default
    in_visits = rows.merge(rows.loc[is_default, [*_CALL, "visit"]])
    rows = rows.merge(in_visits[_KEY].drop_duplicates())  # also other visits of such a rival
    judged = verdicts.judge_rivals(rows, rows["algorithm"] == default, _KEY)
    judged["is_faster"] = judged["differs"].eq(other=True) & (judged["gap"] < 0)
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


def predicted_gains(
    data: dataset.Dataset, points: pd.DataFrame, chosen: LayerChoices, default: str
) -> pd.DataFrame:
    """Return what the choices gain in each configuration, as `predicted` does.

    `points` are those of the choices, with the number of their configuration in `config`.
    """
    whole = _medians(points, dataset.first_known(points, *_TIMES))
    layers = _medians(points, points["point_id"].map(_sums(data, points)))
    off = _off(whole, layers, default)
    return predicted(chosen, whole[default], layers[default], off)


def _medians(points: pd.DataFrame, values: pd.Series[float]) -> pd.DataFrame:
    """Return a row per configuration and a column per algorithm."""
    table = points.assign(value=values).pivot_table(
        index="config", columns="algorithm", values="value", aggfunc="median"
    )
    return table.reindex(columns=points["algorithm"].unique())


def _sums(data: dataset.Dataset, points: pd.DataFrame) -> pd.Series[float]:
    """Return what the layers of a forward pass sum to, by point."""
    rows = data.of_layers(points)
    forward = (rows["layer"] != "__other__") & ~dataset.gradients(rows)
    rows = rows[forward & (cells(rows, "layer_timer") != "plans")]
    return dataset.first_known(rows, *_TIMES).groupby(rows["point_id"]).sum()


def _off(whole: pd.DataFrame, layers: pd.DataFrame, default: str) -> pd.Series[float]:
    """Return how far gains by the layers' sums are from those of whole networks, by configuration.

    Every algorithm was measured both ways. It is the root of the mean square of the relative
    errors, of algorithms that differ enough from the default.
    """
    names = [name for name in whole if name in catalog.ALGORITHMS and name != default]
    gain = 1 - whole[names].div(whole[default], axis=0)
    of_sums = 1 - layers[names].div(layers[default], axis=0)
    errors = ((of_sums - gain) / of_sums).where(of_sums.abs() >= _LARGE_GAIN)
    return errors.pow(2).mean(axis=1).pow(0.5)


def predicted(
    chosen: LayerChoices,
    times: pd.Series[float],
    layers: pd.Series[float],
    off: pd.Series[float],
) -> pd.DataFrame:
    """Return what each map is predicted to gain, with a 95 % interval; NaN where nothing was tried.

    Layers are timed one by one. Where they sum to more than the network, they save as much less.
    The interval is that of the visits' own gains; of a single visit it is as wide as two visits may
    differ. It reaches lower by what so many rivals gain by chance. `off` is how far such a sum was
    off for whole networks of one algorithm, as a share of the gain.
    """
    calls = chosen.calls
    by_config = calls.groupby("config")
    sums = by_config[["changed", "default_ms", "tried", "luck_ms"]].sum()
    whole = times.reindex(sums.index).fillna(sums["default_ms"])
    per_cent = 100 / pd.concat([whole, layers, sums["default_ms"]], axis=1).max(axis=1)
    gains = chosen.gains.reindex(sums.index).mul(sums["default_ms"] * per_cent, axis=0)
    gain = gains.mean(axis=1).fillna(0.0)
    visits = gains.notna().sum(axis=1)
    student = scipy.special.stdtrit((visits - 1).clip(lower=1), _UPPER)
    changed = calls[calls["changed"]].groupby("config")["ms"].sum()
    changed_ms = changed.reindex(sums.index, fill_value=0.0)
    # a gap has the scatter of two visits, each of which is off by `ONCE`
    once = verdicts.OF_MEAN * math.sqrt(2) * verdicts.ONCE * changed_ms * per_cent
    of_visits = (student * gains.std(axis=1, ddof=1) / np.sqrt(visits)).fillna(once)
    of_model = verdicts.OF_MEAN * off.reindex(sums.index).fillna(0.0) * gain
    half = np.hypot(of_visits, of_model)
    luck = (sums["luck_ms"] * per_cent).where(sums["changed"] > 0, 0.0)
    gained = pd.DataFrame({"gain_pct": gain})
    gained["gain_lo_pct"] = gain - half - luck
    gained["gain_hi_pct"] = gain + half
    table = pd.DataFrame({"layers": by_config.size(), "changed": sums["changed"]})
    table["default_ms"] = whole
    table["predicted_ms"] = whole * (1 - gain / 100)
    return table.join(gained.where(sums["tried"] > 0))
