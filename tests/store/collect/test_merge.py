"""Which row of a point counts; what the merged tables hold, whatever version wrote the rows."""

from __future__ import annotations

import csv
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import resultsfolder
from benchmarks import collect as benchmark
from hpcsweep.catalog.columns import LAYER_COLUMNS, MERGED_COLUMNS
from hpcsweep.cluster import status
from hpcsweep.store import ledger, shards
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.folders import SweepDir
from resultsfolder import SWEEP, by_point, overall, reseal

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.point import Point
    from hpcsweep.store.folders import ShardPath
    from resultsfolder import Folder


def test_ok_beats_everything_and_later_beats_earlier(folder: Folder) -> None:
    """A retry that fails does not take a number away."""
    points = folder.points[:3]
    folder.measure(folder.shard("s1"), points[:2], mean_ms=1.0)
    folder.measure(folder.shard("s1", attempt=1), points[1:], status="crashed")
    folder.submit("s2")
    folder.measure(folder.shard("s2"), points[:1], mean_ms=3.0)
    folder.measure(folder.shard("s2", attempt=1), points[2:], status="oom")
    report = collect(folder.sweep_dir)
    status, ms = by_point(folder.sweep_dir, "status"), by_point(folder.sweep_dir, "mean_ms")
    assert [status[p.point_id] for p in points] == ["ok", "ok", "oom"]
    assert [ms[p.point_id] for p in points[:2]] == ["3", "1"]
    assert "3 points with several rows" in report.text()


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


@pytest.mark.parametrize("name", ["a-before", "z-after"])
def test_of_two_rows_of_one_time_the_one_of_here_counts(folder: Folder, name: str) -> None:
    """The other was imported, perhaps as a copy of it: in whatever order they are read."""
    point = folder.points[0]
    folder.measure(folder.shard("s1"), [point], mean_ms=1.0, started_at="2026-01-01")
    folder.submit(name, [point], source="elsewhere")
    folder.measure(folder.shard(name), [point], mean_ms=2.0, started_at="2026-01-01")
    collect(folder.sweep_dir)
    assert by_point(folder.sweep_dir, "mean_ms") == {point.point_id: "1"}


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


def test_every_measured_point_has_one_row(measured: Folder) -> None:
    """Sorted by model, size, batch and algorithm."""
    report = collect(measured.sweep_dir)
    rows = overall(measured.sweep_dir)
    assert [(int(row["input_size"]), row["algorithm"]) for row in rows] == [
        (size, algorithm) for size in (64, 96, 128, 224) for algorithm in ("gemm", "winograd")
    ]
    assert (report.points, report.statuses, report.layer_rows) == (8, {"ok": 8}, 16)
    assert report.to_json()["missing"] == report.orphans == report.duplicates == 0
    assert report.error() is None


def test_layers_and_samples_stand_in_the_order_of_the_points(measured: Folder) -> None:
    """They join on the point's id."""
    collect(measured.sweep_dir)
    ids = [row["point_id"] for row in overall(measured.sweep_dir)]
    with measured.sweep_dir.layers.open(newline="") as file:
        layers = list(csv.DictReader(file))
    assert tuple(layers[0]) == (*LAYER_COLUMNS, "valid", "flags", "visit")
    assert {(row["valid"], row["flags"], row["visit"]) for row in layers} == {("true", "", "1")}
    assert [(row["point_id"], row["layer"]) for row in layers] == [
        (point_id, layer) for point_id in ids for layer in ("conv1", "fc")
    ]
    samples = measured.sweep_dir.samples.read_text().splitlines()
    assert samples[0] == "point_id,i,ms"
    assert [line.split(",")[0] for line in samples[1::3]] == ids


def test_layer_rows_are_the_bytes_that_the_worker_wrote(measured: Folder) -> None:
    """No number is parsed and printed again; what their point is worth stands behind them."""
    collect(measured.sweep_dir)
    shard = measured.shard("s1")
    _head, *lines = measured.sweep_dir.layers.read_bytes().splitlines()
    _head, *written = shard.layers.read_bytes().splitlines()
    assert sorted(lines) == sorted(line + b",true,,1" for line in written)


