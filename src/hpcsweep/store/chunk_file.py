"""Packs points into chunks, and writes and reads the chunk file.

A chunk is what one scheduler task measures in one go, so the cost of a Python and CUDA start is
paid once for many points. Points keep their order (the model changes slowest), so that a worker
keeps its model; a chunk ends where the next point would not fit the time it may take.

The chunk file is the one thing that the submitting and the measuring side share. A line is one
chunk, stored by column, since most axes are constant within it::

    {"chunk": 0, "seconds": 12.5, "workload": "inference", "measure": {...},
     "axes": ["model", "input_size"], "values": ["resnet18", [224, 256]], "ids": ["...", "..."]}

A value that is a list holds one entry per point; a constant axis whose value is itself a list
does not exist.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from hpcsweep.errors import ResultsError
from hpcsweep.point import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Chunk:
    """The points that one task measures, and the seconds that they are expected to take."""

    index: int
    points: tuple[Point, ...]
    seconds: float


@dataclass(frozen=True)
class Limits:
    """How large a chunk may become: expected seconds, and points."""

    seconds: float
    points: int


def pack(
    points: Iterable[Point], seconds_of: Callable[[Point], float], limits: Limits
) -> Iterator[Chunk]:
    """Cut a stream of points into chunks, in order; a point over the limit gets its own chunk."""
    index, total = 0, 0.0
    batch: list[Point] = []
    for point in points:
        seconds = seconds_of(point)
        if batch and (total + seconds > limits.seconds or len(batch) >= limits.points):
            yield Chunk(index, tuple(batch), total)
            index, batch, total = index + 1, [], 0.0
        batch.append(point)
        total += seconds
    if batch:
        yield Chunk(index, tuple(batch), total)


def share(
    points: Iterable[Point], seconds_of: Callable[[Point], float], workers: int
) -> list[Chunk]:
    """Split points over `workers` of one machine: contiguous runs of about equal time."""
    listed = list(points)
    costs = [seconds_of(point) for point in listed]
    target = sum(costs) / max(workers, 1)
    chunks: list[Chunk] = []
    begin, total, passed = 0, 0.0, 0.0
    for end, cost in enumerate(costs, start=1):
        total, passed = total + cost, passed + cost
        left_workers = workers - len(chunks) - 1
        if end == len(costs) or (left_workers > 0 and passed >= target * (len(chunks) + 1)):
            chunks.append(Chunk(len(chunks), tuple(listed[begin:end]), total))
            begin, total = end, 0.0
    return chunks


def write_chunks(path: Path, chunks: Iterable[Chunk]) -> tuple[int, int, float]:
    """Write the chunk file; return chunks, points and expected seconds."""
    count, points, seconds = 0, 0, 0.0
    with path.open("w", encoding="ascii") as file:
        for chunk in chunks:
            file.write(json.dumps(_encode(chunk), separators=(",", ":")) + "\n")
            count, points, seconds = count + 1, points + len(chunk.points), seconds + chunk.seconds
    return count, points, seconds


def read_chunk(path: Path, index: int) -> Chunk:
    """Return one chunk; `ResultsError` where the file lacks it."""
    try:
        with path.open("rb") as file:
            line = next(islice(file, index, None), b"")
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not line.endswith(b"\n"):
        raise ResultsError(f"{path}: has no chunk {index}; was the submission copied whole?")
    return _decode(json.loads(line))


def read_chunks(path: Path) -> Iterator[Chunk]:
    """Return all chunks, one after the other."""
    with path.open("rb") as file:
        for line in file:
            yield _decode(json.loads(line))


def read_ids(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Return chunk numbers and point ids only, for who just counts; `ResultsError` if damaged."""
    try:
        with path.open("rb") as file:
            for line in file:
                begin = line.rindex(b'"ids":') + len(b'"ids":')
                index = int(line[len(b'{"chunk":') : line.index(b",")])
                yield index, json.loads(line[begin:-2])
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read ({error})") from error


def _encode(chunk: Chunk) -> dict[str, Any]:
    first = chunk.points[0]
    names = list(first.axes)
    columns = [[point.axes[name] for point in chunk.points] for name in names]
    return {
        "chunk": chunk.index,
        "seconds": round(chunk.seconds, 3),
        "workload": first.workload,
        "measure": dict(first.measure),
        "axes": names,
        "values": [_squeeze(column) for column in columns],
        "ids": [point.point_id for point in chunk.points],
    }


def _squeeze(column: list[Any]) -> Any:  # noqa: ANN401 - axis values are what YAML holds
    first = column[0]
    same = all(value == first and type(value) is type(first) for value in column)
    return first if same else column


def _decode(record: dict[str, Any]) -> Chunk:
    ids = record["ids"]
    columns = [
        value if isinstance(value, list) else [value] * len(ids) for value in record["values"]
    ]
    points = tuple(
        Point(
            record["workload"],
            dict(zip(record["axes"], values, strict=True)),
            record["measure"],
            point_id,
        )
        for point_id, values in zip(ids, zip(*columns, strict=True), strict=True)
    )
    return Chunk(record["chunk"], points, record["seconds"])
