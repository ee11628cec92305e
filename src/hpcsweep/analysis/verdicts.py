"""Tells differences between measurements from noise.

The passes of one visit agree better with each other than with those of the next: another process,
another place in memory, another minute. So a verdict rests on what varies between visits or runs
(Kalibera and Jones 2013: repeat at the level that varies), and times are compared as logarithms.
*Which algorithm is the fastest of a configuration?* compares visit by visit, so that what a visit
did to all algorithms does not count. *Which rows changed?* compares two sides that have runs of
their own. What was measured once is judged only by what the controls of the machine show.

Few repetitions say little of one row's noise. So its variance is drawn towards the usual one, by as
much as the rows agree (Smyth 2004, "Linear models and empirical Bayes methods"). Where they do not
agree, each row is left with its own.

Where many rows are judged at once, Benjamini and Hochberg's procedure keeps the share of wrong
verdicts at 4 %, and the intervals are those that belong to it (Benjamini and Yekutieli 2005), so a
row differs exactly if its interval does not hold 1. The level is below the 5 % that are promised,
since times are not normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import scipy  # its parts are loaded where they are used: they take as long as the rest
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# half of a 95 % interval of a median is 1.96 x 1.2533 x IQR / 1.349 / sqrt(n), of a mean:
_OF_MEDIAN: Final = 1.82
OF_MEAN: Final = 1.96
ONCE: Final = 0.03  # what may lie between two visits of a quiet machine and no control shows
LEAST: Final = 1e-8  # variance of a logarithm: a ten-thousandth of a time is no difference
_FEWEST: Final = 5  # rows whose variances say what is usual
_MOST_DF: Final = 30.0  # a prior that is surer than this would be pooling
_COMMON: Final = 0.05  # the chance at which rows are taken to share noise
_LEAST_CHANCE: Final = 1e-12
_HALVINGS: Final = 50
_LEAST_HALF: Final = 1e-3  # half of the least degrees of freedom of a prior
_STEPS: Final = 10_000
_TWO: Final = 1.5  # degrees of freedom: more than those of one difference, give or take a share
_TELLING: Final = 2.5


def _moderated(variances: Floats, df: Floats) -> tuple[Floats, Floats]:
    """Return each row's variance drawn towards the usual one, and its degrees of freedom.

    A variance never counts for less than the mean of most rows: where times stick to one of two
    values, a few visits often find the same one, and seem to have no noise. "Most" leaves out the
    noisiest fifth, once three degrees of freedom can tell which these are; where hardly a row has
    more than a single difference (one degree), even the largest of all counts. Rows with `df` of 0
    have the usual variance.
    """
    known = df > 0
    variances = np.maximum(variances, LEAST)
    if not known.any():
        return variances, df
    ordered = np.sort(variances[known])
    few = int(known.sum()) < _FEWEST
    if np.sum(df > _TWO) < _FEWEST and df[known].min() < _TWO:
        least = float(ordered[-1])
    elif few or df[known].min() < _TELLING:
        least = float(np.average(variances[known], weights=df[known]))
    else:
        least = float(ordered[: -(len(ordered) // 5)].mean())
    if few:
        return np.maximum(variances, least), np.where(known, df, float(df.sum()))
    usual, usual_df = _prior(variances[known], df[known])
    drawn = (usual_df * usual + np.where(known, df * variances, 0.0)) / (usual_df + df)
    return np.maximum(drawn, least), usual_df + df


def _prior(variances: Floats, df: Floats) -> tuple[float, float]:
    """Return the usual variance and its degrees of freedom, from the scatter of the logarithms.

    Smyth's moments: log s^2 has mean log s0^2 + psi(d/2) - psi(d0/2) + log(d0/d) and variance
    psi'(d/2) + psi'(d0/2).
    """
    polygamma = scipy.special.polygamma
    half = df / 2
    logs = np.log(variances) - polygamma(0, half) + np.log(half)
    scatter = float(np.var(logs, ddof=1) - np.mean(polygamma(1, half)))
    prior_df = _MOST_DF
    if scatter > polygamma(1, _MOST_DF / 2):
        halves = np.geomspace(_MOST_DF / 2, _LEAST_HALF, _STEPS)
        prior_df = 2 * float(np.interp(scatter, polygamma(1, halves), halves))
    mean = float(np.mean(logs)) + float(polygamma(0, prior_df / 2)) - np.log(prior_df / 2)
    return float(np.exp(mean)), prior_df


@dataclass(frozen=True)
class Machine:
    """How much a machine varies between points: variance of a logarithm, degrees of freedom."""

    variance: float
    df: float


def machine(controls: Sequence[Floats]) -> Machine | None:
    """Return what the controls of some jobs show, each a list of logarithms; None: too few.

    A control does not feel all that a network feels, so a single visit counts for no better than
    `ONCE`.
    """
    rest = [of - of.mean() for of in controls if len(of) > 1]
    df = sum(len(of) - 1 for of in rest)
    squares = sum(float((of**2).sum()) for of in rest)
    return Machine(max(squares / df, ONCE**2), float(df)) if df >= _FEWEST else None


@dataclass(frozen=True)
class Scatter:
    """Variances of one measurement, and their degrees of freedom.

    `own` is that of each row by itself; `shared` is what all rows of a run have in common, such as
    another node or another load.
    """

    own: Floats
    own_df: Floats
    shared: float
    shared_df: float

    @property
    def is_common(self) -> bool:
        """Say whether what all rows share is more than the median of their own noise."""
        rows = len(self.own)
        df = self.shared_df
        if self.shared == 0:
            return False
        chance = np.pi / 2 * float(np.mean(self.own)) / rows
        return float(scipy.special.fdtrc(df, df * rows, self.shared / chance)) < _COMMON

    def chance_of(self, gaps: Floats, repeats: Floats, runs: int) -> Floats:
        """Return how likely noise alone makes mean gaps so large, or larger.

        Where rows share noise, their few runs are all that tells it, however small it seems
        (Banerjee 1961, "On confidence interval for two-means problem": the sum of squared limits).
        """
        own, shared, df = self.of_means(repeats, runs)
        if not self.is_common:
            return np.asarray(scipy.special.stdtr(df, -gaps / np.sqrt(own + shared)))
        low = np.full(len(gaps), np.log(_LEAST_CHANCE))
        high = np.full(len(gaps), np.log(0.5))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            at = np.exp(middle)
            limit = (
                scipy.special.stdtrit(self.own_df, at) ** 2 * own
                + scipy.special.stdtrit(self.shared_df, at) ** 2 * shared
            )
            above = limit > gaps**2
            low = np.where(above, middle, low)
            high = np.where(above, high, middle)
        return np.where(gaps > 0, np.exp(high), 1.0)

    def of_means(self, repeats: Floats, runs: int) -> tuple[Floats, Floats, Floats]:
        """Return the variances of means, own and shared, and Welch and Satterthwaite's degrees."""
        own = self.own / repeats
        shared = np.full(len(self.own), self.shared / runs)
        parts = own**2 / self.own_df.clip(1e-9) + shared**2 / self.shared_df
        return own, shared, (own + shared) ** 2 / parts


