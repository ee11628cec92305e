"""Tells differences between measurements from noise.

The passes of one visit agree better with each other than with those of the next: another process,
another place in memory, another minute. So a verdict rests on what varies between visits or runs
(Kalibera and Jones 2013: repeat at the level that varies), and times are compared as logarithms.

`judge_pair` judges two measurements by their own rows alone: every command asks it, and what else
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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpcsweep.analysis.dataset import REPEATS
from hpcsweep.analysis.plain_rows import Rows, column, groups

if TYPE_CHECKING:
    import pandas as pd

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


class VisitTime(NamedTuple):
    """A measured time, and what `judge_pair` wants to know of it; NaN is unknown."""

    origin: Any  # the run
    visit: Any
    log: float  # the logarithm of the time
    within: float  # its variance inside the visit
    control: float  # the logarithm of the control's time


class Verdict(NamedTuple):
    """How the second side of a pair compares with the first.

    `gap` is the logarithm of the ratio, in the interval `low` to `high`, which is NaN where nothing
    tells the noise; `differs` says that 0 is not in it; `visits` were compared.
    """

    gap: float
    low: float
    high: float
    differs: bool
    visits: int


class _Gap(NamedTuple):
    """A mean gap, the variance of that mean, and the degrees of freedom behind it."""

    mean: float
    variance: float
    df: int


def timed(rows: Rows | pd.DataFrame, metric: str, origins: Sequence[Any] = ()) -> list[VisitTime]:
    """Return what `judge_pair` wants of rows; `origins` are their runs, if there are several."""
    told = zip(
        origins if len(origins) else [""] * len(rows),
        groups(rows, sorted(REPEATS)),
        map(log_of, rows[metric]),
        _within(rows, metric),
        map(log_of, column(rows, "control_ms")),
        strict=True,
    )
    return [*starmap(VisitTime, told)]


def log_of(time: float | None) -> float:
    """Return the logarithm of a time; NaN of what is none."""
    return math.log(time) if time is not None and time > 0 else math.nan


def log(times: pd.Series[float]) -> pd.Series[float]:
    """Return the logarithm of times; NaN of what is none."""
    import numpy as np  # noqa: PLC0415 - `report` needs neither this nor numpy

    times = times.astype(float)
    return np.log(times.where(times > 0))


def _within(rows: Rows | pd.DataFrame, metric: str) -> Iterator[float]:
    """Yield the variance of the logarithm of a time inside its visit; 0 where it is unknown."""
    for cells in groups(rows, WITHIN):
        known = [math.nan if cell is None else float(cell) for cell in cells]
        median, mean, low, high, deviation, number = known
        of_median = _ratio((high - low) / (2 * OF_MEAN), median)
        of_mean = _ratio(deviation, math.sqrt(number) * mean) if number > 0 else math.nan
        first, second = (of_mean, of_median) if metric == "mean_ms" else (of_median, of_mean)
        error = second if math.isnan(first) else first
        if metric == "min_ms":  # of which nothing tells the noise; NaN where no time is known
            yield error * 0.0
        else:
            yield 0.0 if math.isnan(error) else error**2


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.nan


def judge_pair(first: Sequence[VisitTime], second: Sequence[VisitTime]) -> Verdict:
    """Judge the second measurement of a pair against the first, by their rows alone.

    A machine that was slower as a whole on one side shows in the controls of the two rows: what
    they explain is no difference, so an interval of runs holds the gap with and without it.
    """
    by_run, shift, within = _between_runs(first, second)
    by_visit = _visit_by_visit(first, second)
    visits = by_visit.df + 1
    explained = 0.0
    if visits >= VISITS:
        gap = by_visit.mean
        half = _student(by_visit.df) * math.sqrt(by_visit.variance)
    elif by_run.df >= _DF:
        gap = by_run.mean
        half = _student(by_run.df) * math.sqrt(by_run.variance)
        explained = 0.0 if math.isnan(shift) else shift
    else:
        gap = by_visit.mean if visits else by_run.mean
        half = _SURE * math.sqrt(within + 2 * ONCE**2) + abs(shift)
    low = min(gap, gap - explained) - half
    high = max(gap, gap - explained) + half
    return Verdict(gap, low, high, low > 0 or high < 0, visits or 1)


def judge(table: pd.DataFrame) -> pd.DataFrame:
    """Judge each pair of a table; return a row per pair that has both sides, by `Verdict`.

    `table` has a row per `pair`, `side` (0 and 1), `origin` and `visit`, with `log`, `within` and
    `control` of `VisitTime`.
    """
    import pandas as pd  # noqa: PLC0415 - likewise

    pairs = defaultdict[Any, tuple[list[VisitTime], list[VisitTime]]](lambda: ([], []))
    columns = (table[name].tolist() for name in ("pair", "side", *VisitTime._fields))
    for pair, side, *cells in zip(*columns, strict=True):
        pairs[pair][side].append(VisitTime(*cells))
    judged = {pair: judge_pair(*sides) for pair, sides in pairs.items() if all(sides)}
    found = pd.DataFrame([*judged.values()], pd.Index([*judged], name="pair"), Verdict._fields)
    return found.astype({"differs": bool, "visits": int})


def judge_rivals(rows: pd.DataFrame, is_base: pd.Series[bool], keys: list[str]) -> pd.DataFrame:
    """Judge each rival in a group against the base of the group; return a row per rival.

    `rows` has the columns of `judge` but pair and side. The last of `keys` names the rival, the
    others the group.
    """
    import pandas as pd  # noqa: PLC0415 - likewise

    *group, name = keys
    rivals = rows[~is_base]
    pairs = rivals[keys].drop_duplicates().reset_index(drop=True)
    pairs["pair"] = pairs.index
    base = rows[is_base].drop(columns=name).merge(pairs, on=group).assign(side=0)
    others = rivals.merge(pairs, on=keys).assign(side=1)
    return pairs.join(judge(pd.concat([base, others])), on="pair")


def _visit_by_visit(first: Iterable[VisitTime], second: Iterable[VisitTime]) -> _Gap:
    """Return the gap in the visits that both sides have; of none it has a `df` of -1."""
    of_first = _means(first, lambda row: (row.origin, row.visit))
    of_second = _means(second, lambda row: (row.origin, row.visit))
    gaps = []
    within = []
    for visit, means in of_first.items():
        if visit in of_second:
            gaps.append(of_second[visit].log - means.log)
            within.append(of_second[visit].within + means.within)
    df = len(gaps) - 1
    mean = _mean(gaps)
    usual = _squares(gaps) / df if df > 0 else math.nan
    variance = _largest(usual, STEADY**2, _mean(within))
    return _Gap(mean, variance / len(gaps) if gaps else math.nan, df)


def _between_runs(
    first: Iterable[VisitTime], second: Iterable[VisitTime]
) -> tuple[_Gap, float, float]:
    """Return the gap between the means of runs, the gap of the controls, and the noise within."""
    sides = []
    for rows in (first, second):
        means = [*_means(rows, lambda row: row.origin).values()]
        _origins, _visits, logs, withins, controls = zip(*means, strict=True)
        sides.append((logs, _mean(withins), _mean(controls)))
    (logs, within, control), (other_logs, other_within, other_control) = sides
    df = len(logs) + len(other_logs) - 2
    within += other_within
    squares = _squares(logs) + _squares(other_logs)
    # of a gap, which has the variances of two runs
    variance = _largest(squares / df if df else math.nan, within / 2, STEADY**2 / 2)
    variance *= 1 / len(logs) + 1 / len(other_logs)
    gap = _Gap(_mean(other_logs) - _mean(logs), variance, df)
    return gap, other_control - control, within


def _means(rows: Iterable[VisitTime], key: Callable[[VisitTime], Any]) -> dict[Any, VisitTime]:
    """Return the means of the rows that have the same key."""
    alike = defaultdict[Any, list[VisitTime]](list)
    for row in rows:
        alike[key(row)].append(row)
    means = {}
    for name, own in alike.items():
        if len(own) == 1:  # as in most tables: a mean takes its time
            means[name] = own[0]
            continue
        _origins, _visits, *numbers = zip(*own, strict=True)
        means[name] = VisitTime("", "", *map(_mean, numbers))
    return means


def _mean(numbers: Sequence[float]) -> float:
    """Return the mean of the known numbers; NaN where there is none."""
    if len(numbers) == 1:
        return numbers[0]
    known = [number for number in numbers if not math.isnan(number)]
    return sum(known) / len(known) if known else math.nan


def _squares(numbers: Sequence[float]) -> float:
    """Return the sum of the squares of what numbers are off their mean."""
    if len(numbers) < 2:
        return 0.0
    mean = _mean(numbers)
    return sum((number - mean) ** 2 for number in numbers)


def _largest(*numbers: float) -> float:
    """Return the largest of numbers; NaN where one is unknown."""
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


@cache
def _student(df: int) -> float:
    """Return how many standard errors make an interval that is wrong in `WRONG` of the cases."""
    from scipy.special import stdtrit  # noqa: PLC0415 - most tables have single visits alone

    return float(stdtrit(df, 1 - WRONG / 2))


class Lead(NamedTuple):
    """The fastest of several candidates: how it stands to the others."""

    name: Any
    ahead: float  # the next one takes so many times as long, minus 1
    sure: bool  # `judge_pair` calls it faster than each other one
    visits: int  # that it and its nearest rival have in common


def fastest(candidates: Mapping[Any, Sequence[VisitTime]]) -> Lead | None:
    """Return the fastest of two candidates or more.

    It must beat each of its rivals: then, whatever the number of equals, one of them is starred in
    at most `WRONG` of the groups.
    """
    if len(candidates) < 2:
        return None
    means = {name: _mean([row.log for row in rows]) for name, rows in candidates.items()}
    winner = min(means, key=means.__getitem__)
    judged = []
    for name, rows in candidates.items():
        if name != winner:
            judged.append(judge_pair(candidates[winner], rows))
    return Lead(
        name=winner,
        ahead=math.expm1(min(one.gap for one in judged)),
        sure=all(one.differs and one.gap > 0 for one in judged),
        visits=min(one.visits for one in judged),
    )


def mean_ratio(table: pd.DataFrame, judged: pd.DataFrame) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios of all pairs, with its interval.

    It is about all rows at once, so each run counts once, by the mean of its rows: what these share
    is in it. Where no side has several runs, pairs say no more of it than the mean of their
    intervals.
    """
    mean = float(judged["gap"].mean())
    if table.groupby("side")["origin"].nunique().max() > 1:
        # a row that a run lacks moves the mean of this run by its noise alone, not by its size
        noise = table["log"] - table.groupby(["pair", "side"])["log"].transform("mean")
        within_all = table["within"] / len(judged)
        every = table.assign(log=noise, within=within_all)
        sides = []
        for side in (0, 1):
            rows = every.loc[every["side"] == side, [*VisitTime._fields]]
            sides.append([VisitTime(*row) for row in rows.itertuples(index=False)])
        runs, shift, _within = _between_runs(*sides)
        shift = 0.0 if math.isnan(shift) else abs(shift)
        half = _student(runs.df) * math.sqrt(runs.variance) + shift
    else:
        half = float((judged["high"] - judged["low"]).mean()) / 2
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
