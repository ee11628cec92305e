"""What can be compared: a sweep, its submissions, rows of it, folders of other machines."""

from __future__ import annotations

import shutil

import pytest

import repeatedruns
from hpcsweep.analysis import compare, sides
from hpcsweep.cli.common import renewed
from hpcsweep.errors import UsageError

SECOND = "20260203-000000-bbbbbb"


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Return the results of a sweep that was measured twice."""
    path = tmp_path_factory.mktemp("twice")
    run = repeatedruns.run(path, 1)
    cells = repeatedruns.cells_of(2, factor=lambda _axes: 2.0)
    repeatedruns.again(run, path, SECOND, cells)
    return run


def test_a_submission_is_named_by_its_date(twice):
    """Its rows come from the shards: the table keeps the later row of each point."""
    root = twice.path.parent
    dates = ("demo@20260101", "demo@2026-02-03", "demo")
    first, second, table = (sides.read(root, text, renewed=renewed) for text in dates)
    assert [len(side.rows) for side in (first, second, table)] == [12, 12, 12]
    assert second.rows["median_ms"].sum() == table.rows["median_ms"].sum()
    assert second.rows["median_ms"].sum() / first.rows["median_ms"].sum() > 1.9
    assert [side.runs for side in (first, second, table)] == [1, 1, 1]
    assert sides.read(root, "demo@2026", renewed=renewed).runs == 2


def test_runs_are_joined_and_rows_chosen(twice):
    """By `+`, and by column=value."""
    root = twice.path.parent
    joined = sides.read(root, "demo@20260101+demo@20260203", renewed=renewed)
    assert (joined.runs, len(joined.rows)) == (2, 24)
    chosen = sides.read(root, "demo:algorithm=gemm,input_size=64")
    assert list(chosen.rows["median_ms"] > 100) == [True]
    assert len(sides.read(root, "demo:algorithm=gemm", "input_size=64").rows) == 1


def test_a_folder_that_was_brought_from_elsewhere_is_a_side(twice, tmp_path):
    """The sweep's folder, the folder around it, or the tables alone."""
    for name in ("overall.csv", "layers.csv"):
        shutil.copy(twice.file(name), tmp_path)
    for path in (twice.path, twice.path.parent, tmp_path):
        assert len(sides.read(tmp_path / "results", str(path)).rows) == 12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dmeo", "did you mean 'demo'"),
        ("demo@2025", "no run or submission '2025'.*2026-01-01"),
        ("demo:gpuu=v100", "no column 'gpuu'; did you mean 'gpu'"),
        ("demo:gpu=v100", "gpu is one of cpu"),
        ("/", "it has no overall.csv and no submissions"),
    ],
)
def test_what_is_not_there_is_told(twice, text, words):
    """With what is there."""
    with pytest.raises(UsageError, match=words):
        sides.read(twice.path.parent, text)


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("demo@previous", 1.0),
        ("demo@1", 1.0),
        ("demo@2", 2.0),
        ("demo@2026-02-03", 2.0),
        ("demo@2026-02-03T00:00", 2.0),
        ("demo@2026-02-03 00:00:00:algorithm=gemm", 2.0),
        (f"demo@{SECOND}", 2.0),
    ],
)
def test_a_run_is_named_by_date_number_or_place(twice, text, factor):
    """Its rows are its own, also behind a colon of its time."""
    side = sides.read(twice.path.parent, text, renewed=renewed)
    per_pixel = side.rows["median_ms"] / side.rows["input_size"].astype(float)
    assert abs(per_pixel.mean() - factor) < 0.1
    assert len(side.rows) == (6 if "gemm" in text else 12)


@pytest.mark.parametrize("at", ["3", "yesterday", "2026-02-03T01", "", "0", "20260203-000000-x"])
def test_a_run_that_is_not_there_is_told_with_those_that_are(twice, at):
    """With number, date and time."""
    with pytest.raises(UsageError, match=r"run 1 \(2026-01-01 .*run 2 \(2026-02-03 00:00:00\)"):
        sides.read(twice.path.parent, f"demo@{at}", renewed=renewed)


def test_a_day_with_several_runs_needs_the_time(tmp_path):
    """None of them is taken in silence, nor all of them as repeats."""
    run = repeatedruns.run(tmp_path, 1)
    for hour in ("09", "17"):
        cells = repeatedruns.cells_of(int(hour))
        repeatedruns.again(run, tmp_path, f"20260203-{hour}0000-bbbbbb", cells)
    with pytest.raises(UsageError, match=r"run 2 .*09:00:00.* or run 3 .*17:00:00.*add the time"):
        sides.read(run.path.parent, "demo@2026-02-03", renewed=renewed)
    side = sides.read(run.path.parent, "demo@2026-02-03T17", renewed=renewed)
    assert set(side.rows["submission"]) == {"20260203-170000-bbbbbb"}


def test_one_sweep_alone_is_its_last_two_runs(twice, tmp_path):
    """With the columns that it names; one run is told, with what makes another."""
    texts = sides.of_runs(twice.path.parent, "demo:algorithm=gemm", 2)
    assert [*texts.values()] == ["demo@1:algorithm=gemm", "demo@2:algorithm=gemm"]
    single = repeatedruns.run(tmp_path, 1)
    with pytest.raises(UsageError, match=r"demo has 1 run .*hpcsweep .*submit demo --again"):
        sides.of_runs(single.path.parent, "demo", 2)


def test_sides_that_are_the_same_rows_are_told(twice):
    """Whatever they are called; so are some rows that stand on both sides."""

    def told(first, second):
        read = [sides.read(twice.path.parent, text, renewed=renewed) for text in (first, second)]
        return "\n".join(compare.compare(*read).notes)

    assert "both sides are the same rows" in told("demo", "demo@2")
    assert "same" not in told("demo@1", "demo@2")
    assert "12 rows of both sides are the same ones" in told("demo@1", "demo@1+demo@2")
