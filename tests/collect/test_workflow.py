"""Collect: shards to tables, past any damage, only when there is news, never by halves."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from filelock import FileLock

import resultsfolder
from hpcsweep import __version__
from hpcsweep.catalog.columns import LAYER_COLUMNS, MERGED_COLUMNS, SHARD_COLUMNS
from hpcsweep.collect.workflow import collect
from hpcsweep.errors import Busy, DamagedResults, ResultsError
from hpcsweep.store import ledger, seals, shards
from hpcsweep.store.blocks import Blocks, parse_block
from hpcsweep.store.rundir import RunDir
from hpcsweep.store.seals import Heads
from hpcsweep.tracking import status
from localruns import Desk
from resultsfolder import SWEEP, commit
from standins import compile_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.collect.workflow import Report
    from hpcsweep.store.rundir import ShardPath
    from resultsfolder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a results folder with one submission of all points, and no rows yet."""
    made = resultsfolder.make(tmp_path)
    made.submit("s1")
    return made


@pytest.fixture
def measured(folder: Folder) -> Folder:
    """Return a results folder with every point measured."""
    folder.measure(folder.shard("s1"))
    return folder


def overall(run: RunDir) -> list[dict[str, str]]:
    """Return the merged table of points."""
    with run.overall.open(newline="") as file:
        return list(csv.DictReader(file))


def by_point(run: RunDir, column: str) -> dict[str, str]:
    """Return one column by point."""
    return {row["point_id"]: row[column] for row in overall(run)}


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change a file's lines."""
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))


# --- the tables ------------------------------------------------------------------------------


def test_every_measured_point_has_one_row(measured: Folder) -> None:
    """With the columns of the schema, sorted by model, size, batch and algorithm."""
    report = collect(measured.run)
    rows = overall(measured.run)
    assert tuple(rows[0]) == MERGED_COLUMNS
    assert [(int(row["input_size"]), row["algorithm"]) for row in rows] == [
        (size, algorithm) for size in (64, 96, 128, 224) for algorithm in ("gemm", "winograd")
    ]
    assert (report.points, report.statuses, report.layer_rows) == (8, {"ok": 8}, 16)
    assert report.to_json()["missing"] == report.orphans == report.duplicates == 0
    assert report.error() is None


def test_layers_and_samples_stand_in_the_order_of_the_points(measured: Folder) -> None:
    """They join on the point's id."""
    collect(measured.run)
    ids = [row["point_id"] for row in overall(measured.run)]
    with measured.run.layers.open(newline="") as file:
        layers = list(csv.DictReader(file))
    assert tuple(layers[0]) == LAYER_COLUMNS
    assert [(row["point_id"], row["layer"]) for row in layers] == [
        (point_id, layer) for point_id in ids for layer in ("conv1", "fc")
    ]
    samples = measured.run.samples.read_text().splitlines()
    assert samples[0] == "point_id,i,ms"
    assert [line.split(",")[0] for line in samples[1::3]] == ids


def test_a_notebook_of_the_predecessor_runs_on_the_tables(measured: Folder) -> None:
    """Its pandas lines, unchanged."""
    collect(measured.run)
    overall = pd.read_csv(measured.run.overall)
    layers = pd.read_csv(measured.run.layers)
    assert sorted(set(overall["input_size"])) == [64, 96, 128, 224]
    assert overall["mean_ms"].tolist() == [2.0] * 8
    means = layers.groupby("layer")["mean_ms"].mean().sort_values(ascending=False)
    assert means.to_dict() == {"conv1": 1.5, "fc": 0.5}
    joined = overall.merge(layers, on="point_id", suffixes=("", "_layer"))
    assert len(joined) == 16


def test_layer_rows_are_the_bytes_that_the_worker_wrote(measured: Folder) -> None:
    """No number is parsed and printed again."""
    collect(measured.run)
    shard = measured.shard("s1")
    assert sorted(measured.run.layers.read_bytes().splitlines()) == sorted(
        shard.layers.read_bytes().splitlines()
    )


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    """96 comes before 224."""
    folder = resultsfolder.make(tmp_path, SWEEP.replace("[64, 96, 128, 224]", "[1000, 64, 224]"))
    folder.submit("s1")
    folder.measure(folder.shard("s1"))
    collect(folder.run)
    assert [row["input_size"] for row in overall(folder.run)[::2]] == ["64", "224", "1000"]


def test_points_that_differ_in_measurement_alone_stand_in_the_order_of_their_ids(
    measured: Folder, tmp_path: Path
) -> None:
    """Whichever was measured first."""
    text = SWEEP + "measure: {iterations: 50}\n"
    more = resultsfolder.points_of(tmp_path, text)
    measured.submit("s2", more, text=text)
    measured.measure(measured.shard("s2"), more)
    collect(measured.run)
    ids = [row["point_id"] for row in overall(measured.run)]
    pairs = list(zip(ids[::2], ids[1::2], strict=True))
    assert len(pairs) == 8
    assert all(first < second for first, second in pairs)


