"""Differences are told from noise at the promised rate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcsweep.analysis import best_layers, compare, dataset, report, verdicts
from hpcsweep.store.folders import SweepDir

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
    cells = {"pair": keys, "side": (run >= runs).astype(int), "origin": run, "visit": "1"}
    return pd.DataFrame({**cells, "log": logs, "within": 1e-6, "control": np.nan})


NOISY = np.where(np.arange(ROWS) < 2, 0.1, 0.01)  # two of the rows, ten times


@pytest.mark.parametrize(
    ("runs", "own", "shared"), [(2, 0.01, 0.03), (3, 0.01, 0.03), (3, NOISY, 0.0), (5, NOISY, 0.0)]
)
def test_differences_are_claimed_rarely_where_there_are_none(runs, own, shared):
    """Of a pair in 4 % of comparisons, give or take, whatever its own noise."""
    source = np.random.default_rng(1)
    found = [verdicts.judge(table(source, runs, own, shared))["differs"] for _ in range(30)]
    assert np.mean(found) < 0.1


def test_one_row_that_is_slower_is_found_by_three_runs():
    """A tenth more, with one percent of noise; the next rows are as they were."""
    found = np.zeros(ROWS)
    source = np.random.default_rng(6)
    for _ in range(20):
        rows = table(source, 3, 0.01, 0.0)
        rows.loc[(rows["pair"] == 3) & (rows["side"] == 1), "log"] += np.log(1.1)
        found += verdicts.judge(rows)["differs"].to_numpy()
    assert found[3] == 20
    assert np.delete(found, 3).max() <= 5


@pytest.mark.parametrize(("control", "factor", "differs"), [
    (1.0, 1.15, False), (1.0, 1.3, True), (1.2, 1.3, False), (None, 3.0, False),
])  # fmt: skip
def test_single_runs_differ_only_by_more_than_visits_of_a_shared_machine(control, factor, differs):
    """And than their own controls show; without these nobody knows the machine."""
    rows = table(np.random.default_rng(7), 1, 0.001, 0.0, factor)
    if control:
        rows["control"] = np.where(rows["side"] == 1, np.log(control), 0.0)
    found = verdicts.judge(rows)
    assert set(found["differs"]) == {differs}
    assert found["low"].isna().all() == (control is None)


def controlled(rows, *controls):
    """Return rows with the times of the control, one list for each side."""
    sides = [np.resize(controls[side], (rows["side"] == side).sum()) for side in (0, 1)]
    return rows.assign(control=np.log(np.concatenate(sides)))


def test_what_the_controls_explain_is_no_difference():
    """One side ran on a machine that was a tenth slower, in all of its runs."""
    source = np.random.default_rng(8)
    for factor, expected in ((1.1, 0), (1.5, ROWS)):
        rows = controlled(table(source, 3, 0.005, 0.0, factor), [1.0], [1.1])
        found = verdicts.judge(rows)
        assert (found["differs"].mean() > 0.9) == bool(expected)
        assert (found["low"] < found["gap"] - np.log(1.1)).all()


def test_more_runs_give_smaller_intervals():
    """Each run tells more of the noise that all rows share."""
    source = np.random.default_rng(3)
    widths = [
        np.mean(found["high"] - found["low"])
        for found in (verdicts.judge(table(source, runs, 0.01, 0.005)) for runs in (3, 12))
    ]
    assert widths[1] < widths[0] / 2


@pytest.mark.parametrize("runs", [2, 3])
def test_times_without_any_noise_are_judged(runs):
    """Such as those of a simulator: a ratio of 2 everywhere, and every run the same."""
    rows = table(np.random.default_rng(5), runs, 0.0, 0.0, 2.0)
    assert verdicts.judge(rows.assign(within=0.0))["differs"].all()


def candidates(source, groups, names, visits, noise):
    """Return the visits of equal candidates, each visit off by itself."""
    index = pd.MultiIndex.from_product([range(groups), range(names), range(visits)],
                                       names=["group", "name", "visit"])  # fmt: skip
    rows = index.to_frame(index=False)
    off = np.resize(source.normal(0, 0.1, visits), len(rows))
    return rows.assign(log=noise(len(rows)) + off, within=1e-8, origin="", control=np.nan)


def stars(rows):
    """Return the fastest of each group of candidates."""
    found = []
    for _, group in rows.groupby("group", sort=False):
        own = {}
        for name, visits in group.groupby("name", sort=False):
            cells = visits[[*verdicts.VisitTime._fields]].itertuples(index=False, name=None)
            own[name] = [verdicts.VisitTime(*each) for each in cells]
        found.append(verdicts.fastest(own))
    return [one for one in found if one]


NOISES = {
    "normal": lambda source, n: source.normal(0, 0.01, n),
    "heavy tails": lambda source, n: 0.01 * source.standard_t(2, n),
    "two values": lambda source, n: 0.03 * (source.random(n) < 0.5),
    "one in ten disturbed": lambda source, n: source.normal(0, 0.01, n) + (source.random(n) < 0.1),
}


@pytest.mark.parametrize(("names", "missing"), [(2, 0.0), (4, 0.0), (2, 0.1), (2, 0.3)])
@pytest.mark.parametrize("noise", NOISES)
def test_equals_are_seldom_starred(names, missing, noise):
    """Of 300 groups with three visits, of which some may be missing at random."""
    source = np.random.default_rng(9)
    rows = candidates(source, 300, names, 3, lambda n: NOISES[noise](source, n))
    found = stars(rows[source.random(len(rows)) >= missing])
    assert sum(one.sure for one in found) <= 20  # of 12 that are right


def test_a_difference_of_five_percent_is_found_by_five_visits():
    """With one percent of noise; by three visits mostly, and by one not."""
    source = np.random.default_rng(10)
    rows = candidates(source, 40, 3, 5, lambda n: source.normal(0, 0.01, n))
    rows.loc[rows["name"] == 1, "log"] -= 0.05
    found = stars(rows)
    assert sum(one.sure and one.name == 1 for one in found) >= 38
    three = stars(rows[rows["visit"] < 3])
    assert sum(one.sure and one.name == 1 for one in three) >= 15
    once = stars(rows[rows["visit"] == 0])
    assert not any(one.sure for one in once)
    assert {one.visits for one in once} == {1}


def test_the_mean_of_all_rows_counts_each_run_once():
    """What the rows of a run share does not shrink with their number."""
    source = np.random.default_rng(3)
    held = []
    for _ in range(20):
        rows = table(source, 3, 0.01, 0.03)
        mean, low, high = verdicts.mean_ratio(rows, verdicts.judge(rows))
        assert low < mean < high
        held.append(low <= 1 <= high)
    assert np.mean(held) >= 0.9


def written(folder, points):
    """Return the merged table of points: algorithm, size, visit, time, control, whether valid."""
    columns = ["algorithm", "input_size", "visit", "median_ms", "control_ms", "valid"]
    rows = pd.DataFrame(points, columns=columns).drop_duplicates(columns[:3])
    rows["valid"] = rows["valid"].map({True: "true", False: "false"})
    rows["flags"] = rows["valid"].map({"true": "", "false": "contended"})
    ids = [f"{name}{size}{visit}" for name, size, visit in rows[columns[:3]].to_numpy()]
    named = rows.assign(point_id=ids, model="resnet18", status="ok", orphan="false")
    run = SweepDir(folder / "s")
    run.path.mkdir(exist_ok=True)
    named.assign(algorithm_coverage_pct=100).to_csv(run.overall, index=False)
    return run


def of_report(run, where=""):
    """Return the star of the small images in a report: the algorithm, or an empty text."""
    for row in report.read_report(run, where=where).rows:
        if row["input_size"] == 64:
            return row["fastest"]
    return ""


def of_compare(run):
    """Return the same of a comparison of one algorithm with the other."""
    root, path = run.path.parent, str(run.path)
    sides = [compare.read_side(root, path, f"algorithm={name}") for name in ("gemm", "fft")]
    found = compare.compare_sides(*sides).table.set_index("input_size")["verdict"]
    return {"SLOWER": "gemm", "FASTER": "fft"}.get(found[64], "")


def of_best(run, default, rival):
    """Return the same of a layer that takes as long as its network."""
    data = dataset.read_dataset(run)
    rows, _ = data.chosen("input_size=64")
    times = pd.DataFrame(verdicts.timed(rows, "median_ms"), rows.index)
    times = times.assign(
        config=0, call_index=0, layer="conv", unique_key="k", algorithm=rows["algorithm"],
        ms=rows["median_ms"],
    )  # fmt: skip
    (chosen,) = best_layers.choose(times, default).calls["algorithm"]
    return rival if chosen == rival else ""


def drawn(visits, apart, noise):
    """Return visits of two algorithms in small images, and any points of other sizes."""
    source = np.random.default_rng(visits)
    own = [
        (
            name,
            64,
            visit,
            float(np.exp(apart * (name == "fft") + source.normal(0, noise))),
            1.0,
            True,
        )
        for visit in range(1, visits + 1)
        for name in ("gemm", "fft")
    ]
    others = [
        (name, int(size), int(visit), float(ms), [None, 1.0, 1.3][control], bool(valid))
        for name, size, visit, ms, control, valid in zip(
            source.choice(["gemm", "fft"], 20), source.choice([96, 128, 160], 20),
            source.integers(1, 5, 20), source.uniform(0.5, 2, 20), source.integers(0, 3, 20),
            source.random(20) < 0.7, strict=True,
        )
    ]  # fmt: skip
    return own, others


def test_two_rows_have_one_verdict_wherever_they_are_asked_about(tmp_path):
    """In a report of all rows or of theirs alone, in a comparison, and in a choice."""
    stars = set()
    kinds = [(1, 0.4, 0.002), (3, -0.1, 0.002), (4, 0.1, 0.2)]
    for seed in kinds:
        own, others = drawn(*seed)
        alone = written(tmp_path, own)
        star = of_report(alone)
        assert of_compare(alone) == star, seed
        assert (of_best(alone, "gemm", "fft") or of_best(alone, "fft", "gemm")) == star, seed
        many = written(tmp_path, [*own, *others])
        assert of_report(many) == of_report(many, "input_size=64") == star, seed
        assert of_compare(many) == star, seed
        assert (of_best(many, "gemm", "fft") or of_best(many, "fft", "gemm")) == star, seed
        stars.add(star)
    assert stars == {"", "gemm", "fft"}
