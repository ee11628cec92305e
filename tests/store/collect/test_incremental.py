"""Where nothing is new nothing is read, and only what can be trusted is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.store import shards, typed_json
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.folders import SweepDir
from hpcsweep.version import __version__
from resultsfolder import by_point, commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from resultsfolder import Folder


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