def test_nothing_measured_makes_empty_tables(folder: Folder) -> None:
    """With headers, which pandas can read."""
    report = collect(folder.run)
    assert (report.points, report.missing) == (0, 8)
    assert pd.read_csv(folder.run.overall).empty
    assert pd.read_csv(folder.run.layers).empty


# --- which row counts ------------------------------------------------------------------------


def test_ok_beats_everything_and_later_beats_earlier(folder: Folder) -> None:
    """A retry that fails does not take a number away."""
    points = folder.points
    folder.measure(folder.shard("s1"), points[:4], mean_ms=1.0)
    folder.measure(folder.shard("s1", attempt=1), points[2:], status="crashed")
    folder.submit("s2")
    folder.measure(folder.shard("s2"), points[:1], mean_ms=3.0)
    folder.measure(folder.shard("s2", attempt=1), points[6:], status="oom")
    report = collect(folder.run)
    status, ms = by_point(folder.run, "status"), by_point(folder.run, "mean_ms")
    assert [status[p.point_id] for p in points] == ["ok"] * 4 + ["crashed"] * 2 + ["oom"] * 2
    assert [ms[p.point_id] for p in points[:4]] == ["3", "1", "1", "1"]
    assert report.duplicates == 5
    assert "5 points with several rows" in report.text()


def test_the_later_round_counts_whatever_the_clock_said(folder: Folder) -> None:
    """The clock went back before the second submission; both orders of collecting agree."""
    point = folder.points[0]
    folder.submit("a-earlier-name", [point], round=1)
    folder.measure(folder.shard("s1"), [point], status="crashed")
    collect(folder.run)
    folder.measure(folder.shard("a-earlier-name"), [point], status="oom")
    assert collect(folder.run).statuses == {"oom": 1}
    folder.run.collect_index.unlink()
    assert collect(folder.run).statuses == {"oom": 1}
    assert ledger.statuses(folder.run) == {point.point_id: "oom"}
    (found,) = status.read(folder.run.path.parent, [])
    assert found.profiles[0].counts() == {"oom": 1}


def test_a_manifest_that_comes_back_changes_which_row_counts(folder: Folder) -> None:
    """Until then its name says where it stands among the others; nothing of that is remembered."""
    point = folder.points[0]
    earlier = folder.submit("a-earlier-name", [point], round=1)
    folder.measure(folder.shard("s1"), [point], status="crashed")
    folder.measure(folder.shard("a-earlier-name"), [point], status="oom")
    manifest = earlier.manifest.read_bytes()
    earlier.manifest.unlink()
    assert collect(folder.run).statuses == {"crashed": 1}
    earlier.manifest.write_bytes(manifest)
    assert collect(folder.run).statuses == {"oom": 1}


def test_what_is_submitted_and_has_no_row_is_missing(folder: Folder) -> None:
    """Whether a job for it lives is for `status` to say."""
    folder.measure(folder.shard("s1"), folder.points[:5])
    report = collect(folder.run)
    assert report.missing == 3
    assert "3 submitted points without a row yet; see `hpcsweep status demo`" in report.text()


def test_points_that_left_the_sweep_are_orphans(measured: Folder, tmp_path: Path) -> None:
    """Their rows stay; what the edited file still has is none, though submitted long ago."""
    text = SWEEP.replace("64, ", "").replace("224", "256")
    new = resultsfolder.points_of(tmp_path, text)
    fresh = [p for p in new if p.axes["input_size"] == 256]
    measured.submit("s2", fresh, text=text)
    measured.measure(measured.shard("s2"), fresh[:1])
    report = collect(measured.run)
    orphan = {(row["input_size"], row["orphan"]) for row in overall(measured.run)}
    assert orphan == {
        ("64", "true"), ("96", "false"), ("128", "false"), ("224", "true"), ("256", "false")
    }  # fmt: skip
    assert (report.orphans, report.missing, report.points) == (4, 1, 9)


def test_an_edited_sweep_that_leaves_nothing_to_measure_has_orphans_too(measured: Folder) -> None:
    """Points were only taken away, so there is a new sweep file and no new submission."""
    assert collect(measured.run).orphans == 0
    measured.run.sweep_file.write_text(SWEEP.replace("64, 96, ", ""))
    report = collect(measured.run)
    assert (report.orphans, report.missing, report.shards_read) == (4, 0, 0)
    orphan = {(row["input_size"], row["orphan"]) for row in overall(measured.run)}
    assert orphan == {("64", "true"), ("96", "true"), ("128", "false"), ("224", "false")}


