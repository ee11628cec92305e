"""The law of damage: a byte that is flipped, or the end of a file that is cut off, anywhere.

Every row that is intact is in the tables, none is there that was not written, and every point that
is missing is named by collect, or counts as not measured.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import resultsfolder
from hpcsweep.store import attempt, ledger
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.state import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.store.folders import ShardPath, SweepDir

pytestmark = pytest.mark.no_second_try

FILES = ("overall", "layers", "samples")
STATUSES = ("ok", "oom", "ok")
Content = dict[str, bytes]


@pytest.fixture(scope="module")
def run() -> Iterator[SweepDir]:
    """Return a results folder with one shard of three rows, the second without layers."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        folder = resultsfolder.make(Path(path))
        points = folder.points[: len(STATUSES)]
        folder.submit("a", points)
        shard = folder.shard("a")
        with resultsfolder.shards.ShardWriter(shard) as writer:
            for number, (point, status) in enumerate(zip(points, STATUSES, strict=True)):
                resultsfolder.commit(writer, point, shard, status=status, mean_ms=1.5 + number)
        attempt.write_record(shard, attempt.AttemptRecord(state=AttemptState.DONE), {})
        yield folder.sweep_dir


def content_of(shard: ShardPath) -> Content:
    """Return the files of a shard."""
    return {name: getattr(shard, name).read_bytes() for name in FILES}


def tables(run: SweepDir) -> dict[str, list[bytes]]:
    """Return the lines of the merged tables, as readers see them."""
    lines = {name: getattr(run, name).read_bytes().splitlines() for name in FILES[1:]}
    rows = [",".join(row.values()).encode() for row in resultsfolder.overall(run)]
    return {**lines, "overall": [b"the columns of the reference", *rows]}


def columns(run: SweepDir) -> set[bytes]:
    """Return the columns of both tables of points."""
    return {
        name for path in run.merged()[:2] for name in path.read_bytes().split(b"\n")[0].split(b",")
    }


def intact(whole: Content, found: Content) -> set[bytes]:
    """Return the ids of the points whose line and blocks are where they were, as they were.

    The header of the rows, and of their layer rows, is a part of what their checksums cover.
    """
    ids, at = set(), whole["overall"].index(b"\n") + 1
    if any(head(whole[name]) != head(found[name]) for name in FILES[:2]):
        return ids
    for line in whole["overall"][at:].splitlines(keepends=True):
        places = [int(cell) for cell in line.rsplit(b",", 5)[1:5]]
        blocks = zip(("layers", "samples"), places[::2], places[1::2], strict=True)
        same = found["overall"][at : at + len(line)] == line and found["overall"][at - 1] == 10
        if same and all(whole[n][a : a + size] == found[n][a : a + size] for n, a, size in blocks):
            ids.add(line[:16])
        at += len(line)
    return ids


def head(text: bytes) -> bytes:
    """Return the first line of a file."""
    return text.split(b"\n")[0]


def check(run: SweepDir, whole: Content, found: Content) -> None:
    """Collect a shard that was damaged, and check the law."""
    (shard,) = run.shards()
    collect(run)
    before = tables(run)
    known = columns(run)
    try:
        for name in FILES:
            getattr(shard, name).write_bytes(found[name])
        run.collect_index.unlink()
        report = collect(run)
        after, statuses = tables(run), ledger.statuses(run)
        assert columns(run) <= known, "a column was invented"
    finally:
        for name in FILES:
            getattr(shard, name).write_bytes(whole[name])
        run.collect_index.unlink(missing_ok=True)
    for name in FILES:
        assert after[name][0] == before[name][0], "a column was invented"
        assert set(after[name]) <= set(before[name]), "a row was invented"
    ids_before, ids = ({line_id(line) for line in t["overall"][1:]} for t in (before, after))
    assert intact(whole, found) <= ids, "an intact row was left out"
    for point_id in (ids_before - ids) & {key.encode() for key in statuses}:
        assert point_id.decode() in report.destroyed, f"{point_id!r} counts as measured, unnamed"
        assert report.error() is not None


def line_id(line: bytes) -> bytes:
    """Return the id of a row of the merged table, the one cell of 16 hex digits."""
    (found,) = {c for c in line.split(b",") if len(c) == 16 and set(c) <= set(b"0123456789abcdef")}
    return found


def flipped(whole: Content, name: str, at: int, bit: int) -> Content:
    """Return the files with one bit of one of them changed."""
    text = bytearray(whole[name])
    text[at % len(text)] ^= 1 << bit
    return {**whole, name: bytes(text)}


@given(name=st.sampled_from(FILES), at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_one_flipped_bit_costs_the_row_that_it_hits(
    run: SweepDir, name: str, at: int, bit: int
) -> None:
    """And no other."""
    whole = content_of(run.shards()[0])
    check(run, whole, flipped(whole, name, at, bit))


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_one_flipped_bit_in_a_header_invents_nothing(run: SweepDir, at: int, bit: int) -> None:
    """Also where it turns one column's name into another's: what is left out is named."""
    whole = content_of(run.shards()[0])
    for name in FILES:
        check(run, whole, flipped(whole, name, at % whole[name].index(b"\n"), bit))


@given(name=st.sampled_from(FILES), at=st.integers(0, 10_000))
def test_a_file_that_was_cut_costs_the_rows_that_were_cut(
    run: SweepDir, name: str, at: int
) -> None:
    """Those before stay."""
    whole = content_of(run.shards()[0])
    check(run, whole, {**whole, name: whole[name][: at % len(whole[name])]})


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_byte_of_a_shard_obeys_the_law(run: SweepDir, name: str) -> None:
    """One after the other: one of its bits flipped, and the file cut there."""
    whole = content_of(run.shards()[0])
    for at in range(len(whole[name])):
        check(run, whole, flipped(whole, name, at, at % 8))
        check(run, whole, {**whole, name: whole[name][:at]})
