"""Shards: what a writer leaves at any moment, and what a reader makes of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import resultsfolder
from hpcsweep import files
from hpcsweep.catalog.columns import LAYER_COLUMNS, SHARD_COLUMNS
from hpcsweep.catalog.record import UndeclaredCell
from hpcsweep.errors import ResultsError, Unread
from hpcsweep.store import row_reader, shards
from hpcsweep.store.folders import ShardPath
from hpcsweep.store.row_reader import Blocks, parse_block
from hpcsweep.store.shards import OURS, Heads, ShardWriter
from localruns import Desk
from resultsfolder import commit
from standins import compile_library

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.point import Point

pytestmark = pytest.mark.no_second_try


@pytest.fixture
def points(tmp_path: Path) -> list[Point]:
    """Return some points."""
    return resultsfolder.points_of(tmp_path)


@pytest.fixture
def shard(tmp_path: Path) -> ShardPath:
    """Return the files of an attempt, none of them made."""
    folder = tmp_path / "shards" / "s1"
    folder.mkdir(parents=True)
    return ShardPath(folder, 0, 0)


@pytest.fixture
def full(shard: ShardPath, points: list[Point]) -> ShardPath:
    """Return a shard with every point in it."""
    with ShardWriter(shard) as writer:
        for point in points:
            commit(writer, point, shard)
    return shard


@pytest.mark.parametrize(
    ("row", "layers", "said"),
    [
        ({"median_mss": 1.5}, [], "a row of overall.csv has no cell 'median_mss'; did you mean"),
        ({}, [{"kernel_hh": 3}], "a row of layers.csv has no cell 'kernel_hh'; did you mean"),
    ],
)
def test_a_cell_that_no_record_declares_is_an_error_and_no_lost_cell(
    shard: ShardPath,
    points: list[Point],
    row: dict[str, float],
    layers: list[dict[str, int]],
    said: str,
) -> None:
    """Nothing of the row is written; the writer goes on."""
    with ShardWriter(shard) as writer:
        with pytest.raises(UndeclaredCell, match=said):
            writer.commit({"point_id": points[0].point_id, "status": "ok", **row}, layers, [1.0])
        commit(writer, points[1], shard)
    read = resultsfolder.read_shard(shard)
    assert [found["point_id"] for found in read.rows] == [points[1].point_id]
    assert not read.problems


def blocks_of(shard: ShardPath, row: dict[str, str]) -> tuple[bytes, bytes]:
    """Return the layer rows and samples that a row names."""
    with Blocks() as blocks:
        return (
            blocks.read(shard.layers, int(row["layers_offset"]), int(row["layers_bytes"])),
            blocks.read(shard.samples, int(row["samples_offset"]), int(row["samples_bytes"])),
        )


def test_what_is_committed_can_be_read(full: ShardPath, points: list[Point]) -> None:
    """Rows, layer rows and samples, each with its point."""
    found = resultsfolder.read_shard(full)
    assert [row["point_id"] for row in found.rows] == [point.point_id for point in points]
    assert (found.problems, found.torn, found.left_out) == ([], False, 0)
    layers, samples = blocks_of(full, found.rows[3])
    rows = list(parse_block(layers, LAYER_COLUMNS))
    assert [(row["point_id"], row["layer"]) for row in rows] == [
        (points[3].point_id, "conv1"),
        (points[3].point_id, "fc"),
    ]
    assert samples.decode().splitlines() == [
        f"{points[3].point_id},{i},{ms}" for i, ms in enumerate(("2", "2.25", "1.75"))
    ]
    assert found.rows[3]["layer_rows"] == "2"


def test_the_quick_look_sees_the_same_points(full: ShardPath, points: list[Point]) -> None:
    """`status` and `submit` count with it."""
    keys = [*row_reader.read_rows([full])]
    assert [(key["point_id"], key["status"]) for key in keys] == [
        (p.point_id, "ok") for p in points
    ]


def test_a_shard_that_is_not_there_has_no_points(shard: ShardPath) -> None:
    """An attempt that never began."""
    assert [*row_reader.read_rows([shard])] == []


def sealed(shard: ShardPath) -> list[bool]:
    """Return which rows of a shard have a checksum that fits."""
    return [
        shards.fits(row["_line"], shards.OURS, *blocks_of(shard, row))
        for row in resultsfolder.read_shard(shard).rows
    ]


@pytest.mark.parametrize("name", ["overall", "layers", "samples", "env"])
def test_a_pipe_in_place_of_a_file_is_told_at_once(
    full: ShardPath, points: list[Point], name: str
) -> None:
    """Nobody waits for its writer: its rows are unread, or all else is read."""
    row = resultsfolder.read_shard(full).rows[0]
    path = getattr(full, name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    if name in {"overall", "layers"}:
        with pytest.raises(Unread, match="is a pipe, no file"):
            resultsfolder.read_shard(full)
        return
    found = resultsfolder.read_shard(full)
    assert len(found.rows) == len(points)
    with Blocks() as blocks, pytest.raises(ResultsError, match="is a pipe, no file"):
        blocks.read(path, 0, 1)
    with pytest.raises(ResultsError, match="is a pipe, no file"):
        files.read_json(path)
    assert row["point_id"] == points[0].point_id


def test_an_attempt_has_one_writer(full: ShardPath) -> None:
    """Two processes never write the same shard."""
    with pytest.raises(FileExistsError):
        ShardWriter(full)


def test_a_failed_point_needs_no_layers(shard: ShardPath, points: list[Point]) -> None:
    """Its row stands alone, and its checksum holds."""
    with ShardWriter(shard) as writer:
        commit(writer, points[0], shard, status="oom", status_reason="3 GB over,\n\0 said torch")
    (row,) = resultsfolder.read_shard(shard).rows
    assert (row["status"], row["layer_rows"]) == ("oom", "0")
    assert row["status_reason"] == "3 GB over, said torch"
    assert shards.fits(row["_line"], shards.OURS, b"", b"")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda line: b"\0" * len(line), "NUL bytes"),
        (lambda line: line[:40], "cells instead of"),
        (lambda line: b"x" + line[1:], "no point id"),
        (lambda line: line.replace(b",ok,", b",fine,", 1), "unknown status 'fine'"),
        (lambda line: line.replace(b"resnet18", b'"resnet18'), "not CSV"),
        (lambda line: line.replace(b"resnet18", b"resn\xfft18"), "not CSV"),
    ],
)
def test_a_damaged_line_is_named_and_the_others_are_kept(
    full: ShardPath, points: list[Point], damage, reason: str
) -> None:
    """With its line, to find it in a long file, and its point if that is left."""
    lines = full.overall.read_bytes().split(b"\n")
    lines[3] = damage(lines[3])
    full.overall.write_bytes(b"\n".join(lines))
    found = resultsfolder.read_shard(full)
    assert len(found.rows) == len(points) - 1
    (problem,) = found.problems
    named = "" if reason in {"NUL bytes", "no point id"} else f" (point {points[2].point_id})"
    assert problem.startswith(f"{full.overall}:4: row{named} left out:")
    assert reason in problem
    assert found.left_out == 1


@pytest.mark.parametrize("damaged", [b"", b"\0" * 4096])
def test_without_its_header_a_shard_has_the_columns_of_this_version(
    full: ShardPath, points: list[Point], damaged: bytes
) -> None:
    """The checksums of its rows prove it; a first block that never reached the disk is named."""
    whole = full.overall.read_bytes()
    full.overall.write_bytes(damaged + b"\n" * bool(damaged) + whole[whole.index(b"\n") + 1 :])
    found = resultsfolder.read_shard(full)
    assert (found.heads.columns, len(found.rows)) == (SHARD_COLUMNS, len(points))
    assert all(sealed(full))
    assert found.problems == [f"{full.overall}:1: row left out: NUL bytes"] * bool(damaged)


@pytest.mark.parametrize("left", [0, 1, 30])
def test_a_writer_killed_at_its_header_left_nothing_to_complain_of(
    full: ShardPath, left: int
) -> None:
    """No point had been measured yet."""
    os.truncate(full.overall, left)
    found = resultsfolder.read_shard(full)
    assert (found.rows, found.problems) == ([], [])
    assert found.torn is bool(left)


def test_a_shard_whose_layers_lost_their_header_has_those_of_today(full: ShardPath) -> None:
    """Its rows are proven by their checksums."""
    whole = full.layers.read_bytes()
    full.layers.write_bytes(b"\0" * whole.index(b"\n") + whole[whole.index(b"\n") :])
    assert resultsfolder.read_shard(full).heads.layers == LAYER_COLUMNS
    assert all(sealed(full))
    full.layers.unlink()
    assert resultsfolder.read_shard(full).heads.layers == LAYER_COLUMNS


def test_a_full_disk_is_told_and_leaves_whole_rows(shard: ShardPath, points: list[Point]) -> None:
    """A limit on the file's size, as a quota sets it, in a process of its own."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(resultsfolder.__file__).rpartition("/")[0]!r})