def test_points_of_another_profile_are_no_orphans(tmp_path: Path) -> None:
    """Each submission's device and rehearsal count."""
    folder = resultsfolder.make(tmp_path)
    real = resultsfolder.points_of(tmp_path, gpu="l40")
    folder.submit("s1", text=f"{SWEEP}# first\n")
    folder.submit("s2", real, gpu="l40", rehearsal=False)
    folder.measure(folder.shard("s1"))
    folder.measure(folder.shard("s2"), real)
    report = collect(folder.run)
    assert (report.points, report.orphans) == (16, 0)


def test_without_a_readable_sweep_file_orphans_are_unknown(measured: Folder) -> None:
    """The cell is empty, and the report says why."""
    measured.submit("s2", measured.points[:2], text="workload: [\n")
    report = collect(measured.run)
    orphan = by_point(measured.run, "orphan")
    assert [orphan[p.point_id] for p in measured.points] == ["false"] * 2 + [""] * 6
    assert report.orphans == 0
    assert "orphans is unknown" in report.text()


def test_rows_that_ran_with_other_libraries_are_flagged(folder: Folder) -> None:
    """The minority of each GPU type, after the flags that they have."""
    points = folder.points
    folder.measure(folder.shard("s1"), points[:5])
    folder.measure(
        folder.shard("s1", 1), points[5:7], torch_version="2.8.0", flags="noisy;few_samples"
    )
    folder.measure(folder.shard("s1", 2), points[7:], torch_version="2.8.0", status="oom")
    report = collect(folder.run)
    flags = by_point(folder.run, "flags")
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
    collect(folder.run)
    flags = by_point(folder.run, "flags")
    assert [flags[p.point_id] for p in points[:5]] == [""] * 3 + ["noisy;version_mix"] * 2
    folder.measure(folder.shard("s1", 2), points[5:])
    report = collect(folder.run)
    flags = by_point(folder.run, "flags")
    assert [flags[p.point_id] for p in points] == ["version_mix"] * 3 + ["noisy"] * 2 + [""] * 3
    assert report.shards_read == 1


# --- only what is new ------------------------------------------------------------------------


def test_a_second_collect_reads_only_what_grew(folder: Folder) -> None:
    """Shards that are as they were are not even opened: they could be unreadable by now."""
    points = folder.points
    for chunk, point in enumerate(points[:4]):
        folder.measure(folder.shard("s1", chunk), [point])
    shard = folder.shard("s1", 9)
    with shards.ShardWriter(shard) as writer:
        commit(writer, points[4], shard)
        collect(folder.run)
        for chunk in range(4):
            content = folder.shard("s1", chunk).overall.read_bytes()
            _overwrite_unseen(folder.shard("s1", chunk).overall, b"x" * len(content))
        commit(writer, points[5], shard)
        report = collect(folder.run)
    assert (report.shards_read, report.points, report.left_out) == (1, 6, [])


def _overwrite_unseen(path: Path, content: bytes) -> None:
    """Change a file but neither its size nor its time."""
    before = path.stat()
    with path.open("rb+") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("table", ["overall", "layers", "samples"])
@pytest.mark.parametrize("how", ["edited", "deleted"])
def test_tables_that_were_touched_are_made_anew(measured: Folder, table: str, how: str) -> None:
    """What collect writes is what the shards say."""
    collect(measured.run)
    before = measured.tables()
    path: Path = getattr(measured.run, table)
    if how == "edited":
        path.write_bytes(path.read_bytes().replace(b"2", b"3"))
    else:
        path.unlink()
    report = collect(measured.run)
    assert report.shards_read == 1
    assert measured.tables() == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": "1 0"}', b"\xff"])
def test_a_damaged_memory_is_no_harm(measured: Folder, content: bytes) -> None:
    """It is thrown away."""
    collect(measured.run)
    before = measured.tables()
    measured.run.collect_index.write_bytes(content)
    assert collect(measured.run).shards_read == 1
    assert measured.tables() == before


def test_a_memory_that_lies_is_no_harm(measured: Folder) -> None:
    """Rows that do not fit the tables: it starts anew."""
    collect(measured.run)
    before = measured.tables()
    record = json.loads(measured.run.collect_index.read_text())
    for change in ({"rows": record["rows"][:-1]}, {"rows": [[9, 0, 0, 0]] * 8}, {"rows": 3}):
        measured.run.collect_index.write_text(json.dumps({**record, **change}))
        measured.submit(f"s{len(measured.run.submissions()) + 1}")
        collect(measured.run)
        assert measured.tables() == before


