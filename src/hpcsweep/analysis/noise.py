"""The noise between measurements of one thing, and how far it can be known.

The passes of one visit agree better with each other than with those of the next visit: another
process, another place in memory, another minute. So a verdict rests on what varies between visits
(Kalibera and Jones 2013: repeat at the level that varies), and times are compared as logarithms.

A few visits tell little of their own variance. Rows of one table tell more together: the variance
of a row is drawn towards what is usual, by as much as the rows agree (Smyth 2004, "Linear models
and empirical Bayes methods"). Where they do not agree, each row is left with its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.special import polygamma

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ONCE: Final = 0.03  # what may lie between two visits of a quiet machine and no control shows
LEAST: Final = 1e-8  # variance of a logarithm: a ten-thousandth of a time is no difference
_FEWEST: Final = 5  # rows whose variances say what is usual
_MOST_DF: Final = 30.0  # a prior that is surer than this would be pooling
_TWO: Final = 1.5  # degrees of freedom: more than those of one difference, give or take a share
_TELLING: Final = 2.5


def moderated(variances: Floats, df: Floats) -> tuple[Floats, Floats]:
    """Return each row's variance drawn towards the usual one, and its degrees of freedom.

    A variance never counts for less than the mean of most rows: where times stick to one of two
    values, a few visits often find the same one, and seem to have no noise. "Most" leaves out the
    noisiest fifth, once three degrees of freedom can tell which these are; of a single difference
    (one degree) even the largest of all counts. Rows with `df` of 0 have the usual variance.
    """
    known = df > 0
    variances = np.maximum(variances, LEAST)
    if not known.any():
        return variances, df
    ordered, fewest = np.sort(variances[known]), df[known].min()
    few = len(ordered) < _FEWEST
    if fewest < _TWO:
        least = float(ordered[-1])
    else:
        most = ordered if few or fewest < _TELLING else ordered[: -(len(ordered) // 5)]
        least = float(most.mean())
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
    half = df / 2
    logs = np.log(variances) - polygamma(0, half) + np.log(half)
    scatter = float(np.var(logs, ddof=1) - np.mean(polygamma(1, half)))
    prior_df = min(2 * _inverse_trigamma(scatter), _MOST_DF) if scatter > 0 else _MOST_DF
    mean = float(np.mean(logs)) + float(polygamma(0, prior_df / 2)) - np.log(prior_df / 2)
    return float(np.exp(mean)), prior_df


def _inverse_trigamma(value: float) -> float:
    """Return x with psi'(x) = value, by Newton's method on 1 / psi' (Smyth 2004, appendix)."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


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
    known = [of - of.mean() for of in controls if len(of) > 1]
    df = sum(len(of) - 1 for of in known)
    if df < _FEWEST:
        return None
    return Machine(max(sum(float((of**2).sum()) for of in known) / df, ONCE**2), float(df))


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

    def of_means(self, repeats: Floats, runs: int) -> tuple[Floats, Floats, Floats]:
        """Return the variances of rows' means, own and shared, and the degrees of their sum.

        These are Welch and Satterthwaite's.
        """
        own, shared = self.own / repeats, np.full(len(self.own), self.shared / runs)
        parts = own**2 / self.own_df.clip(1e-9) + shared**2 / self.shared_df
        return own, shared, (own + shared) ** 2 / parts


def scatter(logs: Floats, within: Floats, *, alone: bool = False) -> Scatter:
    """Return how repeated measurements scatter: `logs` of rows times runs, NaN where missing.

    `within` is the variance that each row has inside a run: between runs it is no smaller. The
    common part of a run is the median over its rows, which a few noisy rows do not move. With few
    rows it cannot be told from their own, and stays in it, as it does if rows stand `alone`.
    """
    repeats, runs = (~np.isnan(logs)).sum(axis=1), logs.shape[1]
    means = np.nansum(logs, axis=1) / repeats.clip(1)
    rest = logs - means[:, None]
    share, shared = 1.0, 0.0
    if len(logs) >= _FEWEST and runs > 1 and not alone:
        common = np.nanmedian(rest, axis=0)
        shared = float(np.nansum(common**2)) / (runs - 1)
        rest, share = rest - common, 1 - 1 / len(logs)
    df = (repeats - 1).clip(0) * share
    own = np.divide(np.nansum(rest**2, axis=1), df, out=np.zeros(len(logs)), where=df > 0)
    variances, own_df = moderated(own, df)
    return Scatter(np.maximum(variances, within), own_df, shared, float(max(runs - 1, 1)))


def within(rows: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Return the variance of the logarithm of a time inside its visit; 0 where it is unknown."""
    known = rows.reindex(
        columns=["median_ms", "mean_ms", "ci95_lo_ms", "ci95_hi_ms", "std_ms", "n"]
    ).astype(float)
    median = (known["ci95_hi_ms"] - known["ci95_lo_ms"]) / (2 * 1.96) / known["median_ms"]
    mean = known["std_ms"] / np.sqrt(known["n"]) / known["mean_ms"]
    error = mean.fillna(median) if metric == "mean_ms" else median.fillna(mean)
    return (error**2).fillna(0.0) if metric != "min_ms" else error * 0.0
