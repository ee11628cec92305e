"""Which row of a point counts, in which order, and whether rows may be compared."""

from __future__ import annotations

import csv
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.analysis import report
from hpcsweep.catalog.columns import SHARD_COLUMNS
from hpcsweep.cluster import status
from hpcsweep.store import ledger
from hpcsweep.store.collect import merge
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.folders import ShardPath
from hpcsweep.store.shards import Shard
from localruns import Desk
from resultsfolder import Folder, by_point, make, overall

if TYPE_CHECKING:
    from resultsfolder import Folder


def test_ok_beats_everything_and_later_beats_earlier(folder: Folder) -> None:
    """A retry that fails does not take a number away."""
    points = folder.points
    folder.measure(folder.shard("s1"), points[:4], mean_ms=1.0)
    folder.measure(folder.shard("s1", attempt=1), points[2:], status="crashed")
    folder.submit("s2")
    folder.measure(folder.shard("s2"), points[:1], mean_ms=3.0)
    folder.measure(folder.shard("s2", attempt=1), points[6:], status="oom")
    report = collect(folder.sweep_dir)
    status, ms = by_point(folder.sweep_dir, "status"), by_point(folder.sweep_dir, "mean_ms")
    assert [status[p.point_id] for p in points] == ["ok"] * 4 + ["crashed"] * 2 + ["oom"] * 2
    assert [ms[p.point_id] for p in points[:4]] == ["3", "1", "1", "1"]
    assert report.duplicates == 5
    assert "5 points with several rows" in report.text()


def test_the_later_round_counts_whatever_the_clock_said(folder: Folder) -> None:
    """The clock went back before the second submission; both orders of collecting agree."""
    point = folder.points[0]
    folder.submit("a-earlier-name", [point], round=1)
    folder.measure(folder.shard("s1"), [point], status="crashed")
    collect(folder.sweep_dir)
    folder.measure(folder.shard("a-earlier-name"), [point], status="oom")
    assert collect(folder.sweep_dir).statuses == {"oom": 1}
    folder.sweep_dir.collect_index.unlink()
    assert collect(folder.sweep_dir).statuses == {"oom": 1}
    assert ledger.statuses(folder.sweep_dir) == {point.point_id: "oom"}
    (found,) = status.read_status(folder.sweep_dir.path.parent, [])
    assert found.profiles[0].tally().counts() == {"oom": 1}


def test_a_manifest_that_comes_back_changes_which_row_counts(folder: Folder) -> None:
    """Until then its name says where it stands among the others; nothing of that is remembered."""
    point = folder.points[0]
    earlier = folder.submit("a-earlier-name", [point], round=1)
    folder.measure(folder.shard("s1"), [point], status="crashed")
    folder.measure(folder.shard("a-earlier-name"), [point], status="oom")
    manifest = earlier.manifest.read_bytes()
    earlier.manifest.unlink()
    assert collect(folder.sweep_dir).statuses == {"crashed": 1}
    earlier.manifest.write_bytes(manifest)
    assert collect(folder.sweep_dir).statuses == {"oom": 1}


def test_rows_that_ran_with_other_libraries_are_flagged(folder: Folder) -> None:
    """The minority of each GPU type, after the flags that they have."""
    points = folder.points
    folder.measure(folder.shard("s1"), points[:5])
    folder.measure(
        folder.shard("s1", 1), points[5:7], torch_version="2.8.0", flags="noisy;few_samples"
    )
    folder.measure(folder.shard("s1", 2), points[7:], torch_version="2.8.0", status="oom")
    report = collect(folder.sweep_dir)
    flags = by_point(folder.sweep_dir, "flags")
    assert [flags[p.point_id] for p in points] == (
        [""] * 5 + ["noisy;few_samples;version_mix"] * 2 + [""]
    )
    (mix,) = report.version_mixes
    assert [(g["torch_version"], g["rows"]) for g in mix["groups"]] == [("2.9.0", 5), ("2.8.0", 2)]
    assert "2 rows with torch_version 2.8.0" in report.text()


def test_the_flag_goes_when_the_majority_changes(folder: Folder) -> None:
    """Also on rows that were collected before."""
    points = folder.points
    folder.measure(folder.shard("s1"), points[:3], torch_version="2.8.0")
    folder.measure(folder.shard("s1", 1), points[3:5], flags="noisy")
    collect(folder.sweep_dir)
    flags = by_point(folder.sweep_dir, "flags")
    assert [flags[p.point_id] for p in points[:5]] == [""] * 3 + ["noisy;version_mix"] * 2
    folder.measure(folder.shard("s1", 2), points[5:])
    report = collect(folder.sweep_dir)
    flags = by_point(folder.sweep_dir, "flags")
    assert [flags[p.point_id] for p in points] == ["version_mix"] * 3 + ["noisy"] * 2 + [""] * 3
    assert report.shards_read == 3