def scatter(logs: Floats, within: Floats, *, alone: bool = False) -> Scatter:
    """Return how repeated measurements scatter: `logs` of rows times runs, NaN where missing.

    `within` is the variance that each row has inside a run: between runs it is no smaller. The
    common part of a run is the median over its rows, which a few noisy rows do not move. With few
    rows it cannot be told from their own, and stays in it, as it does if rows stand `alone`.
    """
    repeats = (~np.isnan(logs)).sum(axis=1)
    runs = logs.shape[1]
    means = np.nansum(logs, axis=1) / repeats.clip(1)
    rest = logs - means[:, None]
    share = 1.0
    shared = 0.0
    if len(logs) >= _FEWEST and runs > 1 and not alone:
        common = np.nanmedian(rest, axis=0)
        shared = float(np.nansum(common**2)) / (runs - 1)
        rest = rest - common
        share = 1 - 1 / len(logs)
    df = (repeats - 1).clip(0) * share
    own = np.divide(np.nansum(rest**2, axis=1), df, out=np.zeros(len(logs)), where=df > 0)
    variances, own_df = _moderated(own, df)
    return Scatter(np.maximum(variances, within), own_df, shared, float(max(runs - 1, 1)))


def half_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    """Return half of the 95 % interval of median and mean of each row; NaN where unknown.

    It is that of independent passes: the least noise that a row can have, and no interval to show.
    """
    cells = rows.reindex(columns=["n", "q1_ms", "q3_ms", "std_ms"]).astype(float)
    root = np.sqrt(cells["n"].fillna(1.0))
    of_median = _OF_MEDIAN * (cells["q3_ms"] - cells["q1_ms"]) / root
    return pd.DataFrame({"median_ms": of_median, "mean_ms": OF_MEAN * cells["std_ms"] / root})


