"""Tells differences between measurements from noise.

The passes of one visit agree better with each other than with those of the next: another process,
another place in memory, another minute. So a verdict rests on what varies between visits or runs
(Kalibera and Jones 2013: repeat at the level that varies), and times are compared as logarithms.

`judge` judges a pair of measurements by their own rows alone: every command asks it, and what else
is in a table changes nothing. So two rows have one verdict in `report`, `compare` and `best`.

* Visits that both have in one run are compared one by one: what a visit did to both does not count.
* Else runs are compared; a side with one run scatters as the other one does.
* What was measured once differs only by more than two visits of a shared machine do, and than the
  controls of the two rows show.

Each verdict is wrong in at most 4 % of pairs that do not differ. `mean_ratio` is about all rows at
once.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pandas as pd
import scipy  # its parts are loaded where they are used: they take as long as the rest

from hpcsweep.analysis import dataset
from hpcsweep.analysis.merged import cells

OF_MEAN: Final = 1.96  # standard errors in half of a 95 % interval
WITHIN: Final = ["median_ms", "mean_ms", "ci95_lo_ms", "ci95_hi_ms", "std_ms", "n"]
WRONG: Final = 0.04  # below the 5 % that are promised, since times are not normal
VISITS: Final = 3  # fewer may agree by chance: of two both may have the same wrong value
_DF: Final = VISITS - 1
# two visits of one row on a machine that others use, too, were up to 5 % apart
ONCE: Final = 0.05
# So many standard deviations of single visits are a difference. `ONCE` is the largest that was
# seen, not a standard deviation, so that this is far on the safe side: of a row that was measured
# once nothing tells its own noise.
_SURE: Final = 3.0
# A gap varies by so much at least: visits that agree better do it by chance.
STEADY: Final = 0.005
# the logarithms of two times that were measured once differ by chance by so much at most
OF_ONCE: Final = _SURE * math.sqrt(2) * ONCE
_SAME_VISIT: Final = ["pair", "origin", "visit"]


def timed(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the columns of rows that `judge` wants, but pair, side and origin."""
    table = pd.DataFrame({"visit": dataset.visits(rows)})
    table["log"] = log(rows[metric])
    table["within"] = _within(rows, metric)
    table["control"] = log(cells(rows, "control_ms", np.nan))
    return table


def log(times: pd.Series[float]) -> pd.Series[float]:
    """Return the logarithm of times; NaN of what is none."""
    times = times.astype(float)
    return np.log(times.where(times > 0))


