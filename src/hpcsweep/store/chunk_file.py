"""Reads and writes the chunk file: which points each task of a submission measures.

A line is one chunk, stored by column, since most axes are constant within it::

    {"chunk": 0, "crc": "8c5de1f2", "seconds": 12.5, "workload": "inference", "measure": {...},
     "axes": ["model", "input_size"], "values": ["resnet18", [224, 256]], "ids": ["...", "..."]}

The checksum covers all other bytes of the line. A value that is a list holds one entry per point;
a constant axis whose value is itself a list does not exist.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files
from hpcsweep.errors import ResultsError
from hpcsweep.point import Point, is_constant, is_point_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_SEALED: Final = re.compile(rb'(\{"chunk":\d+,)"crc":"([0-9a-f]{8})",')


@dataclass(frozen=True)
class Chunk:
    """The points that one task measures, in order, and the seconds that they should take."""

    index: int
    points: tuple[Point, ...]
    seconds: float

    @cached_property  # each row of the chunk has it
    def order_seed(self) -> int:
        """The seed of the order of points; derived from the points, so that it is reproducible."""
        # 8 hex digits are 32 bits, which a cell holds as a plain number
        return int(min(point.point_id for point in self.points)[:8], 16)


def write_chunks(path: Path, chunks: Iterable[Chunk]) -> tuple[int, list[float]]:
    """Write the chunk file; return its points, and the expected seconds of each chunk."""
    points = 0
    seconds: list[float] = []
    with path.open("w", encoding="ascii") as file:
        for chunk in chunks:
            # the checksum stands second, so that a reader proves a line before it parses it
            text = json.dumps(_encode(chunk), separators=(",", ":"))
            head, comma, keys = text.partition(",")
            checksum = zlib.crc32(text.encode("ascii"))
            file.write(f'{head},"crc":"{checksum:08x}"{comma}{keys}\n')
            points += len(chunk.points)
            seconds.append(chunk.seconds)
        file.flush()
        # the manifest, which says that all is there, follows
        os.fsync(file.fileno())
    return points, seconds


def read_chunk(path: Path, index: int) -> Chunk:
    """Return one chunk; `ResultsError` where the file lacks it."""
    try:
        with files.open_regular(path) as file:
            line = next(islice(file, index, None), b"")
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror or error})") from error
    return _chunk(path, index, line)


def read_chunks(path: Path, number: int) -> Iterator[Chunk]:
    """Yield so many chunks, the first ones; `ResultsError` where the file lacks one."""
    try:
        with files.open_regular(path) as file:
            for index in range(number):
                yield _chunk(path, index, next(file, b""))
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror or error})") from error


def _chunk(path: Path, index: int, line: bytes) -> Chunk:
    if not line.endswith(b"\n"):
        raise ResultsError(f"{path}: has no chunk {index}; was the submission copied whole?")
    try:
        _prove(line)
        return _decode(index, json.loads(line))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ResultsError(f"{path}: chunk {index} is damaged ({error})") from error


def read_ids(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield chunk numbers with their point ids; `ResultsError` where the file is damaged."""
    try:
        with files.open_regular(path) as file:
            for line in file:
                _prove(line)
                # the ids are the last key: who asks for them alone parses no axes
                begin = line.rindex(b'"ids":') + len(b'"ids":')
                index = int(line[len(b'{"chunk":') : line.index(b",")])
                yield index, json.loads(line[begin:-2])
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: cannot be read ({error})") from error


def _prove(line: bytes) -> None:
    """Raise `ValueError` where the checksum of a line does not fit."""
    match = _SEALED.match(line)
    others = match[1] + line[match.end() :].removesuffix(b"\n") if match else b""
    if not match or int(match[2], 16) != zlib.crc32(others):
        raise ValueError("the checksum does not fit, so it was changed after it was written")


def _encode(chunk: Chunk) -> dict[str, Any]:
    seconds = round(chunk.seconds, 3)
    return {"chunk": chunk.index, "seconds": seconds, **to_columns(chunk.points)}


def _decode(index: int, record: dict[str, Any]) -> Chunk:
    """Return a chunk; `ValueError` for another one, or an empty one, or where an id is none.

    Ids name files.
    """
    ids = record["ids"]
    if record["chunk"] != index or not all(map(is_point_id, ids)):
        raise ValueError("it is another chunk, or has points without an id")
    if not ids:
        raise ValueError("it has no points")
    return Chunk(index, tuple(from_columns(record)), float(record["seconds"]))


def to_columns(points: Sequence[Point]) -> dict[str, Any]:
    """Return points of one sweep as the values of each axis: one where all have the same."""
    first = points[0]
    axes = [point.axes for point in points]
    values = []
    for name in first.axes:
        column = [*map(itemgetter(name), axes)]
        values.append(column[0] if is_constant(column) else column)
    return {
        "workload": first.workload,
        "measure": dict(first.measure),
        "axes": [*first.axes],
        "values": values,
        "ids": [point.point_id for point in points],
    }


def from_columns(record: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the points that `to_columns` made a record of."""
    ids = record["ids"]
    found = record["values"]
    columns = [value if isinstance(value, list) else [value] * len(ids) for value in found]
    for point_id, *values in zip(ids, *columns, strict=True):
        axes = dict(zip(record["axes"], values, strict=True))
        yield Point(record["workload"], axes, record["measure"], point_id)
