"""What collect finds, leaves out, and tells; which points are orphans."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import resultsfolder
from hpcsweep import __version__
from hpcsweep.errors import DamagedResults, ResultsError
from hpcsweep.store import shards, typed_json
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.folders import SweepDir
from localruns import Desk
from resultsfolder import SWEEP, by_point, collect_in_a_process, commit, overall
from standins import compile_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from resultsfolder import Folder


@pytest.mark.parametrize(
    "content", [b"\0" * 500 + b"\n", b"\x89PNG\r\n\x1a\n" * 20, b"hello\n" * 9]
)
def test_a_shard_that_is_no_shard_is_an_error_after_all_others_are_merged(
    measured: Folder, content: bytes
) -> None:
    """It is named; the exit code says that something is wrong."""
    broken = measured.shard("s1", 7)
    broken.overall.write_bytes(content)
    report = collect(measured.sweep_dir)
    assert report.points == 8
    assert report.unreadable == [str(broken.overall)]
    assert isinstance(report.error(), DamagedResults)
    assert str(broken.overall) in str(report.error())
    assert collect(measured.sweep_dir).unreadable == report.unreadable


def test_what_could_not_be_read_is_named_and_read_the_next_time(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the advice to collect again, never to delete it or to measure it again."""
    folder.measure(folder.shard("s1"), folder.points[:4])
    shard = folder.shard("s1", 1)
    folder.measure(shard, folder.points[4:])

    def stale(path: Path, *rest: Any, opened: Callable[..., int] = os.open) -> int:
        if path == shard.samples:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", stale)
        report = collect(folder.sweep_dir)
    told = str(report.error())
    assert (report.points, report.unreadable) == (4, [str(shard.overall)])
    assert f"{shard.samples}: cannot be read (Stale file handle)" in report.left_out[0]
    again = folder.sweep_dir.command("collect")
    assert told.endswith(f"Collect again when they can be read: {again}")
    assert "delete" not in told
    report = collect(folder.sweep_dir)  # though no file has changed since
    assert (report.points, report.left_out, report.error()) == (8, [], None)


def test_a_newer_layout_is_told_before_anything_is_written(measured: Folder) -> None:
    """An older program must not misread it."""
    collect(measured.sweep_dir)
    before = measured.tables()
    measured.submit("s2", layout=99)
    measured.measure(measured.shard("s2"))
    with pytest.raises(ResultsError, match="written by a newer hpcsweep"):
        collect(measured.sweep_dir)
    assert measured.tables() == before


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
    collect(folder.sweep_dir)
    before = folder.tables()
    folder.measure(folder.shard("s1", 1), folder.points[2:], **largest)
    done = collect_in_a_process(
        folder.sweep_dir, f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    )
    assert "cannot be written" in done.stdout, done.stderr
    assert done.stderr == ""
    assert folder.tables() == before
    assert not [path for path in folder.sweep_dir.path.iterdir() if path.name.endswith(".tmp")]
    assert collect(folder.sweep_dir).points == 8


@pytest.mark.slow
@pytest.mark.parametrize("call", ["FAIL_FSYNC", "FAIL_CLOSE"])
@pytest.mark.parametrize("table", [".overall.csv.", ".layers.csv.", ".samples.csv."])
def test_a_quota_that_is_told_by_the_last_call_leaves_the_old_tables(
    folder: Folder, tmp_path: Path, call: str, table: str
) -> None:
    """All three of them."""
    folder.measure(folder.shard("s1"), folder.points[:2])
    collect(folder.sweep_dir)
    before = folder.tables()
    folder.measure(folder.shard("s1", 1), folder.points[2:])
    library = compile_library("filesystem", tmp_path, "-ldl")
    desk = Desk(tmp_path)
    done = desk.run_process("collect", "demo", LD_PRELOAD=str(library), **{call: table})
    assert done.returncode == ResultsError.exit_code
    assert "cannot be written (Disk quota exceeded)" in done.stderr
    assert folder.tables() == before


def test_points_that_left_the_sweep_are_orphans(measured: Folder, tmp_path: Path) -> None:
    """Their rows stay; what the edited file still has is none, though submitted long ago."""
    text = SWEEP.replace("64, ", "").replace("224", "256")
    new = resultsfolder.points_of(tmp_path, text)
    fresh = [p for p in new if p.axes["input_size"] == 256]
    measured.submit("s2", fresh, text=text)
    measured.measure(measured.shard("s2"), fresh[:1])
    report = collect(measured.sweep_dir)
    orphan = {(row["input_size"], row["orphan"]) for row in overall(measured.sweep_dir)}
    assert orphan == {
        ("64", "true"), ("96", "false"), ("128", "false"), ("224", "true"), ("256", "false")
    }  # fmt: skip
    assert (report.orphans, report.missing, report.points) == (4, 1, 9)


