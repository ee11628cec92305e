"""Chunks: how points are packed, and that the chunk file gives them back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import resultsfolder
from hpcsweep.errors import ResultsError
from hpcsweep.point import Point
from hpcsweep.store import chunk_file

if TYPE_CHECKING:
    from pathlib import Path

COSTS = st.lists(st.floats(min_value=0.0, max_value=50.0), max_size=60)


def points(costs: list[float]) -> list[Point]:
    """Return points that say what they cost."""
    return [
        Point("noop", {"seed": i, "cost": cost}, {}, f"{i:016x}") for i, cost in enumerate(costs)
    ]


def cost(point: Point) -> float:
    """Return what a point costs."""
    return float(point.axes["cost"])


@given(COSTS, st.floats(min_value=1.0, max_value=100.0), st.integers(min_value=1, max_value=20))
def test_packing_loses_nothing_and_keeps_order_and_limits(
    costs: list[float], seconds: float, most: int
) -> None:
    """Only a point that is over the limit by itself may exceed it, alone."""
    made = points(costs)
    chunks = list(chunk_file.pack(made, cost, chunk_file.Limits(seconds, most)))
    assert [point for chunk in chunks for point in chunk.points] == made
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert 1 <= len(chunk.points) <= most
        assert chunk.seconds == pytest.approx(sum(cost(point) for point in chunk.points))
        assert chunk.seconds <= seconds * (1 + 1e-9) or len(chunk.points) == 1


@given(COSTS, st.floats(min_value=1.0, max_value=100.0))
def test_packing_starts_a_chunk_only_where_the_next_point_does_not_fit(
    costs: list[float], seconds: float
) -> None:
    """A start of Python and CUDA is paid once for as many points as possible."""
    chunks = list(chunk_file.pack(points(costs), cost, chunk_file.Limits(seconds, 1000)))
    for chunk, following in pairwise(chunks):
        assert chunk.seconds + cost(following.points[0]) > seconds


@given(COSTS, st.integers(min_value=1, max_value=8))
def test_sharing_over_workers_loses_nothing(costs: list[float], workers: int) -> None:
    """At most one chunk per worker, none empty, in order."""
    made = points(costs)
    chunks = chunk_file.share(made, cost, workers)
    assert [point for chunk in chunks for point in chunk.points] == made
    assert len(chunks) <= workers
    assert all(chunk.points for chunk in chunks)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))


def test_equal_points_are_shared_equally() -> None:
    """Two workers, half each."""
    chunks = chunk_file.share(points([1.0] * 10), cost, 2)
    assert [len(chunk.points) for chunk in chunks] == [5, 5]


def test_without_limits_there_is_one_chunk() -> None:
    """A profile without a time limit."""
    assert len(list(chunk_file.pack(points([1.0] * 100), cost, chunk_file.Limits(inf, 1000)))) == 1


def test_the_chunk_file_gives_back_every_point(tmp_path: Path) -> None:
    """Whole, one by one, or ids alone."""
    made = resultsfolder.points_of(tmp_path)
    chunks = [chunk_file.Chunk(0, tuple(made[:3]), 1.5), chunk_file.Chunk(1, tuple(made[3:]), 2.5)]
    path = tmp_path / "chunks.jsonl"
    assert chunk_file.write_chunks(path, chunks) == (2, len(made), 4.0)
    assert list(chunk_file.read_chunks(path)) == chunks
    assert chunk_file.read_chunk(path, 1) == chunks[1]
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
