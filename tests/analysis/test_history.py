"""Steps over many runs: found where they are, and not in noise of any kind."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import browser
import repeatedruns
from hpcsweep.analysis import compare, history
from hpcsweep.cli import tables

ROWS = 12


def autocorrelated(source, shape, share):
    """Return noise that remembers the run before."""
    noise = source.normal(size=shape)
    for run in range(1, shape[1]):
        noise[:, run] = share * noise[:, run - 1] + np.sqrt(1 - share**2) * noise[:, run]
    return noise


def of_rows(source, shape):
    """Return noise of which every sixth row has ten times as much."""
    return source.normal(size=shape) * np.where(np.arange(shape[0]) % 6, 1, 10)[:, None]


NOISE = {
    # chosen by these
    "independent": lambda source, shape: source.normal(size=shape),
    "remembers nearly all": lambda source, shape: autocorrelated(source, shape, 0.9),
    "heavy tails": lambda source, shape: source.standard_t(3, size=shape),
    "one run is off": lambda source, shape: (
        source.normal(size=shape) + 20 * (np.arange(shape[1]) == source.integers(shape[1]))
    ),
    # judged by these
    "remembers half": lambda source, shape: autocorrelated(source, shape, 0.5),
    "heavier tails": lambda source, shape: source.standard_t(2, size=shape),
    "rows are off": lambda source, shape: (
        source.normal(size=shape) + 30 * (source.random(shape) < 0.02)
    ),
    "two modes": lambda source, shape: (
        0.3 * source.normal(size=shape) + 5 * (source.random(shape) < 0.3)
    ),
    "shared by a run, and remembered": lambda source, shape: (
        0.3 * source.normal(size=shape) + autocorrelated(source, (1, shape[1]), 0.8)
    ),
    "rows differ": of_rows,
    "skewed": lambda source, shape: np.exp(source.normal(size=shape)),
}


def stepped(logs):
    """Return the runs, from 0, at which each row takes a step."""
    return [list(np.flatnonzero(np.diff(row) != 0) + 1) for row in history._levels(logs)]


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("runs", [6, pytest.param(10, marks=pytest.mark.slow), 20])
def test_noise_of_any_kind_has_no_steps(kind, runs):
    """At most 5 % of the tables show one; of 60 that is 3, and chance may add as many."""
    source = np.random.default_rng(len(kind) + runs)
    tables = [0.01 * NOISE[kind](source, (ROWS, runs)) for _ in range(60)]
    assert sum(any(stepped(table)) for table in tables) <= 6


@pytest.mark.parametrize(("runs", "at"), [(6, [3]), (8, [5]), (20, [10]), (24, [8, 16])])
def test_a_planted_step_is_found_where_it_is(runs, at):
    """Up, and down again; of 12 % with 1 % noise, in the rows that have it."""
    source = np.random.default_rng(runs)
    hits = 0
    for _ in range(20):
        logs = 0.01 * source.normal(size=(ROWS, runs))
        for place, begin in enumerate(at):
            logs[:4, begin:] += 0.12 * (-1) ** place
        found = stepped(logs)
        hits += sum(row == at for row in found[:4])
        assert not any(found[4:])
    assert hits >= 72  # of 80


def test_one_row_and_missing_runs_keep_their_places():
    """A run without a row of a configuration has no level, and shifts no step."""
    logs = np.where(np.arange(9) < 5, 1.0, 1.3)[None, :] + np.tile([0.001, -0.001, 0], 3)
    logs[0, 2] = np.nan
    (levels,) = history._levels(logs)
    assert np.isnan(levels[2])
    assert stepped(np.delete(logs, 2, axis=1)) == [[4]]
    assert levels[4] < levels[5]
    assert np.isfinite(history._levels(np.zeros((2, 4)))).all()


def made(factors, seed=1):
    """Return the history of runs whose times have these factors in the rows of gemm."""
    axes = [(size, algorithm) for size in (32, 64, 96) for algorithm in ("auto", "gemm")]
    source = np.random.default_rng(seed)
    read = []
    for factor in factors:
        cells = [
            {
                "model": "resnet18",
                "input_size": size,
                "algorithm": algorithm,
                "median_ms": size
                * source.lognormal(0, 0.005)
                * (factor if algorithm == "gemm" else 1),
            }
            for size, algorithm in axes
        ]
        read.append(compare.Side("demo", pd.DataFrame(cells), ()))
    names = [f"run {number} (2026-01-{number:02})" for number in range(1, len(read) + 1)]
    return history.make("demo", read, names, "median_ms")


def test_the_table_tells_steps_with_size_and_run():
    """For people in one row of a configuration, for programs in one of each run."""
    view = made([1, 1, 1, 1, 1.2, 1.2, 1.2, 1.2]).view()
    text = view.written("table")
    assert "steps in 3 of 6 configurations" in text
    assert text.count("run 5: +") == 3
    record = json.loads(json.dumps(view.to_json()))
    steps = [row for row in record["rows"] if row["step_pct"] is not None]
    assert {(row["algorithm"], row["run"]) for row in steps} == {("gemm", 5)}
    assert all(15 < row["step_pct"] < 25 for row in steps)
    assert len(record["rows"]) == 48


def test_runs_with_other_versions_are_marked():
    """A step may be the driver's, or one's own network's; nothing is said where all agree."""
    cells = {"model": "a", "algorithm": "auto", "median_ms": 1.0, "driver_version": "535"}
    old = pd.DataFrame([cells])
    new, none = (
        old.assign(driver_version="550", own_files="model=1"),
        old.drop(columns="driver_version"),
    )
    read = [compare.Side("demo", rows.copy(), ()) for rows in (old, old, new, new, none)]
    found = history.make("demo", read, [f"run {n}" for n in range(1, 6)], "median_ms")
    marks = [
        "run 3 has driver_version 550 instead of 535, own_files model=1 instead of unknown",
        "run 5 has driver_version unknown instead of 550, own_files unknown instead of model=1",
    ]
    assert [*found.changes] == [f"{mark}: a step there may be theirs" for mark in marks]
    assert found.changes[0] in found.view().written("table")
    assert made([1, 1, 1]).changes == ()