def test_an_edited_sweep_that_leaves_nothing_to_measure_has_orphans_too(measured: Folder) -> None:
    """Points were only taken away, so there is a new sweep file and no new submission."""
    assert collect(measured.sweep_dir).orphans == 0
    measured.sweep_dir.sweep_file.write_text(SWEEP.replace("64, 96, ", ""))
    report = collect(measured.sweep_dir)
    assert (report.orphans, report.missing, report.shards_read) == (4, 0, 1)
    orphan = {(row["input_size"], row["orphan"]) for row in overall(measured.sweep_dir)}
    assert orphan == {("64", "true"), ("96", "true"), ("128", "false"), ("224", "false")}


def test_an_orphan_without_a_row_is_not_missing(folder: Folder) -> None:
    """Nobody wants it any more."""
    kept = [point for point in folder.points if point.axes["input_size"] != 64]
    folder.measure(folder.shard("s1"), kept)
    assert collect(folder.sweep_dir).missing == 2
    folder.sweep_dir.sweep_file.write_text(SWEEP.replace("64, ", ""))
    report = collect(folder.sweep_dir)
    assert (report.orphans, report.missing, report.points) == (0, 0, 6)


def test_points_of_another_profile_are_no_orphans(tmp_path: Path) -> None:
    """Each submission's device and rehearsal count."""
    folder = resultsfolder.make(tmp_path)
    real = resultsfolder.points_of(tmp_path, gpu="l40")
    folder.submit("s1", text=f"{SWEEP}# first\n")
    folder.submit("s2", real, gpu="l40", rehearsal=False)
    folder.measure(folder.shard("s1"))
    folder.measure(folder.shard("s2"), real)
    report = collect(folder.sweep_dir)
    assert (report.points, report.orphans) == (16, 0)


def test_without_a_readable_sweep_file_orphans_are_unknown(measured: Folder) -> None:
    """The cell is empty, and the report says why."""
    measured.submit("s2", measured.points[:2], text="workload: [\n")
    report = collect(measured.sweep_dir)
    orphan = by_point(measured.sweep_dir, "orphan")
    assert [orphan[p.point_id] for p in measured.points] == ["false"] * 2 + [""] * 6
    assert report.orphans == 0
    assert "orphans is unknown" in report.text()


def test_a_second_collect_without_news_reads_nothing(folder: Folder) -> None:
    """Shards that are as they were are not even opened; where one grew, all are read."""
    points = folder.points
    first, second = folder.shard("s1", 0), folder.shard("s1", 9)
    folder.measure(first, points[:1])
    with shards.ShardWriter(second) as writer:
        commit(writer, points[1], second)
        collect(folder.sweep_dir)
        content = first.overall.read_bytes()
        _overwrite_unseen(first.overall, b"x" * len(content))
        report = collect(folder.sweep_dir)
        assert (report.shards_read, report.points, report.left_out) == (0, 2, [])
        _overwrite_unseen(first.overall, content)
        commit(writer, points[2], second)
        report = collect(folder.sweep_dir)
    assert (report.shards_read, report.points, report.left_out) == (2, 3, [])