def test_points_that_differ_in_measurement_alone_stand_in_the_order_of_their_ids(
    measured: Folder, tmp_path: Path
) -> None:
    """Whichever was measured first."""
    text = SWEEP + "measure: {iterations: 50}\n"
    more = resultsfolder.points_of(tmp_path, text)
    measured.submit("s2", more, text=text)
    measured.measure(measured.shard("s2"), more)
    collect(measured.sweep_dir)
    ids = [row["point_id"] for row in overall(measured.sweep_dir)]
    pairs = list(zip(ids[::2], ids[1::2], strict=True))
    assert len(pairs) == 8
    assert all(first < second for first, second in pairs)


def test_nothing_measured_makes_no_tables(folder: Folder) -> None:
    """It is said instead, every time; the first row changes that."""
    for _ in range(2):
        report = collect(folder.sweep_dir)
        assert (report.points, report.missing, report.written) == (0, 8, [])
        assert report.text().endswith("\n  no table was written: no point has a row yet")
        assert not folder.sweep_dir.overall.exists()


def test_a_cell_of_any_length_is_read_back(folder: Folder) -> None:
    """Maps of algorithms may be long."""
    reason = "x" * 200_000
    folder.measure(folder.shard("s1"), folder.points[:4], status="error", status_reason=reason)
    for _ in range(2):
        assert collect(folder.sweep_dir).statuses == {"error": 4}
    cells = pd.read_csv(folder.sweep_dir.overall)["status_reason"]
    assert [len(cell) for cell in cells] == [200_000] * 4


def test_columns_of_other_versions_are_kept_by_name(folder: Folder) -> None:
    """One that this version does not know, and one that the other did not have."""
    folder.measure(folder.shard("s1"), folder.points[:3])
    folder.measure(folder.shard("s1", 1), folder.points[3:])

    def other(cells: dict[str, str]) -> dict[str, str]:
        del cells["tf32"]
        return {**{k: cells.pop(k) for k in ("point_id", "status")}, "fan_rpm": "900", **cells}

    reseal(folder.shard("s1", 1), other)
    report = collect(folder.sweep_dir)
    rows = overall(folder.sweep_dir)
    assert {*rows[0]} == {*MERGED_COLUMNS, "fan_rpm"}
    got = {row["point_id"]: (row["fan_rpm"], row["tf32"], row["mean_ms"]) for row in rows}
    assert [got[p.point_id] for p in folder.points] == (
        [("", "false", "2")] * 3 + [("900", "", "2")] * 5
    )
    assert report.left_out == []