def test_a_shard_that_vanished_takes_its_rows_with_it(measured: Folder) -> None:
    """The tables are what the shards say, no more."""
    measured.measure(measured.shard("s1", 1), measured.points[:2], mean_ms=5.0)
    collect(measured.run)
    assert by_point(measured.run, "mean_ms")[measured.points[0].point_id] == "5"
    measured.shard("s1", 1).overall.unlink()
    report = collect(measured.run)
    assert by_point(measured.run, "mean_ms")[measured.points[0].point_id] == "2"
    assert report.duplicates == 0


def test_a_shard_that_was_replaced_is_read_again(measured: Folder) -> None:
    """Restored from a backup: another file under the same name."""
    shard = measured.shard("s1")
    whole = shard.overall.read_bytes()
    edit(shard.overall, lambda lines: [*lines[:3], b"damaged", *lines[4:]])
    assert collect(measured.run).points == 7
    shard.overall.unlink()
    shard.overall.write_bytes(whole)
    report = collect(measured.run)
    assert (report.points, report.left_out) == (8, [])


def test_a_shard_that_changed_without_growing_is_read_again(measured: Folder) -> None:
    """A byte that a bad disk lost, far from the end, and a later repair."""
    shard = measured.shard("s1")
    shard.overall.unlink()
    for path in (shard.layers, shard.samples):
        path.unlink()
    measured.measure(shard, status_reason="x" * 2000)
    whole = shard.overall.read_bytes()
    collect(measured.run)
    for content, points in ((whole.replace(b"resnet18", b"resnet81", 1), 7), (whole, 8)):
        shard.overall.write_bytes(content)
        os.utime(shard.overall, ns=(points, points))
        assert collect(measured.run).points == points


def test_tables_that_rot_unseen_are_made_anew_when_they_are_built_on(measured: Folder) -> None:
    """Neither size nor time says so, but the lines do."""
    collect(measured.run)
    before = measured.run.layers.read_bytes()
    _overwrite_unseen(measured.run.layers, before[:700] + b"\0" * 20)
    measured.measure(measured.shard("s1", 1), measured.points[:1], status="crashed")
    assert collect(measured.run).points == 8
    assert measured.run.layers.read_bytes() == before


def test_blocks_that_arrive_late_are_taken_then(measured: Folder) -> None:
    """On a network disk a row may be seen before its layer rows are."""
    shard = measured.shard("s1")
    whole = shard.layers.read_bytes()
    shard.layers.write_bytes(whole[:-200])
    first = collect(measured.run)
    assert (first.points, len(first.left_out)) == (7, 1)
    shard.layers.write_bytes(whole)
    assert collect(measured.run).points == 8


# --- damage ----------------------------------------------------------------------------------


def test_a_damaged_row_falls_back_to_the_next_best(measured: Folder) -> None:
    """An older measurement is better than none."""
    point = measured.points[3]
    later = measured.shard("s1", attempt=1)
    measured.measure(later, [point], mean_ms=9.0)
    content = later.layers.read_bytes()
    later.layers.write_bytes(content.replace(b",1.5,", b",1.4,"))
    report = collect(measured.run)
    assert by_point(measured.run, "mean_ms")[point.point_id] == "2"
    (problem,) = report.left_out
    assert point.point_id in problem
    assert "checksum" in problem
    assert (report.points, report.duplicates) == (8, 0)


def test_damaged_rows_are_still_named_when_nothing_is_new(measured: Folder) -> None:
    """The report is of the tables, not of what this call happened to read."""
    shard = measured.shard("s1")
    edit(shard.overall, lambda lines: [*lines[:3], b"\0" * 30, *lines[4:]])
    first, second = collect(measured.run), collect(measured.run)
    assert first.left_out == second.left_out != []
    assert "NUL bytes" in first.left_out[0]
    assert (second.points, second.missing, second.written) == (7, 1, [])


def test_a_row_that_is_being_written_is_taken_the_next_time(measured: Folder) -> None:
    """A torn line is named until it is whole."""
    shard = measured.shard("s1")
    whole = shard.overall.read_bytes()
    with shard.overall.open("rb+") as file:
        file.truncate(len(whole) - 9)
    first = collect(measured.run)
    assert (first.points, first.error()) == (7, None)
    assert first.left_out == [f"{shard.overall}: torn last line left out"]
    with shard.overall.open("ab") as file:
        file.write(whole[-9:])
    second = collect(measured.run)
    assert (second.points, second.left_out) == (8, [])


