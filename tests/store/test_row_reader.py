"""Rows by the cells that are asked for; blocks from where rows say."""

from __future__ import annotations

from pathlib import Path

import pytest

import resultsfolder
from hpcsweep.errors import ResultsError, Unread
from hpcsweep.store.folders import ShardPath
from hpcsweep.store.row_reader import Blocks, read_rows, table_rows
from hpcsweep.store.shards import ShardWriter


@pytest.fixture
def full(tmp_path: Path) -> ShardPath:
    """Return a shard with every point in it."""
    folder = tmp_path / "shards" / "s1"
    folder.mkdir(parents=True)
    shard = ShardPath(folder, 0, 0)
    with ShardWriter(shard) as writer:
        for point in resultsfolder.points_of(tmp_path):
            resultsfolder.commit(writer, point, shard)
    return shard


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 10), (10**15, 10), (0, 10**15), (0, -5), (10**30, 1), (3, 10**30)]
)
def test_a_place_that_does_not_exist_is_damage(full: ShardPath, offset: int, length: int) -> None:
    """A damaged row may name any place; nobody asks for a petabyte."""
    with Blocks() as blocks, pytest.raises(ResultsError, match="damaged"):
        blocks.read(full.layers, offset, length)


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_few_files_are_open_however_many_are_read(tmp_path: Path) -> None:
    """A thousand shards must not exhaust the file descriptors."""
    paths = [tmp_path / f"{number}.csv" for number in range(40)]
    for path in paths:
        path.write_text(f"{path.name}\n")
    with Blocks(limit=3) as blocks:
        before = _open_files()
        for path in paths + paths[::-1]:
            assert blocks.read(path, 0, path.stat().st_size) == f"{path.name}\n".encode()
        assert _open_files() <= before + 3
    assert _open_files() == before


def test_what_is_gone_is_damage_and_what_cannot_be_read_is_not(full: ShardPath) -> None:
    """The second may be read the next time."""
    full.layers.unlink()
    full.samples.unlink()
    full.samples.mkdir()
    with Blocks() as blocks:
        with pytest.raises(ResultsError, match="No such file") as caught:
            blocks.read(full.layers, 0, 10)
        assert not isinstance(caught.value, Unread)
        with pytest.raises(Unread, match="Is a directory"):
            blocks.read(full.samples, 0, 10)


def test_rows_have_the_cells_that_are_asked_for(full: ShardPath) -> None:
    """And those that tell a point and how it ended, of every version."""
    keys = [*read_rows([full])]
    whole = [*read_rows([full], columns=None)]
    some = [*read_rows([full], ("model", "mean_ms", "flags", "not_a_column", "sweep"))]
    assert [{*row} for row in keys] == [{"point_id", "status"}] * len(whole)
    names = {"point_id", "status", "model", "mean_ms", "sweep"}
    assert some == [{k: v for k, v in row.items() if k in names and v} for row in whole]
    assert {*some[0]} == names


def test_a_cell_with_commas_and_quotes_is_one_cell(tmp_path: Path, full: ShardPath) -> None:
    """Wherever it stands."""
    reason = 'said "no, never", and left'
    shard = full.next_attempt()
    with ShardWriter(shard) as writer:
        for point in resultsfolder.points_of(tmp_path):
            cells = {"status": "error", "status_reason": reason, "flags": "noisy"}
            resultsfolder.commit(writer, point, shard, **cells)
    found = [*read_rows([shard], ("status_reason", "flags", "model"))]
    assert {(row["status_reason"], row["flags"], row["model"]) for row in found} == {
        (reason, "noisy", "resnet18")
    }


def test_a_damaged_line_counts_by_its_beginning_alone(full: ShardPath) -> None:
    """`collect` says what is wrong with it; nobody reads a cell from the wrong place."""
    lines = full.overall.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b",ok,", b",ok,surplus,")
    lines[2] = lines[2][:100]
    lines[3] = b"\0" + lines[3]
    lines[4] = lines[4].replace(b",ok,", b",odd,")
    full.overall.write_bytes(b"\n".join(lines))
    points = len(lines) - 2
    assert len([*read_rows([full])]) == points - 2
    found = [*read_rows([full], ("sweep",))]
    assert [row.get("sweep") for row in found] == [None, None, *["demo"] * (points - 4)]
    assert len([*read_rows([full], None)]) == points - 4


def test_a_table_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    """Saved by another program, too; one that lacks a column is refused."""
    path = tmp_path / "overall.csv"
    path.write_bytes(b'model,point_id,flags\r\n"a, b",1,noisy\r\n')
    assert [*table_rows(path, ("model", "flags"))] == [{"model": "a, b", "flags": "noisy"}]
    with pytest.raises(ResultsError, match="attempt"):
        [*table_rows(path, ("model", "attempt"))]
