"""The statistics: how often a difference is claimed where there is none."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcsweep.analysis import verdicts

ROWS = 12


def table(source, runs, own, shared, factor=1.0):
    """Return the rows of two sides with so many runs, with noise of rows and of whole runs."""
    keys = np.tile(np.arange(ROWS), 2 * runs)
    run = np.repeat(np.arange(2 * runs), ROWS)
    logs = (
        keys
        + source.normal(0, own, keys.size)
        + np.repeat(source.normal(0, shared, 2 * runs), ROWS)
    )
    logs += np.where(run >= runs, np.log(factor), 0.0)
    cells = {"key": keys, "side": (run >= runs).astype(int), "run": run % runs}
    return pd.DataFrame({**cells, "log": logs, "within": 1e-6})


@pytest.mark.parametrize(("runs", "own", "shared"), [(1, 0.01, 0.005), (3, 0.01, 0.03)])
def test_differences_are_claimed_rarely_where_there_are_none(runs, own, shared):
    """In 5 % of comparisons, give or take, any of 12 rows is called different."""
    source = np.random.default_rng(1)
    found = [verdicts.judge(table(source, runs, own, shared)).differs.any() for _ in range(60)]
    assert sum(found) <= 6


def test_a_row_that_was_disturbed_is_no_verdict_without_repeats():
    """One of 12 rows is a fifth longer: with one run on each side, that may be chance."""
    source = np.random.default_rng(6)
    for runs, expected in ((1, 0), (3, 1)):
        rows = table(source, runs, 0.002, 0.0)
        rows.loc[(rows["key"] == 3) & (rows["side"] == 1), "log"] += np.log(1.2)
        assert verdicts.judge(rows).differs.sum() == expected


def test_intervals_and_verdicts_agree():
    """A row differs exactly if its interval does not hold 1."""
    source = np.random.default_rng(2)
    for factor in (1.0, 1.03, 1.2):
        found = verdicts.judge(table(source, 2, 0.01, 0.005, factor))
        outside = (found.low > 1) | (found.high < 1)
        assert (outside == found.differs).all()


def test_more_runs_give_smaller_intervals():
    """Of one run on each side the shared noise is not known, but assumed."""
    source = np.random.default_rng(3)
    widths = [
        np.mean(found.high - found.low)
        for found in (verdicts.judge(table(source, runs, 0.01, 0.005)) for runs in (2, 8))
    ]
    assert widths[1] < widths[0] / 2


def test_without_repeats_and_with_few_rows_nothing_is_known():
    """Four rows with one run each."""
    rows = table(np.random.default_rng(4), 1, 0.01, 0.0)
    assert verdicts.judge(rows[rows["key"] < verdicts.FEWEST - 1]) is None


@pytest.mark.parametrize("runs", [1, 2])
def test_times_without_any_noise_are_judged(runs):
    """Such as those of a simulator: a ratio of 2 everywhere, and every run the same."""
    rows = table(np.random.default_rng(5), runs, 0.0, 0.0, 2.0)
    assert verdicts.judge(rows.assign(within=0.0)).differs.all()