@pytest.mark.parametrize(
    "content", [b"\0" * 500 + b"\n", b"\x89PNG\r\n\x1a\n" * 20, b"hello\n" * 9]
)
def test_a_shard_that_is_no_shard_is_an_error_after_all_others_are_merged(
    measured: Folder, content: bytes
) -> None:
    """It is named; the exit code says that something is wrong."""
    broken = measured.shard("s1", 7)
    broken.overall.write_bytes(content)
    report = collect(measured.run)
    assert report.points == 8
    assert report.unreadable == [str(broken.overall)]
    assert isinstance(report.error(), DamagedResults)
    assert str(broken.overall) in str(report.error())
    assert collect(measured.run).unreadable == report.unreadable


def test_an_unreadable_shard_that_grows_stays_unreadable(measured: Folder) -> None:
    """Until a row of it can be read."""
    broken = measured.shard("s1", 7)
    broken.overall.write_bytes(b"hello\n")
    assert collect(measured.run).unreadable == [str(broken.overall)]
    with broken.overall.open("ab") as file:
        file.write(b"torn")
    report = collect(measured.run)
    assert (report.unreadable, report.shards_read) == ([str(broken.overall)], 1)
    assert len(report.left_out) == 2  # the header, and a torn line


def test_a_shard_that_cannot_be_opened_is_an_error_every_time(measured: Folder) -> None:
    """A folder in its place (root may read any file); it is tried again the next time."""
    broken = measured.shard("s1", 7)
    broken.overall.mkdir()
    for _ in range(2):
        report = collect(measured.run)
        assert (report.points, report.unreadable) == (8, [str(broken.overall)])
        assert "cannot be read" in report.left_out[0]
    broken.overall.rmdir()
    assert collect(measured.run).error() is None


def test_layers_that_are_gone_cost_the_points_that_had_some(folder: Folder) -> None:
    """A point without layer rows needs none."""
    folder.measure(folder.shard("s1"), folder.points[:4])
    folder.measure(folder.shard("s1", 1), folder.points[4:], status="oom")
    for chunk in (0, 1):
        folder.shard("s1", chunk).layers.unlink()
    report = collect(folder.run)
    assert report.statuses == {"oom": 4}
    assert len(report.left_out) == 4
    assert report.unreadable == [str(folder.shard("s1").overall)]


def test_a_torn_header_is_a_writer_that_was_killed_early(measured: Folder) -> None:
    """No error: nothing had been measured."""
    early = measured.shard("s1", 3)
    early.overall.write_bytes(",".join(SHARD_COLUMNS)[:50].encode())
    measured.shard("s1", 4).overall.touch()
    report = collect(measured.run)
    assert (report.points, report.error()) == (8, None)


# --- what could not be read --------------------------------------------------------------------

# Every file descriptor is taken but those for the lock and for the three tables.
_TOO_MANY_OPEN_FILES = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
while True:
    try:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break
for fd in taken[-{free}:]:
    os.close(fd)
"""


def test_a_block_that_could_not_be_read_once_is_taken_the_next_time(measured: Folder) -> None:
    """Nothing of it is remembered, though no file has changed since; meanwhile it is named."""
    assert collect(measured.run).points == 8
    whole = measured.tables()
    measured.run.overall.unlink()
    done = collect_in_a_process(measured.run, _TOO_MANY_OPEN_FILES.format(free=4))
    assert done.stdout == "0\n", done.stderr
    assert not measured.run.collect_index.exists()
    report = collect(measured.run)
    assert (report.points, report.left_out, report.error()) == (8, [], None)
    assert measured.tables() == whole


def test_what_could_not_be_read_is_named_with_the_advice_to_collect_again(
    measured: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never with the advice to delete it, or to measure it again."""
    shard = measured.shard("s1")

    def stale(path: Path, *rest: Any, opened: Callable[..., int] = os.open) -> int:
        if path == shard.samples:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", stale)
        report = collect(measured.run)
    told = str(report.error())
    assert (report.points, report.unreadable) == (0, [str(shard.overall)])
    assert f"{shard.samples}: cannot be read (Stale file handle)" in report.left_out[0]
    assert told.endswith(f"Collect again when they can be read: {measured.run.command('collect')}")
    assert "delete" not in told
    assert collect(measured.run).points == 8


def test_few_file_descriptors_are_enough(measured: Folder) -> None:
    """Files that are kept open for later make room for those that are needed now."""
    for chunk, point in enumerate(measured.points, 1):
        measured.measure(measured.shard("s1", chunk), [point])
    done = collect_in_a_process(measured.run, _TOO_MANY_OPEN_FILES.format(free=6))
    assert (done.stdout, done.stderr) == ("8\n", "")
    assert measured.run.collect_index.exists()


