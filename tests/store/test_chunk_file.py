"""The chunk file gives back every chunk, point and id."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import resultsfolder
from hpcsweep.errors import ResultsError
from hpcsweep.point import Point
from hpcsweep.store import chunk_file

if TYPE_CHECKING:
    from pathlib import Path


def points(costs: list[float]) -> list[Point]:
    """Return points that say what they cost."""
    return [
        Point("noop", {"seed": i, "cost": cost}, {}, f"{i:016x}") for i, cost in enumerate(costs)
    ]


def test_the_chunk_file_gives_back_every_point(tmp_path: Path) -> None:
    """Whole, one by one, or ids alone."""
    made = resultsfolder.points_of(tmp_path)
    chunks = [chunk_file.Chunk(0, tuple(made[:3]), 1.5), chunk_file.Chunk(1, tuple(made[3:]), 2.5)]
    path = tmp_path / "chunks.jsonl"
    assert chunk_file.write_chunks(path, chunks) == (len(made), [1.5, 2.5])
    assert [chunk_file.read_chunk(path, index) for index in (0, 1)] == chunks
    assert list(chunk_file.read_ids(path)) == [
        (chunk.index, [point.point_id for point in chunk.points]) for chunk in chunks
    ]


def test_values_that_only_look_equal_stay_apart(tmp_path: Path) -> None:
    """A column is squeezed where it is constant: true is not 1."""
    first = Point("noop", {"a": True, "b": "x"}, {}, "0" * 16)
    second = replace(first, axes={"a": 1, "b": "x"}, point_id="1" * 16)
    path = tmp_path / "chunks.jsonl"
    chunk_file.write_chunks(path, [chunk_file.Chunk(0, (first, second), 0.0)])
    values = [point.axes["a"] for point in chunk_file.read_chunk(path, 0).points]
    assert [type(value) for value in values] == [bool, int]


def test_an_algorithm_map_survives(tmp_path: Path) -> None:
    """It is the one axis value that is a mapping."""
    made = (Point("inference", {"algorithm": {"*": "gemm"}}, {"warmup": 1}, "0" * 16),)
    path = tmp_path / "chunks.jsonl"
    chunk_file.write_chunks(path, [chunk_file.Chunk(0, made, 0.0)])
    assert chunk_file.read_chunk(path, 0).points == made


@pytest.mark.parametrize("index", [1, 7])
def test_a_chunk_that_is_not_there_is_told(tmp_path: Path, index: int) -> None:
    """A submission that was copied in part."""
    path = tmp_path / "chunks.jsonl"
    chunk_file.write_chunks(path, [chunk_file.Chunk(0, tuple(points([1.0])), 1.0)])
    with pytest.raises(ResultsError, match=f"has no chunk {index}"):
        chunk_file.read_chunk(path, index)


def test_a_chunk_file_that_is_damaged_or_gone_is_told(tmp_path: Path) -> None:
    """With its name, and without a traceback."""
    path = tmp_path / "chunks.jsonl"
    with pytest.raises(ResultsError, match=r"chunks.jsonl: cannot be read"):
        chunk_file.read_chunk(path, 0)
    with pytest.raises(ResultsError, match=r"chunks.jsonl: cannot be read"):
        list(chunk_file.read_ids(path))
    path.write_bytes(b'{"chunk":0,"ids":["00\n')
    with pytest.raises(ResultsError, match=r"chunks.jsonl: cannot be read"):
        list(chunk_file.read_ids(path))


def test_a_line_without_its_checksum_is_refused(tmp_path: Path) -> None:
    """As one that was written by hand, or whose first bytes are damaged."""
    path = tmp_path / "chunks.jsonl"
    rest = '"measure":{},"axes":["a"],"values":[1],"ids":["00"]}\n'
    path.write_text('{"chunk":0,"seconds":1,"workload":"noop",' + rest)
    for read in (lambda: chunk_file.read_chunk(path, 0), lambda: [*chunk_file.read_ids(path)]):
        with pytest.raises(ResultsError, match="checksum does not fit"):
            read()


def test_a_chunk_without_points_is_damage(tmp_path: Path) -> None:
    """No submission has one: its supervisor would have nothing to take axes from."""
    others = {"seconds": 0, "workload": "noop", "measure": {}, "axes": [], "values": [], "ids": []}
    text = json.dumps({"chunk": 0, **others}, separators=(",", ":"))
    head, comma, keys = text.partition(",")
    path = tmp_path / "chunks.jsonl"
    path.write_text(f'{head},"crc":"{zlib.crc32(text.encode()):08x}"{comma}{keys}\n')
    with pytest.raises(ResultsError, match="has no points"):
        chunk_file.read_chunk(path, 0)