def measure_newer_layers(shard: ShardPath, points: list[Point]) -> None:
    """Measure points as a version does whose layer rows have other columns in another order."""
    known = [name for name in LAYER_COLUMNS if name != "dtype"]
    names = (known[1], "l2_misses", known[0], *known[2:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "LAYER_COLUMNS", names)
        patch.setattr(shards, "check_declared", lambda *_: None)
        patch.setattr(shards, "OURS", replace(shards.OURS, layers=names))
        with shards.ShardWriter(shard) as writer:
            for point in points:
                layer = resultsfolder.layer_of(point, "conv1", 1.5)
                writer.commit(resultsfolder.row_of(point, shard), [{**layer, "l2_misses": "new"}])


@pytest.mark.parametrize("first", [0, 1])
def test_layer_columns_of_other_versions_are_mapped_by_name(folder: Folder, first: int) -> None:
    """Whichever was collected first: every row of the table has all columns."""
    folder.measure(folder.shard("s1"), folder.points[:3])
    measure_newer_layers(folder.shard("s1", 1), folder.points[3:])
    hidden = folder.shard("s1", 1 - first).overall
    away = hidden.with_suffix(".away")
    hidden.rename(away)
    collect(folder.sweep_dir)
    away.rename(hidden)
    report = collect(folder.sweep_dir)
    assert report.left_out == []
    table = pd.read_csv(folder.sweep_dir.layers, dtype=str, keep_default_na=False)
    assert tuple(table.columns) == (*LAYER_COLUMNS, "l2_misses", "valid", "flags", "visit")
    ids = [p.point_id for p in folder.points[:3]]
    ours = table[table["point_id"].isin(ids)]
    theirs = table[~table["point_id"].isin(ids)]
    assert set(zip(ours["dtype"], ours["l2_misses"], strict=True)) == {("float32", "")}
    assert set(zip(theirs["dtype"], theirs["l2_misses"], strict=True)) == {("", "new")}
    assert set(table["mean_ms"]) == {"0.5", "1.5"}
    with folder.sweep_dir.layers.open(newline="") as file:
        assert {len(row) for row in csv.reader(file)} == {len(LAYER_COLUMNS) + 4}


def test_rows_of_a_newer_schema_are_left_out_and_told(measured: Folder) -> None:
    """They may mean something else."""
    measured.submit("s2")
    measured.measure(measured.shard("s2"), measured.points[:2], schema_version="2.0")
    report = collect(measured.sweep_dir)
    assert report.points == 8
    assert "written by a newer hpcsweep (columns 2.0, this one knows 1.0)" in report.left_out[0]
    assert report.unreadable == [str(measured.shard("s2").overall)]


@pytest.mark.parametrize(
    ("column", "cell"), [("layer_rows", "many"), ("schema_version", "9" * 5000)]
)
def test_a_cell_that_another_program_wrote_costs_its_row_at_most(
    tmp_path: Path, column: str, cell: str
) -> None:
    """Its checksum fits; the layer rows that there are, are counted."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("a", folder.points[:2])
    with resultsfolder.shards.ShardWriter(folder.shard("a")) as writer:
        for point, more in zip(folder.points[:2], ({}, {column: cell}), strict=True):
            resultsfolder.commit(writer, point, folder.shard("a"), **more)
    report = collect(folder.sweep_dir)
    assert report.points == 2 - (column == "schema_version")
    assert report.layer_rows == 2 * report.points


def test_rows_of_an_earlier_version_of_own_files_are_marked_until_they_are_measured_again(
    tmp_path: Path,
) -> None:
    """Not valid, and named; a later failure of the new version does not hide that they are old.

    A collect that reads only what is new writes the same tables as one that reads everything.
    """
    text = resultsfolder.SWEEP.replace("resnet18", "nets:tiny")
    folder = resultsfolder.make(tmp_path, text)
    points = folder.points

    def measured(name: str, day: int, cell: str, some: Any, **more: Any) -> list[str]:
        folder.submit(name, some, text=text, round=day)
        started = f"2026-01-0{day}T00:00:00Z"
        folder.measure(folder.shard(name), some, own_files=cell, started_at=started, **more)
        report = collect(folder.sweep_dir)
        tables = folder.tables()
        folder.sweep_dir.collect_index.unlink()
        assert collect(folder.sweep_dir).notes == report.notes
        assert folder.tables() == tables
        old = [
            row for row in resultsfolder.overall(folder.sweep_dir) if "old_files" in row["flags"]
        ]
        assert all(row["valid"] == "false" for row in old)
        assert report.not_valid == len(old)
        return [row["point_id"] for row in old]

    assert not measured("s1", 1, "", points)  # by an older hpcsweep
    assert {*measured("s2", 2, "model=a;weights=w", points[:2])} == {
        point.point_id for point in points[2:]
    }
    assert len(measured("s3", 3, "model=b;weights=w", points[:1], status="error")) == len(points)
    assert len(measured("s4", 4, "model=b;weights=w", points[1:])) == 1
    assert not measured("s5", 5, "model=b;weights=w", points[:1])
    rows = resultsfolder.overall(folder.sweep_dir)
    assert {(row["valid"], row["flags"]) for row in rows} == {("true", "")}


def test_the_text_of_rows_stays_in_their_files(tmp_path: Path) -> None:
    """A login node has memory for 100,000 points: a row costs less than its text."""
    peaks = []
    for points in (100, 600):
        folder = SweepDir(tmp_path / f"of_{points}")
        benchmark.make(folder, points // 50, points, 1)
        tracemalloc.start()
        assert collect(folder).points == points
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 1,780 alone, and 1,910 where tests before filled the memory of equal cells; a text is 730 more
    assert (peaks[1] - peaks[0]) / 500 < 2100
