"""Differences are told from noise at the promised rate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcsweep.analysis import verdicts

ROWS = 12


def table(source, runs, own, shared, factor=1.0):
    """Return the rows of two sides with so many runs, with noise of rows and of whole runs.

    `own` is one number, or one of each row.
    """
    own = np.tile(np.broadcast_to(own, ROWS), 2 * runs)
    keys = np.tile(np.arange(ROWS), 2 * runs)
    run = np.repeat(np.arange(2 * runs), ROWS)
    logs = (
        keys
        + own * source.normal(0, 1, keys.size)
        + np.repeat(source.normal(0, shared, 2 * runs), ROWS)
    )
    logs += np.where(run >= runs, np.log(factor), 0.0)
    cells = {"key": keys, "side": (run >= runs).astype(int), "run": run % runs}
    return pd.DataFrame({**cells, "log": logs, "within": 1e-6})


NOISY = np.where(np.arange(ROWS) < 2, 0.1, 0.01)  # two of the rows, ten times


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "own", "shared"),
    [(2, 0.01, 0.03), (3, 0.01, 0.03), (2, NOISY, 0.0), (3, NOISY, 0.0), (5, NOISY, 0.0)],
)
def test_differences_are_claimed_rarely_where_there_are_none(runs, own, shared):
    """In 4 % of comparisons, give or take, any of 12 rows is called different."""
    source = np.random.default_rng(1)
    found = [verdicts.judge(table(source, runs, own, shared)).differs.any() for _ in range(40)]
    assert sum(found) <= 4


def test_report_stars_hardly_anything_that_compare_calls_undecided():
    """Two equal algorithms, and 2 % that all rows of one share in a visit: both know it."""
    source = np.random.default_rng(3)
    alone = []
    for _ in range(25):
        rows = table(source, 3, 0.005, 0.02)
        judged = verdicts.judge(rows)
        stars = verdicts.fastest(
            rows.rename(columns={"key": "group", "side": "name", "run": "visit"})
        )
        differs = dict(zip(sorted(stars), judged.differs, strict=True))
        alone += [one.sure and not differs[group] for group, one in stars.items()]
    assert np.mean(alone) < 0.04


def test_one_row_of_many_is_found_by_three_runs():
    """A tenth more, with one percent of noise."""
    rows = table(np.random.default_rng(6), 3, 0.01, 0.0)
    rows.loc[(rows["key"] == 3) & (rows["side"] == 1), "log"] += np.log(1.1)
    assert np.flatnonzero(verdicts.judge(rows).differs).tolist() == [3]


def controlled(rows, *controls):
    """Return rows with the times of the control, one list for each side."""
    sides = [np.resize(controls[side], (rows["side"] == side).sum()) for side in (0, 1)]
    return rows.assign(control=np.log(np.concatenate(sides)))


def test_single_runs_differ_only_by_more_than_all_that_their_controls_show():
    """The control varies by 8 %: 5 % is nothing, 30 % is."""
    source = np.random.default_rng(7)
    for factor, expected in ((1.05, 0), (1.3, ROWS)):
        rows = table(source, 1, 0.005, 0.0, factor)
        assert verdicts.judge(rows) is None
        found = verdicts.judge(controlled(rows, [1.0, 1.05], [1.03, 1.08]))
        assert found.differs.sum() == expected


def test_what_the_controls_explain_is_no_difference():
    """One side ran on a machine that was a tenth slower, in all of its runs."""
    source = np.random.default_rng(8)
    for factor, expected in ((1.1, 0), (1.5, ROWS)):
        rows = controlled(table(source, 3, 0.005, 0.0, factor), [1.0], [1.1])
        found = verdicts.judge(rows)
        assert found.differs.sum() == expected
        assert (found.low < found.ratio / 1.1).all()


def test_intervals_and_verdicts_agree():
    """A row differs exactly if its interval does not hold 1."""
    source = np.random.default_rng(2)
    for factor in (1.0, 1.03, 1.2):
        found = verdicts.judge(table(source, 2, 0.01, 0.005, factor))
        outside = (found.low > 1) | (found.high < 1)
        assert (outside == found.differs).all()


def test_more_runs_give_smaller_intervals():
    """Each run tells more of the noise that all rows share."""
    source = np.random.default_rng(3)
    widths = [
        np.mean(found.high - found.low)
        for found in (verdicts.judge(table(source, runs, 0.01, 0.005)) for runs in (3, 12))
    ]
    assert widths[1] < widths[0] / 2


def test_two_runs_of_a_few_rows_decide_nothing():
    """Both may agree by chance, and no other row tells that."""
    rows = table(np.random.default_rng(4), 2, 0.01, 0.0)
    assert verdicts.judge(rows[rows["key"] < verdicts.FEW_ROWS - 1]) is None


@pytest.mark.parametrize("runs", [2, 3])
def test_times_without_any_noise_are_judged(runs):
    """Such as those of a simulator: a ratio of 2 everywhere, and every run the same."""
    rows = table(np.random.default_rng(5), runs, 0.0, 0.0, 2.0)
    assert verdicts.judge(rows.assign(within=0.0)).differs.all()


def candidates(source, groups, names, visits, noise):
    """Return the visits of equal candidates, each visit off by itself."""
    index = pd.MultiIndex.from_product([range(groups), range(names), range(visits)],
                                       names=["group", "name", "visit"])  # fmt: skip
    rows = index.to_frame(index=False)
    off = np.resize(source.normal(0, 0.1, visits), len(rows))
    return rows.assign(log=noise(len(rows)) + off, within=1e-8)


@pytest.mark.parametrize("names", [2, 4])
@pytest.mark.parametrize(
    "noise",
    [
        lambda source: lambda n: source.normal(0, 0.01, n),
        lambda source: lambda n: 0.01 * source.standard_t(2, n),
        lambda source: lambda n: 0.03 * (source.random(n) < 0.5),
        lambda source: lambda n: source.normal(0, 0.01, n) + (source.random(n) < 0.1),
    ],
    ids=["normal", "heavy tails", "two values", "one in ten disturbed"],
)
def test_equals_are_seldom_starred(names, noise):
    """Of 300 groups with three visits."""
    source = np.random.default_rng(9)
    found = verdicts.fastest(candidates(source, 300, names, 3, noise(source)))
    assert sum(one.sure for one in found.values()) <= 15


def test_a_difference_of_five_percent_is_found_by_three_visits():
    """With one percent of noise; and nothing is by one visit, unless the machine is known."""
    source = np.random.default_rng(10)
    rows = candidates(source, 40, 3, 3, lambda n: source.normal(0, 0.01, n))
    rows.loc[rows["name"] == 1, "log"] -= 0.05
    found = verdicts.fastest(rows).values()
    assert sum(one.sure and one.name == 1 for one in found) >= 38
    once = verdicts.fastest(rows[rows["visit"] == 0])
    assert not any(one.sure for one in once.values())
    assert {one.visits for one in once.values()} == {1}


def test_visits_that_are_missing_do_not_blind_the_other_rows():
    """A row with two visits has one difference, which alone would say little of the noise."""
    source = np.random.default_rng(12)
    rows = candidates(source, 40, 2, 3, lambda n: source.normal(0, 0.01, n))
    rows.loc[rows["name"] == 1, "log"] -= 0.05
    kept = rows[(rows["group"] >= 10) | (rows["visit"] < 2)]
    found = verdicts.fastest(kept)
    assert sum(one.sure and one.name == 1 for one in found.values()) >= 38
    assert {one.visits for one in found.values()} == {2, 3}
    few = verdicts.fastest(kept[kept["group"] < 15])
    assert not any(one.sure for one in few.values() if one.visits == 2)


@pytest.mark.parametrize("missing", [0.1, 0.3])
def test_equals_are_seldom_starred_where_visits_are_missing(missing):
    """At random, with times that stick to one of two values."""
    source = np.random.default_rng(13)
    rows = candidates(source, 300, 2, 3, lambda n: 0.03 * (source.random(n) < 0.5))
    found = verdicts.fastest(rows[source.random(len(rows)) > missing])
    assert sum(one.sure for one in found.values()) <= 15


def test_a_few_noisy_rows_stay_noisy_and_quiet_ones_stay_quiet():
    """Two of twelve rows are ten times noisier: five visits tell which."""
    source = np.random.default_rng(1)
    scale = np.where(np.arange(12) < 2, 0.1, 0.01)
    found = verdicts.scatter(source.normal(0, scale[:, None], (12, 5)), np.zeros(12))
    error = np.sqrt(found.own)
    assert (error[:2] > 0.03).all()
    assert (error[2:] < 0.02).all()


def test_visits_that_agree_by_chance_do_not_look_free_of_noise():
    """Times stick to one of two values: three equal ones of a row say little, all rows more."""
    source = np.random.default_rng(2)
    logs = 0.03 * (source.random((20, 3)) < 0.5)
    found = verdicts.scatter(logs, np.zeros(20))
    assert (np.ptp(logs, axis=1) == 0).any()
    assert np.sqrt(found.own).min() > 0.005


def test_what_a_run_did_to_all_rows_is_told_apart_from_their_own_noise():
    """Of forty rows in six runs."""
    source = np.random.default_rng(3)
    shared = source.normal(0, 0.05, 6)
    found = verdicts.scatter(source.normal(0, 0.005, (40, 6)) + shared, np.zeros(40))
    assert np.sqrt(found.shared) == pytest.approx(np.std(shared, ddof=1), rel=0.1)
    assert np.sqrt(found.own).max() < 0.01


def test_what_few_runs_did_to_all_rows_is_never_surely_small():
    """Of three runs it often seems small, and the rows' own noise, which many tell, none of it."""
    source, found = np.random.default_rng(5), list[float]()
    for _ in range(600):
        logs = source.normal(0, 0.014, (1, 3)) + source.normal(0, 0.004, (53, 3))
        noise = verdicts.scatter(logs, np.zeros(53))
        found.append(noise.chance_of(logs.mean(axis=1), np.full(53, 3.0), 3)[0])
    chances = np.array(found)
    assert np.mean(chances < 0.05) == pytest.approx(0.05, abs=0.02)
    assert np.sum(chances < 0.005) <= 6  # of 3 that are right


def test_rows_that_were_measured_once_have_the_usual_noise():
    """They have none of their own; so they get what the others have."""
    logs = np.random.default_rng(4).normal(0, 0.01, (10, 4))
    logs[0, 1:] = np.nan
    found = verdicts.scatter(logs, np.zeros(10), alone=True)
    assert 0.004 < np.sqrt(found.own[0]) < 0.02


def test_noise_between_visits_is_never_less_than_inside_them():
    """Equal medians of noisy passes are luck."""
    found = verdicts.scatter(np.zeros((6, 3)), np.full(6, 0.02**2))
    assert found.own == pytest.approx(0.02**2)


def test_controls_tell_a_machine_from_five_on():
    """Each job by itself: another node is no noise. What no control feels is added."""
    quiet = verdicts.machine([np.zeros(4), np.ones(4)])
    assert quiet == verdicts.Machine(verdicts.ONCE**2, 6.0)
    assert verdicts.machine([np.zeros(3), np.ones(3)]) is None
    loud = verdicts.machine([np.array([0.0, 0.2, 0.4, 0.0, 0.2, 0.4])])
    assert loud.variance == pytest.approx(np.var([0, 0.2, 0.4, 0, 0.2, 0.4], ddof=1))