def test_what_an_older_version_remembered_wrongly_heals(measured: Folder) -> None:
    """It took a file that it could not read once for damage; no file has changed since."""
    collect(measured.run)
    whole = measured.tables()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Blocks, "read", _damaged)
        assert collect_anew(measured.run).points == 0
    record = json.loads(measured.run.collect_index.read_text())
    assert record["format"].startswith("4 ")
    assert collect(measured.run).points == 0  # remembered: as damage it is
    measured.run.collect_index.write_text(json.dumps({**record, "format": f"3 {__version__}"}))
    assert collect(measured.run).points == 8
    assert measured.tables() == whole


def collect_anew(run: RunDir) -> Report:
    """Collect without what was remembered."""
    run.collect_index.unlink()
    return collect(run)


def _damaged(_blocks: Blocks, path: Path, _offset: int, _length: int) -> bytes:
    raise ResultsError(f"{path}: cannot be read (Too many open files)")


# --- other versions --------------------------------------------------------------------------


def reseal(
    shard: ShardPath,
    change: Callable[[dict[str, str]], dict[str, str]],
    layer_columns: tuple[str, ...] = LAYER_COLUMNS,
    found: shards.Shard | None = None,
) -> None:
    """Rewrite the rows of a shard as another version would have written them."""
    found = found or shards.read(shard)
    columns: tuple[str, ...] = ()
    lines = []
    with Blocks() as blocks:
        for row in found.rows:
            cells = change({k: v for k, v in row.items() if not k.startswith("_")})
            del cells["row_crc"]
            columns = tuple(cells)
            layers, samples = (
                blocks.read(path, int(cells[f"{name}_offset"]), int(cells[f"{name}_bytes"]))
                for name, path in (("layers", shard.layers), ("samples", shard.samples))
            )
            text = shards._line(cells.values())[:-1] + b","
            heads = Heads((*columns, "row_crc"), layer_columns)
            lines.append(text + seals.seal(text, heads, layers, samples))
    head = ",".join([*columns, "row_crc"]).encode()
    shard.overall.write_bytes(b"\n".join([head, *lines, b""]))


def test_columns_of_other_versions_are_kept_by_name(folder: Folder) -> None:
    """One that this version does not know, and one that the other did not have."""
    folder.measure(folder.shard("s1"), folder.points[:3])
    folder.measure(folder.shard("s1", 1), folder.points[3:])

    def other(cells: dict[str, str]) -> dict[str, str]:
        del cells["tf32"]
        return {**{k: cells.pop(k) for k in ("point_id", "status")}, "fan_rpm": "900", **cells}

    reseal(folder.shard("s1", 1), other)
    report = collect(folder.run)
    rows = overall(folder.run)
    assert tuple(rows[0]) == (*MERGED_COLUMNS, "fan_rpm")
    got = {row["point_id"]: (row["fan_rpm"], row["tf32"], row["mean_ms"]) for row in rows}
    assert [got[p.point_id] for p in folder.points] == (
        [("", "false", "2")] * 3 + [("900", "", "2")] * 5
    )
    assert report.left_out == []


def rewrite_layers(shard: ShardPath, columns: list[str]) -> None:
    """Give a shard's layer rows other columns, with places and checksums that fit."""
    found = shards.read(shard)
    rows = list(parse_block(shard.layers.read_bytes(), LAYER_COLUMNS))[1:]
    blocks = {}
    at = len(",".join(columns)) + 1
    text = ",".join(columns) + "\n"
    for point in dict.fromkeys(row["point_id"] for row in rows):
        block = "".join(
            ",".join(row.get(name, "new") for name in columns) + "\n"
            for row in rows
            if row["point_id"] == point
        )
        blocks[point] = (at, len(block))
        at, text = at + len(block), text + block
    shard.layers.write_text(text)

    def moved(cells: dict[str, str]) -> dict[str, str]:
        offset, length = blocks[cells["point_id"]]
        return {**cells, "layers_offset": str(offset), "layers_bytes": str(length)}

    reseal(shard, moved, tuple(columns), found)


@pytest.mark.parametrize("first", [0, 1])
def test_layer_columns_of_other_versions_are_mapped_by_name(folder: Folder, first: int) -> None:
    """Whichever was collected first: every row of the table has all columns."""
    folder.measure(folder.shard("s1"), folder.points[:3])
    folder.measure(folder.shard("s1", 1), folder.points[3:])
    names = [name for name in LAYER_COLUMNS if name != "dtype"]
    rewrite_layers(folder.shard("s1", 1), [names[1], "l2_misses", names[0], *names[2:]])
    hidden = folder.shard("s1", 1 - first).overall
    away = hidden.with_suffix(".away")
    hidden.rename(away)
    collect(folder.run)
    away.rename(hidden)
    report = collect(folder.run)
    assert report.left_out == []
    table = pd.read_csv(folder.run.layers, dtype=str, keep_default_na=False)
    assert tuple(table.columns) == (*LAYER_COLUMNS, "l2_misses")
    ids = [p.point_id for p in folder.points[:3]]
    ours = table[table["point_id"].isin(ids)]
    theirs = table[~table["point_id"].isin(ids)]
    assert set(zip(ours["dtype"], ours["l2_misses"], strict=True)) == {("float32", "")}
    assert set(zip(theirs["dtype"], theirs["l2_misses"], strict=True)) == {("", "new")}
    assert set(table["mean_ms"]) == {"0.5", "1.5"}
    with folder.run.layers.open(newline="") as file:
        assert {len(row) for row in csv.reader(file)} == {len(LAYER_COLUMNS) + 1}