import resultsfolder as rf
from pathlib import Path
from hpcsweep.errors import ResultsError
from hpcsweep.store.folders import ShardPath
from hpcsweep.store.shards import ShardWriter
shard = ShardPath(Path({str(shard.folder)!r}), 0, 0)
points = rf.points_of(Path({str(shard.folder.parent)!r}))
with ShardWriter(shard) as writer:
    rf.commit(writer, points[0], shard)
    size = shard.overall.stat().st_size + 50
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        rf.commit(writer, points[1], shard)
    except ResultsError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{shard.overall}: cannot be written (File too large)" in done.stdout
    found = resultsfolder.read_shard(shard)
    assert [row["point_id"] for row in found.rows] == [points[0].point_id]
    assert (found.torn, found.problems) == (False, [])
    assert sealed(shard) == [True]


@pytest.mark.parametrize("name", ["overall", "layers", "samples"])
def test_half_a_block_that_could_not_be_taken_back_is_gone_with_the_next(
    shard: ShardPath, points: list[Point], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next row would be joined to it; a reader meanwhile sees the rows before."""
    real = os.write
    path = getattr(shard, name)

    def half(number: int, block: bytes) -> int:
        if not path.samefile(f"/proc/self/fd/{number}"):
            return real(number, block)
        real(number, block[: len(block) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fails(_number: int, _size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with ShardWriter(shard) as writer:
        commit(writer, points[0], shard)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            patch.setattr(os, "ftruncate", fails)
            with pytest.raises(ResultsError, match="No space left"):
                commit(writer, points[1], shard)
        assert len(resultsfolder.read_shard(shard).rows) == 1
        commit(writer, points[2], shard)
    found = resultsfolder.read_shard(shard)
    assert [row["point_id"] for row in found.rows] == [points[0].point_id, points[2].point_id]
    assert (found.problems, found.torn) == ([], False)
    assert all(blocks_of(shard, row)[0] for row in found.rows)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["FAIL_FSYNC", "FAIL_CLOSE"])
@pytest.mark.parametrize("file", ["0.0.overall.csv", "0.0.samples.csv"])
def test_a_quota_that_is_told_by_the_last_call_alone_is_noticed(
    tmp_path: Path, call: str, file: str
) -> None:
    """As network file systems do: every write succeeded, and the rows may be lost."""
    desk = Desk(tmp_path)
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    library = compile_library("filesystem", tmp_path, "-ldl")
    done = desk.run_process("submit", "sweep.yaml", LD_PRELOAD=str(library), **{call: file})
    assert done.returncode == ResultsError.exit_code, done.stdout + done.stderr
    assert f"{file}: cannot be written (Disk quota exceeded)" in done.stdout + done.stderr


@pytest.mark.parametrize("file", ["jobs.jsonl", "chunks.jsonl", "manifest.json", "sweep.yaml"])
def test_a_submission_that_did_not_reach_the_disk_is_not_started(tmp_path: Path, file: str) -> None:
    """Its files are told, too."""
    desk = Desk(tmp_path)
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    library = compile_library("filesystem", tmp_path, "-ldl")
    done = desk.run_process("submit", "sweep.yaml", LD_PRELOAD=str(library), FAIL_FSYNC=file)
    assert done.returncode == ResultsError.exit_code, done.stdout + done.stderr
    assert "cannot be written (Disk quota exceeded)" in done.stderr
    assert desk.rows() == []


def test_a_shard_of_an_older_version_without_a_row_is_not_damaged(tmp_path):
    """Its node has another version and measures its first point."""
    older = tuple(name for name in SHARD_COLUMNS if name not in {"order_seed", "own_files"})
    shard = ShardPath(tmp_path, 0, 0)
    shard.overall.write_bytes(shards.header(older))
    found = resultsfolder.read_shard(shard)
    assert (found.problems, found.left_out, found.heads.columns) == ([], 0, older)


TEXT, LAYERS, SAMPLES = b"0123,ok,resnet18,", b"0123,conv1,1.5\n", b"0123,0,2.25\n"
OTHER = Heads((*OURS.columns[:-6], "new", *OURS.columns[-5:]), OURS.layers)


def with_checksum(heads: Heads = OURS, layers: bytes = LAYERS) -> bytes:
    """Return a row with its checksum."""
    return TEXT + shards.seal(TEXT, heads, layers, SAMPLES)


def test_the_checksum_covers_row_layers_samples_and_headers() -> None:
    """One changed byte anywhere is noticed."""
    line = with_checksum()
    assert shards.fits(line, OURS, LAYERS, SAMPLES)
    assert not shards.fits(line.replace(b"18", b"50"), OURS, LAYERS, SAMPLES)
    assert not shards.fits(line, OURS, LAYERS.replace(b"1.5", b"1.4"), SAMPLES)
    assert not shards.fits(line, OURS, LAYERS, SAMPLES.replace(b"2.25", b"2.24"))
    assert not shards.fits(line[:-1], OURS, LAYERS, SAMPLES)
    assert not shards.fits(line, OTHER, LAYERS, SAMPLES)
    assert not shards.fits(line, replace(OURS, layers=OURS.layers[::-1]), LAYERS, SAMPLES)


def test_a_row_without_layers_does_not_depend_on_their_header() -> None:
    """Failed points have none; damage there must not cost them."""
    line = with_checksum(layers=b"")
    assert shards.fits(line, OURS, b"", SAMPLES)
    assert shards.fits(line, replace(OURS, layers=("damaged",)), b"", SAMPLES)
    assert not shards.fits(line, OTHER, b"", SAMPLES)