WITHIN: Final = ["median_ms", "mean_ms", "ci95_lo_ms", "ci95_hi_ms", "std_ms", "n"]


def within(rows: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Return the variance of the logarithm of a time inside its visit; 0 where it is unknown."""
    cells = rows.reindex(columns=WITHIN).astype(float)
    median = (cells["ci95_hi_ms"] - cells["ci95_lo_ms"]) / (2 * OF_MEAN) / cells["median_ms"]
    mean = cells["std_ms"] / np.sqrt(cells["n"]) / cells["mean_ms"]
    error = mean.fillna(median) if metric == "mean_ms" else median.fillna(mean)
    return (error**2).fillna(0.0) if metric != "min_ms" else error * 0.0


WRONG: Final = 0.04
VISITS: Final = 3  # fewer may agree by chance: of two both may have the same wrong value
FEW_ROWS: Final = 10  # with two runs a side, fewer rows do not show how noisy the noisiest is
_CONTROLS: Final = 5  # fewer do not show how a machine varies


@dataclass(frozen=True)
class Fastest:
    """The fastest of a group.

    The next one takes `ahead` times as long, minus 1. `sure`: beyond the noise between visits, or,
    of single visits, beyond what the controls show. `visits` are those that all candidates have.
    """

    name: str
    ahead: float
    sure: bool
    visits: int


def fastest(rows: pd.DataFrame, machine: Machine | None = None) -> dict[Any, Fastest]:
    """Return the fastest of each group that has two candidates or more.

    `rows` has `group`, `name`, `visit`, `log` (logarithm of the time) and `within` (its variance
    inside the visit). The winner must beat each of its rivals at the level for two sides: then,
    whatever the number of equals, one of them is starred in at most `WRONG` of the groups.
    """
    table = rows.pivot_table(index=["group", "name"], columns="visit", values="log", sort=False)
    within = rows.groupby(["group", "name"], sort=False)["within"].mean()
    winners = table.mean(axis=1).groupby(level="group", sort=False).idxmin()
    own = table.loc[winners.to_list()].droplevel("name")
    rivals = table.drop(index=winners.to_list())
    groups = rivals.index.get_level_values("group")
    gaps = rivals.to_numpy() - own.loc[groups].to_numpy()
    inside = within[rivals.index].to_numpy() + within.loc[winners[groups].to_list()].to_numpy()
    pairs = pd.DataFrame({"group": groups, **_tested(gaps, inside, machine)})
    worst = pairs.groupby("group", sort=False).agg(
        ahead=("gap", "min"), chance=("chance", "max"), visits=("visits", "min")
    )
    return {
        row.Index: Fastest(
            name=winners[row.Index][1], ahead=float(np.expm1(row.ahead)),
            sure=bool(row.chance <= WRONG), visits=int(row.visits),
        )
        for row in worst.itertuples()
    }  # fmt: skip


def _tested(gaps: Floats, inside: Floats, machine: Machine | None) -> dict[str, Floats]:
    """Return mean gaps of pairs (rows) over visits (columns), and how likely chance is."""
    visits = (~np.isnan(gaps)).sum(axis=1)
    mean = np.array([np.nanmean(of) if n else 0.0 for of, n in zip(gaps, visits, strict=True)])
    chance = np.ones(len(mean))
    if machine is not None:
        error = np.sqrt((2 * machine.variance + inside) / visits.clip(1))
        chance = 2 * scipy.special.stdtr(machine.df, -mean / error)
    # where a visit is missing, the other rows tell how much visits differ
    repeated = visits >= (VISITS - 1 if np.sum(visits >= VISITS) >= FEW_ROWS else VISITS)
    if repeated.any():  # what all rows of an algorithm share in a visit counts as in `judge`
        told = scatter(gaps, inside).chance_of(mean, visits.clip(1), gaps.shape[1])
        chance = np.where(repeated, 2 * told, chance)
    return {"gap": mean, "visits": visits, "chance": chance}


@dataclass(frozen=True)
class JudgedRatios:
    """Ratios with intervals, and which differ from 1; the geometric mean with its interval."""

    ratio: Floats
    low: Floats
    high: Floats
    differs: NDArray[np.bool_]
    mean: tuple[float, float, float]


def judge(table: pd.DataFrame) -> JudgedRatios | None:
    """Judge the second side against the first; None where the noise between runs is unknown.

    `table` has a row per key, side (0 and 1) and run, with `log`, the logarithm of the time,
    `within`, its variance within the run, and perhaps `control`, the logarithm of the control's
    time. Every key is on both sides.

    A machine that was slower as a whole on one side shows in the controls: what they explain is no
    difference, so an interval holds the ratio as measured and the ratio less the controls' shift.
    """
    sides = [table[table["side"] == side] for side in (0, 1)]
    logs = [of.pivot_table(index="key", columns="run", values="log").to_numpy() for of in sides]
    within = [of.groupby("key")["within"].mean().to_numpy() for of in sides]
    gap = np.nanmean(logs[1], axis=1) - np.nanmean(logs[0], axis=1)
    runs = [of.shape[1] for of in logs]
    if max(runs) == 1 or (min(runs) < VISITS and len(gap) < FEW_ROWS):
        return _judged_once(table, gap, within[0] + within[1])
    first, second = _controls(table)
    shift = float(np.median(second) - np.median(first)) if len(first) and len(second) else 0.0
    less = gap - shift
    near = np.where(gap * less > 0, np.sign(gap) * np.minimum(abs(gap), abs(less)), 0.0)
    error, df, mean_half = _errors(logs, within)
    chance = 2 * scipy.special.stdtr(df, -np.abs(near) / error)
    level = threshold(chance)
    differs = chance <= level
    level = level if differs.any() else WRONG / len(chance)
    half = error * scipy.special.stdtrit(df, 1 - level / 2)
    return _judged(gap, np.minimum(gap, less) - half, np.maximum(gap, less) + half, differs,
                   mean_half + abs(shift))  # fmt: skip


def _errors(logs: list[Floats], within: list[Floats]) -> tuple[Floats, Floats, float]:
    """Return the rows' standard errors and degrees of freedom, and half of the mean's interval.

    A side with one run scatters as the other one does.
    """
    scatters = [scatter(*both) for both in zip(logs, within, strict=True)]
    variances = np.zeros(())
    parts = np.zeros(())
    mean = 0.0
    mean_parts = 0.0
    for side, of in enumerate(logs):
        runs = of.shape[1]
        used = scatters[1 - side if runs == 1 else side]
        row, common, df = used.of_means((~np.isnan(of)).sum(axis=1), runs)
        variance = row + common
        variances = variances + variance
        parts = parts + variance**2 / df
        own_mean = float(used.own.mean()) / of.size
        shared = used.shared / runs
        mean += own_mean + shared
        mean_parts += own_mean**2 / float(used.own_df.sum()) + shared**2 / used.shared_df
    mean_df = mean**2 / mean_parts
    mean_half = float(np.sqrt(mean) * scipy.special.stdtrit(mean_df, 1 - WRONG / 2))
    return np.sqrt(variances), variances**2 / parts, mean_half


def _judged_once(table: pd.DataFrame, gap: Floats, within: Floats) -> JudgedRatios | None:
    """Judge single runs by the controls: only what exceeds all that these show is a difference."""
    controls = _controls(table)
    if any(len(of) < _CONTROLS for of in controls):
        return None
    explained = max(float(np.ptp(np.concatenate(controls))), ONCE)
    half = explained + 2 * np.sqrt(within + 2 * ONCE**2)
    return _judged(gap, gap - half, gap + half, abs(gap) > half, explained)


def _judged(
    gap: Floats, low: Floats, high: Floats, differs: NDArray[np.bool_], mean_half: float
) -> JudgedRatios:
    mean = float(gap.mean())
    ends = (float(np.exp(mean + sign * mean_half)) for sign in (0, -1, 1))
    return JudgedRatios(np.exp(gap), np.exp(low), np.exp(high), differs, (*ends,))  # type: ignore[arg-type]


def _controls(table: pd.DataFrame) -> list[Floats]:
    rows = table.reindex(columns=["side", "control"]).dropna()
    return [rows.loc[rows["side"] == side, "control"].to_numpy() for side in (0, 1)]


def threshold(chance: Floats) -> float:
    """Return the level that Benjamini and Hochberg's procedure leaves; 0: none passes."""
    order = np.sort(chance)
    steps = WRONG * np.arange(1, len(order) + 1) / max(len(order), 1)
    passed = np.flatnonzero(order <= steps)
    return float(steps[passed[-1]]) if len(passed) else 0.0