def test_a_damaged_row_falls_back_to_the_next_best(measured: Folder) -> None:
    """An older measurement is better than none."""
    point = measured.points[3]
    later = measured.shard("s1", attempt=1)
    measured.measure(later, [point], mean_ms=9.0)
    content = later.layers.read_bytes()
    later.layers.write_bytes(content.replace(b",1.5,", b",1.4,"))
    report = collect(measured.sweep_dir)
    assert by_point(measured.sweep_dir, "mean_ms")[point.point_id] == "2"
    (problem,) = report.left_out
    assert point.point_id in problem
    assert "checksum" in problem
    assert (report.points, report.duplicates) == (8, 0)


@pytest.mark.parametrize("what", ["digest", "date"])
@pytest.mark.parametrize("grows", [False, True])
def test_a_damaged_row_does_not_make_the_others_old(
    folder: Folder, what: str, *, grows: bool
) -> None:
    """Its version of the user's network is none, nor is the time at which it says it was measured.

    Also where the intact rows were collected before it came.
    """
    begun = "2026-01-01T00:00:0"
    for place, point in enumerate(folder.points):
        shard = folder.shard("s1", attempt=place)
        version = "a" if place < 4 or (place == 7 and what == "date") else "b"
        cells = {"own_files": f"model={version}", "started_at": f"{begun}{place}.000Z"}
        if grows and place == 7:
            collect(folder.sweep_dir)
        folder.measure(shard, [point], model="own:net", **cells)
    last = folder.shard("s1", attempt=7).overall
    old, new = (b"model=b", b"model=c") if what == "digest" else (b"2026-01-01T", b"2126-01-01T")
    last.write_bytes(last.read_bytes().replace(old, new))
    for _ in range(2):
        report = collect(folder.sweep_dir)
        assert [row["flags"] for row in overall(folder.sweep_dir)] == ["old_files"] * 4 + [""] * 3
        assert len(report.left_out) == 1


def test_layers_that_are_gone_cost_the_points_that_had_some(folder: Folder) -> None:
    """A point without layer rows needs none."""
    folder.measure(folder.shard("s1"), folder.points[:4])
    folder.measure(folder.shard("s1", 1), folder.points[4:], status="oom")
    for chunk in (0, 1):
        folder.shard("s1", chunk).layers.unlink(missing_ok=True)
    report = collect(folder.sweep_dir)
    assert report.statuses == {"oom": 4}
    assert len(report.left_out) == 4
    assert report.unreadable == [str(folder.shard("s1").overall)]


def test_a_torn_header_is_a_writer_that_was_killed_early(measured: Folder) -> None:
    """No error: nothing had been measured."""
    early = measured.shard("s1", 3)
    early.overall.write_bytes(",".join(SHARD_COLUMNS)[:50].encode())
    measured.shard("s1", 4).overall.touch()
    report = collect(measured.sweep_dir)
    assert (report.points, report.error()) == (8, None)


TIMES = {224: 0.7, 256: 0.76, 288: 155.9, 320: 0.8, 352: 0.9}
SWEEP = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  input_size: [224, 256, 288, 320, 352]
  algorithm: [gemm, winograd]