def test_few_runs_are_shown_without_steps():
    """And the table says how many more it takes."""
    text = made([1, 1, 1.5]).view().written("table")
    assert "steps are looked for from 6 runs on: 3 runs more" in text
    assert "run 3" in text


def test_a_sweep_that_was_measured_three_times_has_a_history(desk):
    """By its real results; with two runs it says how to get the third."""
    desk.results.mkdir()
    run = repeatedruns.run(desk.folder, 1)
    (desk.folder / "results").rmdir()
    (desk.folder / "results").symlink_to(run.path.parent)
    repeatedruns.again(run, desk.folder, "20260203-000000-b", repeatedruns.cells_of(2))
    assert "`hpcsweep submit demo --again`" in desk.run("compare", "demo", "--history").stderr
    repeatedruns.again(run, desk.folder, "20260204-000000-b", repeatedruns.cells_of(3))
    done = desk.run("compare", "demo", "--history")
    assert "over 3 runs" in done.stdout, done.stderr
    assert "run 3 (2026-02-04 00:00:00)" in done.stdout


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_draws_the_history(tmp_path):
    """One figure, with the data of all runs, if there are three or more."""
    from hpcsweep.analysis.page import write

    run = repeatedruns.run(tmp_path, 1)
    repeatedruns.again(run, tmp_path, "20260203-000000-b", repeatedruns.cells_of(2))
    assert tables._history(run, "") is None
    repeatedruns.again(run, tmp_path, "20260204-000000-b", repeatedruns.cells_of(3))
    found = tables._history(run, "")
    page = tmp_path / "page.html"
    assert write.write(run, page, history=found) == []
    with browser.chromium() as chromium:
        shown = browser.opened(chromium, page, viewport={"width": 900, "height": 900})
        figure = shown.locator("[id^=figure-history] svg")
        assert figure.count() == 1
        assert figure.locator("path.mark").count() >= 36
