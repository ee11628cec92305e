"""Laws of collect: order-free, idempotent, without loss, and the same however often it runs.

Histories are drawn at random: attempts of several submissions, each with rows of any status, some
of them damaged afterwards. A slow, obvious reading of the same history says which row must win.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import resultsfolder
from hpcsweep.store import shards
from hpcsweep.store.collect.collector import collect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcsweep.store.collect.collector import CollectReport
    from hpcsweep.store.folders import ShardPath
    from resultsfolder import Folder

pytestmark = pytest.mark.no_second_try

STATUSES = ["ok", "oom", "error", "crashed"]


@dataclass(frozen=True)
class Measured:
    """One row of a history: which point, how it ended, with what, and what happened to it later."""

    point: int
    status: str
    torch: str
    damage: str


ROWS = st.builds(
    Measured,
    point=st.integers(min_value=0, max_value=5),
    status=st.sampled_from(STATUSES),
    torch=st.sampled_from(["2.8", "2.9"]),
    damage=st.sampled_from(["", "", "", "row", "layers", "samples"]),
)
# attempts by (submission, chunk, attempt)
HISTORIES = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 2)),
    st.lists(ROWS, min_size=1, max_size=5, unique_by=lambda row: row.point),
    min_size=1,
    max_size=5,
)
History = dict[tuple[str, int, int], list[Measured]]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Return where the results folders of this module lie, in memory if possible."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


def fresh(home: Path, rounds: Mapping[str, int] | None = None) -> Folder:
    """Return an empty results folder with submissions and their rounds; with one by default."""
    folder = resultsfolder.make(Path(tempfile.mkdtemp(dir=home)))
    for name, number in (rounds or {"a": 0}).items():
        folder.submit(name, round=number)
    return folder


def write(folder: Folder, where: tuple[str, int, int], rows: list[Measured]) -> ShardPath:
    """Write an attempt, then do it the damage."""
    shard = folder.shard(*where)
    shard.folder.mkdir(parents=True, exist_ok=True)
    with shards.ShardWriter(shard) as writer:
        for row in rows:
            point = folder.points[row.point]
            ms = 1.0 + row.point
            resultsfolder.commit(
                writer, point, shard, status=row.status, torch_version=row.torch, mean_ms=ms
            )
    for found, row in zip(resultsfolder.read_shard(shard).rows, rows, strict=True):
        if row.damage == "row":
            text = shard.overall.read_bytes()
            _flip(shard.overall, text.index(found["_line"]) + found["_line"].index(b"resnet18"))
        elif row.damage and found[f"{row.damage}_bytes"] != "0":
            path = shard.layers if row.damage == "layers" else shard.samples
            _flip(path, int(found[f"{row.damage}_offset"]) + 5)
    return shard


def _flip(path: Path, at: int) -> None:
    with path.open("rb+") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(b"z" if byte != b"z" else b"y")


def expected(
    history: History, rounds: Mapping[str, int]
) -> dict[int, tuple[str, tuple[str, int, int]]]:
    """Return point to status and attempt of the row that must be in the table."""
    best: dict[int, tuple[bool, int, str, int, int, int, str]] = {}
    for (submission, chunk, attempt), rows in history.items():
        for number, row in enumerate(rows):
            harmless = row.damage in {"layers", "samples"} and row.status != "ok"
            if row.damage and not harmless:
                continue
            order = rounds[submission], submission
            rank = (row.status == "ok", *order, attempt, chunk, number, row.status)
            best[row.point] = max(best.get(row.point, rank), rank)
    return {point: (r[6], (r[2], r[4], r[3])) for point, r in best.items()}


def rows_of(folder: Folder) -> list[dict[str, str]]:
    """Return the merged rows of points."""
    return resultsfolder.overall(folder.sweep_dir)


@given(history=HISTORIES, numbers=st.permutations([0, 1, 2]) | st.just([0, 0, 0]))
def test_nothing_intact_is_lost_and_the_best_row_wins(
    home: Path, history: History, numbers: list[int]
) -> None:
    """Against the obvious reading; damage is left out, and named once per damaged row.

    A later round wins, whatever the clock called it; in the same round a later name.
    """
    rounds = dict(zip("abc", numbers, strict=True))
    folder = fresh(home, rounds)
    for where, rows in history.items():
        write(folder, where, rows)
    report = collect(folder.sweep_dir)
    wanted = expected(history, rounds)
    found = {
        row["point_id"]: (
            row["status"],
            (row["submission"], int(row["chunk"]), int(row["attempt"])),
        )
        for row in rows_of(folder)
    }
    assert found == {folder.points[i].point_id: want for i, want in wanted.items()}
    assert report.points == len(wanted)
    measured = sum(status == "ok" for status, _ in wanted.values())
    assert len(folder.sweep_dir.layers.read_bytes().splitlines()) == 1 + 2 * measured
    assert len(folder.sweep_dir.samples.read_bytes().splitlines()) == 1 + 3 * measured
    assert report.layer_rows == 2 * measured


@given(history=HISTORIES, data=st.data())
def test_the_tables_do_not_depend_on_when_it_was_collected(
    home: Path, history: History, data: st.DataObject
) -> None:
    """Shards arrive in any order, with or without a collect after each: byte for byte the same."""
    orders = [data.draw(st.permutations(list(history))) for _ in range(2)]
    tables, reports = [], []
    for order, often in zip(orders, (True, False), strict=True):
        folder = fresh(home)
        for where in order:
            write(folder, where, history[where])
            if often:
                collect(folder.sweep_dir)
        reports.append(_without_times(collect(folder.sweep_dir)))
        tables.append(folder.tables())
    assert tables[0] == tables[1]
    assert reports[0] == reports[1]


def _without_times(report: CollectReport) -> dict[str, object]:
    record = report.to_json()
    for name in ("seconds", "written", "shards_read", "remedy"):
        del record[name]
    record["left_out"] = sorted(text.rpartition("/")[2] for text in record["left_out"])
    record["unreadable"] = sorted(text.rpartition("/")[2] for text in record["unreadable"])
    return record