"""


def entries(
    times: dict[Any, float], axis: str = "input_size", **cells: str
) -> list[merge.TableRow]:
    """Return rows that differ in one axis alone, by its value."""
    rows = [
        {"point_id": f"{value}", "status": "ok", "valid": "true", "workload": "inference",
         "model": "net", "input_size": "64", axis: str(value), "median_ms": str(ms), **cells}
        for value, ms in times.items()
    ]  # fmt: skip
    return [entry(row) for row in rows]


def entry(row: dict[str, str]) -> merge.TableRow:
    """Return a row as a collect knows it."""
    content = Shard(ShardPath(Path("s"), 0, 0), (), ())
    return merge.table_row({**row, "_line": b"", "_at": 2, "_byte": 0}, content, (0, "s"))


def test_one_row_far_above_both_neighbours_is_lonely() -> None:
    """Over sizes, batches or threads, whatever the order of the rows."""
    for axis in ("input_size", "batch_size", "num_threads"):
        rows = entries(TIMES, axis)
        assert merge.lonely(rows) == merge.lonely(rows[::-1]) == {"288"}


def test_numbers_are_neighbours_by_their_value_not_by_their_text() -> None:
    """64, 96, 128: as texts, 128 would come first."""
    assert merge.lonely(entries({64: 1.0, 96: 20.0, 128: 1.5})) == {"96"}
    assert not merge.lonely(entries({64: 1.0, 96: 1.2, 128: 20.0}))


steps = st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=12)


@given(steps, st.booleans())
def test_no_monotone_curve_has_a_lonely_row(factors: list[float], falls: bool) -> None:  # noqa: FBT001
    """However steep it is; so the ends are never marked."""
    times = list(accumulate(factors, mul))
    curve = dict(enumerate(times[::-1] if falls else times, 1))
    assert not merge.lonely(entries(curve))


@given(st.lists(st.floats(1.0, 3.0), min_size=3, max_size=12), st.lists(st.floats(1, 3)))
def test_no_step_up_to_three_is_one(bumps: list[float], growth: list[float]) -> None:
    """A library that takes another algorithm at one size alone; on a curve that grows."""
    slopes = (growth * len(bumps))[: len(bumps)] or [1.0] * len(bumps)
    curve = [bump * rise for bump, rise in zip(bumps, accumulate(slopes, mul), strict=True)]
    assert not merge.lonely(entries(dict(enumerate(curve, 1))))


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
    assert merge.lonely(entries(times)) == {str(place)}


def test_a_reason_explains_it() -> None:
    """Another algorithm than asked for, or a doubt; and neighbours in doubt prove nothing."""
    assert not merge.lonely([*entries({1: 1.0, 3: 1.0}), *entries({2: 50.0}, flags="fallback")])
    same = entries({1: 1.0, 2: 50.0, 3: 1.0}, flags="fallback;noisy")
    assert merge.lonely(same) == {"2"}
    doubtful = entries({2: 50.0}, flags="contended", valid="false")
    assert not merge.lonely([*entries({1: 1.0, 3: 1.0}), *doubtful])
    beside = entries({3: 40.0}, flags="contended", valid="false")
    assert merge.lonely([*entries({1: 1.0, 2: 50.0, 4: 1.0}), *beside]) == {"2"}


def test_rows_of_other_configurations_are_no_neighbours() -> None:
    """They differ in two axes; nor are rows of points that sleep."""
    others = entries({256: 0.7, 320: 0.7}, algorithm="gemm")
    assert not merge.lonely([*others, *entries({288: 50.0}, algorithm="fft")])
    assert not merge.lonely(entries(TIMES, workload="noop"))
    assert not merge.lonely(entries({"a": 1.0, "b": 50.0, "c": 1.0}, "model"))


@pytest.mark.parametrize("axis", ["visit", "seed"])
def test_of_repetitions_all_others_are_neighbours(axis: str) -> None:
    """The last visit, too; of two it cannot be said which one is wrong."""
    assert merge.lonely(entries({1: 1.0, 2: 1.1, 3: 50.0}, axis)) == {"3"}
    assert not merge.lonely(entries({1: 1.0, 2: 50.0}, axis))
    assert not merge.lonely(entries({1: 1.0, 2: 50.0, 3: 50.0}, axis))


def measure(folder: Folder, name: str, of: str, times: dict[int, float], **cells: Any) -> None:
    """Write the rows of an algorithm."""
    points = [p for p in folder.points if p.axes["algorithm"] == of]
    folder.submit(name, points, text=SWEEP, profile="local", rehearsal=False)
    for number, point in enumerate(p for p in points if p.axes["input_size"] in times):
        ms = times[point.axes["input_size"]]
        shard = ShardPath(folder.sweep_dir.shards_dir / name, 0, number)
        folder.measure(
            shard, [point], median_ms=ms, mean_ms=ms,
            workload="inference", algorithm_coverage_pct=100, n=20, std_ms=ms / 100, control_ms=1,
            **cells,
        )  # fmt: skip


def test_tables_mark_it_nobody_stars_against_it_and_a_retry_measures_it(tmp_path: Path) -> None:
    """And when it was measured again, its mark is gone."""
    folder = make(tmp_path, SWEEP)
    measure(folder, "s1", "gemm", TIMES)
    measure(folder, "s2", "winograd", dict.fromkeys(TIMES, 0.5))
    for _ in range(2):
        found = collect(folder.sweep_dir)
        assert found.doubts == {"lonely": 1}
        assert "disturbed (ten times as long as the neighbours)" in found.text()
    (marked,) = [row for row in overall(folder.sweep_dir) if row["flags"]]
    assert (marked["input_size"], marked["flags"], marked["valid"]) == ("288", "lonely", "false")
    rows = {row["input_size"]: row for row in report.read_report(folder.sweep_dir).rows}
    assert rows[288]["fastest"] == rows[288]["fastest_here"] == ""
    assert rows[288]["doubtful"] == ["gemm"]
    assert rows[256]["fastest_here"] or rows[256]["fastest"]
    told = Desk(tmp_path).run("retry", "demo", "--invalid", "--dry-run")
    assert "1 point to measure again on" in told.stdout + told.stderr
    measure(folder, "s3", "gemm", {288: 0.78})
    assert collect(folder.sweep_dir).doubts == {}
    with folder.sweep_dir.overall.open(newline="") as file:
        assert {row["valid"] for row in csv.DictReader(file)} == {"true"}
