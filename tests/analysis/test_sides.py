"""What can be compared: a sweep, its submissions, rows of it, folders of other machines."""

from __future__ import annotations

import shutil

import pytest

import repeatedruns
from hpcsweep.analysis import sides
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
    first, second, table = (sides.read(root, text) for text in dates)
    assert [len(side.rows) for side in (first, second, table)] == [12, 12, 12]
    assert second.rows["median_ms"].sum() == table.rows["median_ms"].sum()
    assert second.rows["median_ms"].sum() / first.rows["median_ms"].sum() > 1.9
    assert [side.runs for side in (first, second, table)] == [1, 1, 1]
    assert sides.read(root, "demo@2026").runs == 2


def test_runs_are_joined_and_rows_chosen(twice):
    """By `+`, and by column=value."""
    root = twice.path.parent
    joined = sides.read(root, "demo@20260101+demo@20260203")
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
        ("demo@2025", "no submission begins with '2025'.*20260101"),
        ("demo:gpuu=v100", "no column 'gpuu'; did you mean 'gpu'"),
        ("demo:gpu=v100", "gpu is one of cpu"),
        ("/", "it has no overall.csv and no submissions"),
    ],
)
def test_what_is_not_there_is_told(twice, text, words):
    """With what is there."""
    with pytest.raises(UsageError, match=words):
        sides.read(twice.path.parent, text)
