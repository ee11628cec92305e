"""Decides which of many ratios differ from 1 by more than the noise between runs.

Passes of one run agree better with each other than with those of the next run, so the interval of
one run says little about the next. There are two kinds of noise between runs: of each row by
itself, and of all rows of a run together (another node, another load). Where a side has several
runs, both are estimated from them. With one run on each side, the scatter of the ratios counts as
noise, since a row that was disturbed looks like one that changed; and the common noise, which
cannot be seen, is taken to be as large. So a change of most rows is found, and that of a single row
needs repeated runs. With fewer than `FEWEST` rows nothing is decided.

Many rows are judged at once: Benjamini and Hochberg's procedure keeps the share of wrong verdicts
at 5 %, and the intervals are those that belong to it (Benjamini and Yekutieli 2005), so a row
differs exactly if its interval does not hold 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.special import stdtr, stdtrit

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FEWEST: Final = 5  # rows, where the scatter of rows is all that is known
_WRONG: Final = 0.05
_LEAST: Final = 1e-12  # variance: clocks resolve no less than a millionth of a time


@dataclass(frozen=True)
class Noise:
    """Variances of a row's logarithmic ratio, and of what all rows share; degrees of freedom."""

    own: Floats
    shared: float
    own_df: float
    shared_df: float

    def errors(self) -> tuple[Floats, Floats]:
        """Return the standard errors of the rows, and their degrees of freedom."""
        total = self.own + self.shared
        df = total**2 / (self.own**2 / self.own_df + self.shared**2 / self.shared_df)
        return np.sqrt(total), df

    def error_of_mean(self) -> tuple[float, float]:
        """Return the standard error of the mean over rows, and its degrees of freedom."""
        own = float(self.own.mean()) / len(self.own)
        total = own + self.shared
        df = total**2 / (own**2 / self.own_df + self.shared**2 / self.shared_df)
        return float(np.sqrt(total)), df


@dataclass(frozen=True)
class Judged:
    """Ratios with intervals, and which differ from 1; the geometric mean with its interval."""

    ratio: Floats
    low: Floats
    high: Floats
    differs: NDArray[np.bool_]
    mean: tuple[float, float, float]


def judge(table: pd.DataFrame) -> Judged | None:
    """Judge the second side against the first; None where the noise between runs is unknown.

    `table` has a row per key, side (0 and 1) and run, with `log`, the logarithm of the time, and
    `within`, its variance within the run. Every key is on both sides.
    """
    means = table.groupby(["key", "side"])["log"].mean().unstack("side")  # noqa: PD010
    difference = (means[1] - means[0]).to_numpy()
    noise = _noise(table, difference)
    if noise is None:
        return None
    error, df = noise.errors()
    differs, level = _selected(difference, error, df)
    half = error * stdtrit(df, 1 - level / 2)
    mean, (mean_error, mean_df) = float(difference.mean()), noise.error_of_mean()
    mean_half = mean_error * float(stdtrit(mean_df, 1 - _WRONG / 2))
    return Judged(
        ratio=np.exp(difference),
        low=np.exp(difference - half),
        high=np.exp(difference + half),
        differs=differs,
        mean=(*(float(np.exp(mean + s * mean_half)) for s in (0, -1, 1)),),  # type: ignore[arg-type]
    )


def _noise(table: pd.DataFrame, difference: Floats) -> Noise | None:
    """Estimate the noise from repeated runs, else from the scatter of the rows."""
    runs = table.groupby("side")["run"].nunique()
    within = table.groupby(["key", "side"])["within"].mean().groupby("key").sum().to_numpy()
    if runs.max() > 1:
        return _noise_of_runs(table, runs, within)
    if len(difference) < FEWEST:
        return None
    usual = max(float(np.var(difference, ddof=1)), float(np.median(within)), _LEAST)
    own = usual + np.maximum(0.0, within - np.median(within))
    df = len(difference) - 1
    return Noise(own, usual, df, df)


def _noise_of_runs(table: pd.DataFrame, runs: pd.Series[int], within: Floats) -> Noise:
    """Estimate both kinds of noise from how the runs of a side differ from their mean."""
    rest = table["log"] - table.groupby(["key", "side"])["log"].transform("mean")
    shared = rest.groupby([table["side"], table["run"]]).transform("mean")
    keys, more = table["key"].nunique(), int((runs - 1).sum())
    shared_square = float((shared.groupby([table["side"], table["run"]]).first() ** 2).sum()) / more
    own_df = max(1, more * (keys - 1))
    own_square = float(((rest - shared) ** 2).sum()) / own_df
    factor = float((1 / runs).sum())
    usual = max(own_square * factor, float(np.median(within)) / float(runs.mean()), _LEAST)
    extra = np.maximum(0.0, within - np.median(within)) / float(runs.mean())
    return Noise(usual + extra, shared_square * factor, own_df, more)


def _selected(difference: Floats, error: Floats, df: Floats) -> tuple[NDArray[np.bool_], float]:
    """Return which differences are none of chance, and the level of the intervals to show."""
    chance = 2 * stdtr(df, -np.abs(difference) / error)
    order = np.sort(chance)
    steps = _WRONG * np.arange(1, len(order) + 1) / len(order)
    passed = np.flatnonzero(order <= steps)
    level = float(steps[passed[-1]]) if len(passed) else float(steps[0])
    return chance <= level if len(passed) else np.zeros(len(order), bool), level
