"""Tables that are read hold every row that there is, in whatever state the folder is."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import hpcsweep
import resultsfolder
from hpcsweep import files
from hpcsweep.store import locks
from hpcsweep.store.collect import collector
from hpcsweep.store.collect.collector import collect
from localruns import Desk
from resultsfolder import overall

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resultsfolder import Folder


def grow(folder: Folder, name: str = "s2", **cells: Any) -> None:
    """Measure all points once more."""
    folder.submit(name, round=9)
    folder.measure(folder.shard(name), **{"mean_ms": 7.0, **cells})


def test_what_is_up_to_date_is_left_alone(measured: Folder) -> None:
    """Neither a lock is taken nor a file touched."""
    collect(measured.sweep_dir)
    before = {path: path.stat() for path in measured.sweep_dir.path.iterdir()}
    assert collector.tables_of(measured.sweep_dir) == (measured.sweep_dir, [])
    assert {path: path.stat() for path in measured.sweep_dir.path.iterdir()} == before


def test_newer_rows_are_collected_as_the_last_collect_did(measured: Folder) -> None:
    """Also if none did, or a table was removed."""
    run, _ = collector.tables_of(measured.sweep_dir)
    assert len(overall(run)) == len(measured.points)
    collect(run)
    run.collect_index.with_name("overall.parquet").write_bytes(b"old")
    grow(measured, model="=1+1")
    found, (told,) = collector.tables_of(run)
    assert found == run
    assert "overall.parquet is older than the tables: " in told
    assert "--parquet" in told
    assert {(row["mean_ms"], row["model"]) for row in overall(run)} == {("7", "=1+1")}
    run.layers.unlink()
    collector.tables_of(run)
    assert run.layers.exists()


def test_tables_that_hold_more_than_the_shards_are_not_renewed(measured: Folder) -> None:
    """Somebody removed old shards to save files: a report must not remove their rows."""
    collect(measured.sweep_dir)
    grow(measured)
    shutil.rmtree(measured.sweep_dir.shards_dir / "s1")
    measured.sweep_dir.collect_index.unlink()
    before = measured.tables()
    run, (told,) = collector.tables_of(measured.sweep_dir)
    assert (run, measured.tables()) == (measured.sweep_dir, before)
    assert "the shards of 1 attempt are gone (s1/0.0)" in told


def test_tables_without_shards_are_taken_as_they_are(measured: Folder) -> None:
    """A folder that holds somebody's tables alone."""
    collect(measured.sweep_dir)
    before = measured.tables()
    shutil.rmtree(measured.sweep_dir.shards_dir)
    assert collector.tables_of(measured.sweep_dir) == (measured.sweep_dir, [])
    assert measured.tables() == before


def test_a_lock_of_somebody_else_does_not_keep_rows_from_a_reader(
    measured: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are made aside then, and whoever holds the lock is named."""
    collect(measured.sweep_dir)
    grow(measured)
    before = measured.tables()
    monkeypatch.setattr(collector, "_SECONDS", 0.01)
    with locks.held(measured.sweep_dir, "hpcsweep submit"):
        run, (told,) = collector.tables_of(measured.sweep_dir)
    assert {row["mean_ms"] for row in overall(run)} == {"7"}
    assert measured.tables() == before
    assert run.command("report") == measured.sweep_dir.command("report")
    assert "hpcsweep submit" in told


@pytest.fixture
def read_only(measured: Folder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """Give a folder with newer rows that cannot be written: mounted so, or as if it were."""
    collect(measured.sweep_dir)
    grow(measured)
    root = measured.sweep_dir.path.parent
    mount = ["mount", "--bind", root, root]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        real = files.replacing

        def refuse(path: Path) -> Any:
            if root in path.parents:
                raise files.cannot_write(path, OSError(errno.EROFS, "Read-only file system"))
            return real(path)

        monkeypatch.setattr(files, "replacing", refuse)
        yield measured
        return
    subprocess.run(["mount", "-o", "remount,ro,bind", root], check=True)
    yield measured
    subprocess.run(["umount", root], check=True)


def test_a_folder_that_cannot_be_written_is_read_all_the_same(read_only: Folder) -> None:
    """By every command and from Python: with its newest rows, and with a word about the tables."""
    before = read_only.tables()
    desk = Desk(read_only.sweep_dir.path.parent.parent)
    told = "note: demo: its newest rows are shown, but its tables could not be renewed"
    for command in (
        ["report", "demo", "--metric", "mean_ms"], ["layers", "demo"], ["plot", "demo", "--x",
        "input_size", "--y", "mean_ms"], ["compare", "demo", "demo", "--metric", "mean_ms"],
    ):  # fmt: skip
        done = desk.run(*command)
        assert done.returncode == 0, done
        assert told in done.stderr, command
        assert "Read-only file system" in done.stderr
        assert "/tmp/hpcsweep-" not in done.stdout
    assert "7.000" in desk.run("report", "demo", "--metric", "mean_ms").stdout
    with pytest.warns(UserWarning, match="its newest rows are shown"):
        found = hpcsweep.load("demo", results=desk.results)
    assert set(found.overall["mean_ms"]) == {7.0}
    assert read_only.tables() == before


@pytest.mark.slow
def test_every_command_reads_what_is_on_disk_now(measured: Folder) -> None:
    """Without a collect in between; an imported folder, and one of somebody else, too."""
    collect(measured.sweep_dir)
    desk = Desk(measured.sweep_dir.path.parent.parent)
    assert "2.000" in desk.run("report", "demo", "--metric", "mean_ms").stdout
    work = {"median_ms": 7.0, "flops": 1e9, "bytes_min": 1e6, "peak_source": "h100"}
    for number, command in enumerate(
        (
            ["report", "demo"], ["layers", "demo"], ["plot", "demo", "--x", "input_size"],
            ["compare", "demo", "demo"], ["roofline", "demo", "--gpu", "h100"],
            ["report", "demo", "--html", "page.html"], ["best", "demo", "--over", "gemm"],
            ["predict", "--check", "demo"],
        )
    ):  # fmt: skip
        grow(measured, f"s{number + 2}", **work)
        desk.run(*command)
        assert collector.is_up_to_date(measured.sweep_dir), command
    grow(measured, "s90", mean_ms=9.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(hpcsweep.load(measured.sweep_dir.path).overall["mean_ms"]) == {9.0}
    other = desk.folder / "other" / "demo"
    shutil.copytree(measured.sweep_dir.path, other)
    other.joinpath("overall.csv").unlink()
    grow(resultsfolder.Folder(type(measured.sweep_dir)(other), measured.points), "s91", mean_ms=3.0)
    asked = ("compare", "demo", str(other), "--metric", "mean_ms")
    assert "0.333" in desk.run(*asked).stdout


def test_damage_is_told_and_the_other_rows_are_read(measured: Folder) -> None:
    """As `collect` tells it, with what to do."""
    shard = measured.shard("s1").overall
    shard.write_bytes(shard.read_bytes().replace(b",2,", b",3,", 1))
    run, notes = collector.tables_of(measured.sweep_dir)
    assert 0 < len(overall(run)) < len(measured.points)
    assert any("measured points are missing from the tables" in note for note in notes)