def test_rows_of_a_newer_schema_are_left_out_and_told(measured: Folder) -> None:
    """They may mean something else."""
    measured.submit("s2")
    measured.measure(measured.shard("s2"), measured.points[:2], schema_version="2.0")
    report = collect(measured.run)
    assert report.points == 8
    assert "written by a newer hpcsweep (columns 2.0, this one knows 1.1)" in report.left_out[0]
    assert report.unreadable == [str(measured.shard("s2").overall)]


def test_a_newer_layout_is_told_before_anything_is_written(measured: Folder) -> None:
    """An older program must not misread it."""
    collect(measured.run)
    before = measured.tables()
    measured.submit("s2", layout=99)
    measured.measure(measured.shard("s2"))
    with pytest.raises(ResultsError, match="written by a newer hpcsweep"):
        collect(measured.run)
    assert measured.tables() == before


# --- what goes wrong while writing -----------------------------------------------------------


def collect_in_a_process(run: RunDir, prepare: str = "") -> subprocess.CompletedProcess[str]:
    """Collect in a process of its own; print the error or the number of points."""
    code = f"""
import os, resource
from pathlib import Path
from hpcsweep.collect.workflow import collect
from hpcsweep.errors import ResultsError
from hpcsweep.store.rundir import RunDir
from hpcsweep.store.seals import Heads
{prepare}
try:
    print(collect(RunDir(Path({str(run.path)!r}))).points)
except ResultsError as error:
    print(error)
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("limit", "largest"),
    [
        (0, {}),
        (100, {}),
        (1500, {}),
        (3500, {"status_reason": "x" * 600}),  # too large is overall.csv alone
        (3500, {"times": 9}),  # and here samples.csv, less than a buffer
    ],
)
def test_a_full_disk_leaves_the_old_tables(
    folder: Folder, limit: int, largest: dict[str, Any]
) -> None:
    """All three of them, and no rubbish; a limit on file size stands in for the disk."""
    folder.measure(folder.shard("s1"), folder.points[:2])
    collect(folder.run)
    before = folder.tables()
    folder.measure(folder.shard("s1", 1), folder.points[2:], **largest)
    done = collect_in_a_process(
        folder.run, f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    )
    assert "cannot be written" in done.stdout, done.stderr
    assert done.stderr == ""
    assert folder.tables() == before
    assert not [path for path in folder.run.path.iterdir() if path.name.endswith(".tmp")]
    assert collect(folder.run).points == 8


@pytest.mark.parametrize("call", ["FAIL_FSYNC", "FAIL_CLOSE"])
@pytest.mark.parametrize("table", [".overall.csv.", ".layers.csv.", ".samples.csv."])
def test_a_quota_that_is_told_by_the_last_call_leaves_the_old_tables(
    folder: Folder, tmp_path: Path, call: str, table: str
) -> None:
    """All three of them."""
    folder.measure(folder.shard("s1"), folder.points[:2])
    collect(folder.run)
    before = folder.tables()
    folder.measure(folder.shard("s1", 1), folder.points[2:])
    library = compile_library("filesystem", tmp_path, "-ldl")
    desk = Desk(tmp_path)
    done = desk.run_process("collect", "demo", LD_PRELOAD=str(library), **{call: table})
    assert done.returncode == ResultsError.exit_code
    assert "cannot be written (Disk quota exceeded)" in done.stderr
    assert folder.tables() == before


def test_a_read_only_folder_is_told(measured: Folder) -> None:
    """Another user's results; root is bound by rights only after giving up its power."""
    collect(measured.run)
    before = measured.tables()
    for path in [measured.run.path, *measured.run.path.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in measured.run.path.parents[:3]:
        parent.chmod(0o755)
    become = "os.setuid(65534)" if os.getuid() == 0 else ""
    done = collect_in_a_process(measured.run, become)
    measured.run.path.chmod(0o755)
    if "Permission denied" in done.stderr and "ModuleNotFoundError" in done.stderr:
        pytest.skip("another user cannot read this Python")
    assert "cannot be written (Permission denied)" in done.stdout, done.stderr
    assert measured.tables() == before


def test_two_collects_do_not_run_at_once(measured: Folder) -> None:
    """The second is told who holds the lock."""
    with FileLock(measured.run.lock), pytest.raises(Busy, match="locked for more than"):
        collect(measured.run, timeout=0.1)
    assert collect(measured.run).points == 8


def test_a_copied_folder_collects_to_the_same_tables(measured: Folder, tmp_path: Path) -> None:
    """From the cluster's disk to a laptop: inodes and times change, results do not."""
    collect(measured.run)
    copy = tmp_path / "elsewhere" / "demo"
    shutil.copytree(measured.run.path, copy)
    report = collect(RunDir(copy))
    assert report.points == 8
    assert Path(copy / "overall.csv").read_bytes() == measured.run.overall.read_bytes()


def test_collecting_loads_neither_pandas_nor_pydantic(measured: Folder) -> None:
    """The quick path is what `submit` and scripts wait for."""
    done = collect_in_a_process(measured.run, "import sys")
    assert done.stdout == "8\n", done.stderr
    code = "import sys, hpcsweep.collect.workflow; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"pandas", "numpy", "pydantic", "torch", "rich", "yaml"} & set(loaded.stdout.split())


# --- the report ------------------------------------------------------------------------------


def test_the_report_is_plain_json(measured: Folder) -> None:
    """For scripts; the text names the tables."""
    report = collect(measured.run)
    record: dict[str, Any] = json.loads(json.dumps(report.to_json()))
    assert record["written"] == [str(path) for path in measured.paths()]
    assert record["statuses"] == {"ok": 8}
    text = report.text()
    assert text.startswith("demo: 8 points (8 ok), 16 layer rows\n")
    assert f"wrote overall.csv, layers.csv, samples.csv in {measured.run.path}" in text
    assert "nothing new" in collect(measured.run).text()


def test_a_long_list_of_damage_is_cut_in_text_alone(folder: Folder) -> None:
    """One screen for people, everything for programs."""
    for chunk in range(30):
        folder.measure(folder.shard("s1", chunk), folder.points[:1])
        edit(folder.shard("s1", chunk).overall, lambda lines: [lines[0], b"x", lines[1], b""])
    report = collect(folder.run)
    assert len(report.to_json()["left_out"]) == 30
    assert "and 10 more like these" in report.text()
    assert len(report.text().splitlines()) < 30


# --- what a person does about damage ---------------------------------------------------------


@pytest.mark.parametrize("table", ["samples", "overall"])
def test_a_damaged_point_is_named_with_the_command_that_measures_it_again(
    tmp_path: Path, table: str
) -> None:
    """`status` counts its row; `collect` says that it is lost, and ends with 6 until it is back."""
    desk = Desk(tmp_path)
    desk.spec("workload: noop\naxes: {model: [a], input_size: [1, 2, 3]}\n")
    assert desk.run("submit", "sweep.yaml").returncode == 0
    (shard,) = desk.sweep().shards()
    file = getattr(shard, table)
    content = file.read_bytes()
    file.write_bytes(content[:-2] + (b"0\n" if content[-2:] != b"0\n" else b"1\n"))
    lost = desk.rows()[-1]["point_id"]
    assert "3 ok" in desk.run("submit", "sweep.yaml").stdout
    done = desk.run("collect", "sweep")
    assert done.returncode == DamagedResults.exit_code
    assert "2 points (2 ok)" in done.stdout
    assert "without a row yet" not in done.stdout
    assert f"{lost} left out: {shard.overall.relative_to(desk.folder)}: the checksum" in done.stdout
    command = f"hpcsweep retry sweep --point {lost}"
    assert done.stderr.rstrip().endswith(command)
    record = json.loads(desk.run_process("collect", "sweep", "--json").stdout)
    assert (record["lost"], record["missing"], record["remedy"]) == ([lost], 0, command)
    assert desk.run(*command.split()[1:]).returncode == 0
    healed = desk.run("collect", "sweep")
    assert (healed.returncode, healed.stderr) == (0, "")
    assert "3 points (3 ok)" in healed.stdout


def test_tables_without_rows_are_told_as_such(tmp_path: Path) -> None:
    """By collect and report alike."""
    desk = Desk(tmp_path)
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    desk.run("submit", "sweep.yaml")
    wrote = desk.run_process("collect", "sweep").stdout
    assert "wrote overall.csv, layers.csv (0 rows), samples.csv in results/sweep" in wrote
    *_, overall, layers, samples = desk.run("report", "sweep").stdout.splitlines()
    assert layers.strip() == "results/sweep/layers.csv (0 rows)"
    assert "(0 rows)" not in overall + samples
