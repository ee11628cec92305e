"""A row that takes ten times as long as its neighbours is marked; no curve and no step is."""

from __future__ import annotations

import csv
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.analysis import report
from hpcsweep.collect import lonely, merge
from hpcsweep.collect.workflow import collect
from hpcsweep.store.rundir import ShardPath
from localruns import Desk
from resultsfolder import Folder, make, overall

if TYPE_CHECKING:
    from pathlib import Path

TIMES = {224: 0.7, 256: 0.76, 288: 155.9, 320: 0.8, 352: 0.9}
SWEEP = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  input_size: [224, 256, 288, 320, 352]
  algorithm: [gemm, winograd]
"""


def entries(times: dict[Any, float], axis: str = "input_size", **cells: str) -> list[merge.Entry]:
    """Return rows that differ in one axis alone, by its value."""
    rows = [
        {"point_id": f"{value}", "status": "ok", "valid": "true", "workload": "inference",
         "model": "net", "input_size": "64", axis: str(value), "median_ms": str(ms), **cells}
        for value, ms in times.items()
    ]  # fmt: skip
    return [entry(row) for row in rows]


def entry(row: dict[str, str]) -> merge.Entry:
    """Return a row as a collect knows it."""
    origin = merge.Origin((0, "s"), 0, 0, 0)
    return merge.entry(
        row, line=b"", columns=(), origin=origin, shard=None, places=((0, 0), (0, 0))
    )


def test_one_row_far_above_both_neighbours_is_lonely() -> None:
    """Over sizes, batches or threads, whatever the order of the rows."""
    for axis in ("input_size", "batch_size", "num_threads"):
        rows = entries(TIMES, axis)
        assert lonely.among(rows) == lonely.among(rows[::-1]) == {"288"}


def test_numbers_are_neighbours_by_their_value_not_by_their_text() -> None:
    """64, 96, 128: as texts, 128 would come first."""
    assert lonely.among(entries({64: 1.0, 96: 20.0, 128: 1.5})) == {"96"}
    assert not lonely.among(entries({64: 1.0, 96: 1.2, 128: 20.0}))


steps = st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=12)


@given(steps, st.booleans())
def test_no_monotone_curve_has_a_lonely_row(factors: list[float], falls: bool) -> None:  # noqa: FBT001
    """However steep it is; so the ends are never marked."""
    times = list(accumulate(factors, mul))
    curve = dict(enumerate(times[::-1] if falls else times, 1))
    assert not lonely.among(entries(curve))


@given(st.lists(st.floats(1.0, 3.0), min_size=3, max_size=12), st.lists(st.floats(1, 3)))
def test_no_step_up_to_three_is_one(bumps: list[float], growth: list[float]) -> None:
    """A library that takes another algorithm at one size alone; on a curve that grows."""
    slopes = (growth * len(bumps))[: len(bumps)] or [1.0] * len(bumps)
    curve = [bump * rise for bump, rise in zip(bumps, accumulate(slopes, mul), strict=True)]
    assert not lonely.among(entries(dict(enumerate(curve, 1))))


@given(
    st.lists(st.floats(1.0, 1.5), min_size=3, max_size=12),
    st.floats(25.0, 1000.0),
    st.integers(0, 9),
)
def test_one_disturbed_row_of_any_gentle_curve_is(
    growth: list[float], by: float, where: int
) -> None:
    """Between the ends."""
    times = dict(enumerate(accumulate(growth, mul), 1))
    place = 2 + where % (len(times) - 2)
    times[place] *= by
    assert lonely.among(entries(times)) == {str(place)}


def test_a_reason_explains_it() -> None:
    """Another algorithm than asked for, or a doubt; and neighbours in doubt prove nothing."""
    assert not lonely.among([*entries({1: 1.0, 3: 1.0}), *entries({2: 50.0}, flags="fallback")])
    same = entries({1: 1.0, 2: 50.0, 3: 1.0}, flags="fallback;noisy")
    assert lonely.among(same) == {"2"}
    doubtful = entries({2: 50.0}, flags="contended", valid="false")
    assert not lonely.among([*entries({1: 1.0, 3: 1.0}), *doubtful])
    beside = entries({3: 40.0}, flags="contended", valid="false")
    assert lonely.among([*entries({1: 1.0, 2: 50.0, 4: 1.0}), *beside]) == {"2"}


def test_rows_of_other_configurations_are_no_neighbours() -> None:
    """They differ in two axes; nor are rows of points that sleep."""
    others = entries({256: 0.7, 320: 0.7}, algorithm="gemm")
    assert not lonely.among([*others, *entries({288: 50.0}, algorithm="fft")])
    assert not lonely.among(entries(TIMES, workload="noop"))
    assert not lonely.among(entries({"a": 1.0, "b": 50.0, "c": 1.0}, "model"))


@pytest.mark.parametrize("axis", ["visit", "seed"])
def test_of_repetitions_all_others_are_neighbours(axis: str) -> None:
    """The last visit, too; of two it cannot be said which one is wrong."""
    assert lonely.among(entries({1: 1.0, 2: 1.1, 3: 50.0}, axis)) == {"3"}
    assert not lonely.among(entries({1: 1.0, 2: 50.0}, axis))
    assert not lonely.among(entries({1: 1.0, 2: 50.0, 3: 50.0}, axis))


def measure(folder: Folder, name: str, of: str, times: dict[int, float], **cells: Any) -> None:
    """Write the rows of an algorithm."""
    points = [p for p in folder.points if p.axes["algorithm"] == of]
    folder.submit(name, points, text=SWEEP, profile="local", rehearsal=False)
    for number, point in enumerate(p for p in points if p.axes["input_size"] in times):
        ms = times[point.axes["input_size"]]
        folder.measure(
            ShardPath(folder.run.shards_dir / name, 0, number), [point], median_ms=ms, mean_ms=ms,
            workload="inference", algorithm_coverage_pct=100, n=20, std_ms=ms / 100, control_ms=1,
            **cells,
        )  # fmt: skip


def test_tables_mark_it_nobody_stars_against_it_and_a_retry_measures_it(tmp_path: Path) -> None:
    """And when it was measured again, its mark is gone."""
    folder = make(tmp_path, SWEEP)
    measure(folder, "s1", "gemm", TIMES)
    measure(folder, "s2", "winograd", dict.fromkeys(TIMES, 0.5))
    for _ in range(2):
        found = collect(folder.run)
        assert found.doubts == {"lonely": 1}
        assert "disturbed (ten times as long as the neighbours)" in found.text()
    (marked,) = [row for row in overall(folder.run) if row["flags"]]
    assert (marked["input_size"], marked["flags"], marked["valid"]) == ("288", "lonely", "false")
    rows = {row["input_size"]: row for row in report.read(folder.run).rows}
    assert rows[288]["fastest"] == rows[288]["fastest_here"] == ""
    assert rows[288]["doubtful"] == ["gemm"]
    assert rows[256]["fastest_here"] or rows[256]["fastest"]
    told = Desk(tmp_path).run("retry", "demo", "--invalid", "--dry-run")
    assert "1 point to measure again on" in told.stdout + told.stderr
    measure(folder, "s3", "gemm", {288: 0.78})
    assert collect(folder.run).doubts == {}
    with folder.run.overall.open(newline="") as file:
        assert {row["valid"] for row in csv.DictReader(file)} == {"true"}