def test_tables_are_synced_once_each_and_nothing_else_is(
    measured: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the lock, and what collect remembers, need not outlast a crash: a sync is slow."""
    synced: list[str] = []

    def noted(file: Any, sync: Callable[[Any], None] = os.fsync) -> None:
        number = file if isinstance(file, int) else file.fileno()
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    collect(measured.sweep_dir)
    names = sorted(Path(path).name.split(".")[1] for path in synced)
    assert names == ["details", "layers", "layout", "overall", "samples"]  # layout: the first time
    synced.clear()
    assert collect(measured.sweep_dir).shards_read == 0
    assert synced == []


def test_a_collect_without_news_costs_few_calls_and_no_lock(measured: Folder) -> None:
    """So thousands of sweeps, most of them as they were, take seconds."""
    collect(measured.sweep_dir)
    opened: list[str] = []
    counting = True

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        # a number is of a file that was opened before
        if counting and event == "open" and not isinstance(arguments[0], int):
            opened.append(Path(os.fsdecode(arguments[0])).name)

    sys.addaudithook(note)  # which stays as long as the process
    try:
        report = collect(measured.sweep_dir)
    finally:
        counting = False
    assert report.shards_read == 0
    passing = [name for name in opened if name.endswith(".tmp")]  # by which NFS asks its server
    assert len(passing) == 2
    # the folder of the only submission is opened to see whether this user may
    assert {*opened} - {*passing} == {"layout.json", ".collect.json", "sweep.yaml", "s1"}
    assert len(opened) == 6


def test_the_folder_from_which_it_is_called_makes_no_news(
    measured: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is the same folder."""
    collect(measured.sweep_dir)
    monkeypatch.chdir(measured.sweep_dir.path.parent)
    assert collect(SweepDir(Path(measured.sweep_dir.path.name))).shards_read == 0


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
    collect(measured.sweep_dir)
    before = measured.tables()
    path: Path = getattr(measured.sweep_dir, table)
    if how == "edited":
        path.write_bytes(path.read_bytes().replace(b"2", b"3"))
    else:
        path.unlink()
    report = collect(measured.sweep_dir)
    assert report.shards_read == 1
    assert measured.tables() == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": "1 0"}', b"\xff"])
def test_a_damaged_memory_is_no_harm(measured: Folder, content: bytes) -> None:
    """It is thrown away."""
    collect(measured.sweep_dir)
    before = measured.tables()
    measured.sweep_dir.collect_index.write_bytes(content)
    assert collect(measured.sweep_dir).shards_read == 1
    assert measured.tables() == before


def test_a_shard_that_vanished_takes_its_rows_with_it(measured: Folder) -> None:
    """The tables are what the shards say, no more."""
    measured.measure(measured.shard("s1", 1), measured.points[:2], mean_ms=5.0)
    collect(measured.sweep_dir)
    assert by_point(measured.sweep_dir, "mean_ms")[measured.points[0].point_id] == "5"
    measured.shard("s1", 1).overall.unlink()
    report = collect(measured.sweep_dir)
    assert by_point(measured.sweep_dir, "mean_ms")[measured.points[0].point_id] == "2"
    assert report.duplicates == 0


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("overall", lambda text: text.replace(b"resnet18", b"resnet81", 1)),  # on a bad disk
        ("overall", lambda text: text.replace(b"resnet18", b"damaged", 1)),  # and another file then
        ("layers", lambda text: text[:-200]),  # on a network disk it comes late
    ],
)
def test_what_was_damaged_or_late_is_read_again(
    measured: Folder, name: str, how: Callable[[bytes], bytes]
) -> None:
    """Whether its size changes with that, or only its time."""
    path: Path = getattr(measured.shard("s1"), name)
    whole = path.read_bytes()
    for number, (text, points) in enumerate(((how(whole), 7), (whole, 8))):
        path.write_bytes(text)
        os.utime(path, ns=(number, number))
        report = collect(measured.sweep_dir)
        assert (report.points, len(report.left_out)) == (points, 8 - points)


def test_a_row_that_is_being_written_is_taken_the_next_time(measured: Folder) -> None:
    """A torn line is named until it is whole."""
    shard = measured.shard("s1")
    whole = shard.overall.read_bytes()
    with shard.overall.open("rb+") as file:
        file.truncate(len(whole) - 9)
    first = collect(measured.sweep_dir)
    assert (first.points, first.error()) == (7, None)
    assert first.left_out == [f"{shard.overall}: torn last line left out"]
    with shard.overall.open("ab") as file:
        file.write(whole[-9:])
    second = collect(measured.sweep_dir)
    assert (second.points, second.left_out) == (8, [])


def test_what_another_version_remembered_is_not_used(measured: Folder) -> None:
    """It may mean something else; no file has changed since."""
    collect(measured.sweep_dir)
    record = json.loads(measured.sweep_dir.collect_index.read_text())
    record["report"]["points"] = 0
    for version, points in ((__version__, 0), ("0.0.1", 8)):
        form = record["format"].replace(__version__, version)
        remember(measured.sweep_dir, {**record, "format": form})
        assert collect(measured.sweep_dir).points == points


def remember(run: SweepDir, record: dict[str, Any]) -> None:
    """Write what the next collect finds, with a checksum that fits."""
    record = {name: record[name] for name in record if name != "crc"}
    run.collect_index.write_text(json.dumps(typed_json.sealed(record)))