def _within(rows: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Return the variance of the logarithm of a time inside its visit; 0 where it is unknown."""
    known = rows.reindex(columns=WITHIN).astype(float)
    interval = known["ci95_hi_ms"] - known["ci95_lo_ms"]
    of_median = interval / (2 * OF_MEAN) / known["median_ms"]
    of_mean = known["std_ms"] / np.sqrt(known["n"]) / known["mean_ms"]
    if metric == "min_ms":  # of which nothing tells the noise; NaN where no other time is known
        return of_median.fillna(of_mean) * 0.0
    error = of_mean.fillna(of_median) if metric == "mean_ms" else of_median.fillna(of_mean)
    return (error**2).fillna(0.0)


def judge(table: pd.DataFrame) -> pd.DataFrame:
    """Judge the second measurement of each pair against the first, by the rows of the pair alone.

    `table` has a row per `pair`, `side` (0 and 1), `origin` (the run) and `visit`, with `log`, the
    logarithm of the time, `within`, its variance inside the visit, and `control`, the logarithm of
    the control's time, or NaN. The result has a row per pair that has both sides: `gap`, the
    logarithm of the ratio, its interval `low` to `high` (NaN where nothing tells the noise),
    whether it `differs` from 0, and the number of `visits` that were compared.

    A machine that was slower as a whole on one side shows in the controls of the two rows: what
    they explain is no difference, so an interval of runs holds the gap with and without it.
    """
    found = _between_runs(table).join(_visit_by_visit(table))
    by_visit = found["visits"] >= VISITS
    by_run = ~by_visit & (found["run_df"] >= _DF)
    once = ~by_visit & ~by_run
    shares_visit = found["visits"] > 0
    gap = found["visit_gap"].where(by_visit | (once & shares_visit), found["run_gap"])
    shift = found["shift"]
    half = _SURE * np.sqrt(found["within"] + 2 * ONCE**2) + shift.abs()
    if not once.all():  # most tables have single visits alone, and scipy loads slowly
        df = found["run_df"].where(by_run, found["visits"] - 1.0).where(~once, 1.0)
        variance = found["run_variance"].where(by_run, found["visit_variance"])
        repeated_half = scipy.special.stdtrit(df, 1 - WRONG / 2) * np.sqrt(variance)
        half = half.where(once, repeated_half)
    less = gap - shift.fillna(0.0).where(by_run, 0.0)
    low = np.minimum(gap, less) - half
    high = np.maximum(gap, less) + half
    judged = pd.DataFrame({"gap": gap, "low": low, "high": high})
    judged["differs"] = (low > 0) | (high < 0)
    judged["visits"] = found["visits"].where(shares_visit, 1.0).astype(int)
    return judged


def judge_rivals(rows: pd.DataFrame, is_base: pd.Series[bool], keys: list[str]) -> pd.DataFrame:
    """Judge each rival in a group against the base of the group; return a row per rival.

    `rows` has the columns of `judge` but pair and side. The last of `keys` names the rival, the
    others the group.
    """
    *group, name = keys
    rivals = rows[~is_base]
    pairs = rivals[keys].drop_duplicates().reset_index(drop=True)
    pairs["pair"] = pairs.index
    base = rows[is_base].drop(columns=name).merge(pairs, on=group).assign(side=0)
    others = rivals.merge(pairs, on=keys).assign(side=1)
    return pairs.join(judge(pd.concat([base, others])), on="pair")


def _sides(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of each side, by what else tells them apart, of what both sides have."""
    sides = table.index.get_level_values("side")
    first = table[sides == 0].droplevel("side")
    second = table[sides == 1].droplevel("side")
    first, second = first.align(second, join="inner")
    return first, second


def _visit_by_visit(table: pd.DataFrame) -> pd.DataFrame:
    """Return number, mean, and variance of the mean of gaps in visits that both sides have."""
    means = table.groupby(["side", *_SAME_VISIT], sort=False)[["log", "within"]].mean()
    first, second = _sides(means)
    gaps = (second["log"] - first["log"]).groupby(level="pair", sort=False)
    within = (first["within"] + second["within"]).groupby(level="pair", sort=False)
    found = pd.DataFrame({"visits": gaps.size().astype(float), "visit_gap": gaps.mean()})
    between = gaps.var().clip(lower=STEADY**2)
    found["visit_variance"] = np.maximum(between, within.mean()) / found["visits"]
    return found


def _between_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the gap between the means of runs, and the variance that the runs of the pair show."""
    keys = ["pair", "side"]
    numbers = table[[*keys, "origin", "log", "within", "control"]]
    means = numbers.groupby([*keys, "origin"], sort=False).mean()
    runs = means.groupby(level=keys, sort=False)
    by_side = runs.mean()
    by_side["runs"] = runs.size().astype(float)
    by_side["squares"] = runs["log"].var().fillna(0.0) * (by_side["runs"] - 1)
    first, second = _sides(by_side)
    df = first["runs"] + second["runs"] - 2
    within = first["within"] + second["within"]
    usual = (first["squares"] + second["squares"]) / df.where(df > 0)
    # of a gap, which has the variances of two runs
    variance = np.maximum(usual, np.maximum(within, STEADY**2) / 2)
    found = pd.DataFrame({"run_df": df, "within": within})
    found["run_gap"] = second["log"] - first["log"]
    found["run_variance"] = variance * (1 / first["runs"] + 1 / second["runs"])
    found["shift"] = second["control"] - first["control"]
    return found


def fastest(rows: pd.DataFrame) -> dict[Any, Any]:
    """Return the fastest of each group that has two candidates or more, as a row.

    Its `name`; `ahead`: the next one takes so many times as long, minus 1; `sure`: `judge` calls it
    faster than each other one; `visits`: those that it and its nearest rival have in common.

    `rows` has `group`, `name`, and the columns of `judge` but pair and side. The winner must beat
    each of its rivals: then, whatever the number of equals, one of them is starred in at most
    `WRONG` of the groups.
    """
    means = rows.groupby(["group", "name"], sort=False)["log"].mean()
    winners = dict(means.groupby(level="group", sort=False).idxmin().to_list())
    is_winner = rows["name"] == rows["group"].map(winners)
    judged = judge_rivals(rows, is_winner, ["group", "name"])
    judged["sure"] = judged["differs"] & (judged["gap"] > 0)
    worst = judged.groupby("group", sort=False).agg(
        ahead=("gap", "min"), sure=("sure", "all"), visits=("visits", "min")
    )
    worst["ahead"] = np.expm1(worst["ahead"])
    worst["name"] = worst.index.map(winners)
    return {row.Index: row for row in worst.itertuples()}


def mean_ratio(table: pd.DataFrame, judged: pd.DataFrame) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios of all pairs, with its interval.

    It is about all rows at once, so each run counts once, by the mean of its rows: what these share
    is in it. Where no side has several runs, pairs say no more of it than the mean of their
    intervals.
    """
    mean = float(judged["gap"].mean())
    sides = table.groupby("side")
    if sides["origin"].nunique().max() > 1:
        # a row that a run lacks moves the mean of this run by its noise alone, not by its size
        noise = table["log"] - table.groupby(["pair", "side"])["log"].transform("mean")
        within_all = table["within"] / len(judged)
        runs = _between_runs(table.assign(pair=0, log=noise, within=within_all)).iloc[0]
        student = float(scipy.special.stdtrit(runs["run_df"], 1 - WRONG / 2))
        shift = 0.0 if np.isnan(runs["shift"]) else abs(float(runs["shift"]))
        half = student * math.sqrt(runs["run_variance"]) + shift
    else:
        half = float((judged["high"] - judged["low"]).mean()) / 2
    low = float(np.exp(mean - half))
    high = float(np.exp(mean + half))
    return float(np.exp(mean)), low, high
