"""Packs points into chunks.

One Slurm task measures one chunk, so many points share the cost of a Python and CUDA start. Points
keep their order (the model changes slowest), so that a worker keeps its model. A chunk ends where
the next point would exceed its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hpcsweep.store.chunk_file import Chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@dataclass(frozen=True)
class Limits:
    """How large a chunk may become: expected seconds, and points.

    `start` seconds of each chunk go by before its first point.
    """

    seconds: float
    points: int
    start: float = 0.0


def pack(
    points: Iterable[Any], seconds_of: Callable[[Any], float], limits: Limits
) -> Iterator[Chunk]:
    """Cut a stream of points into chunks, in order; a point over the limit gets its own chunk."""
    index, total = 0, limits.start
    batch: list[Any] = []
    for point in points:
        seconds = seconds_of(point)
        if batch and (total + seconds > limits.seconds or len(batch) >= limits.points):
            yield Chunk(index, tuple(batch), total)
            index, batch, total = index + 1, [], limits.start
        batch.append(point)
        total += seconds
    if batch:
        yield Chunk(index, tuple(batch), total)


def spread(
    points: Iterable[Any], seconds_of: Callable[[Any], float], limits: Limits, tasks: int
) -> Iterator[Chunk]:
    """Split points over so many tasks, of about equal time; more where one would be too large."""
    listed = [(point, seconds_of(point)) for point in points]
    cost = itemgetter(1)
    index = 0
    for part in share(listed, cost, tasks):
        for chunk in pack(part.points, cost, limits):
            pairs: tuple[Any, ...] = chunk.points
            yield Chunk(index, tuple(point for point, _ in pairs), chunk.seconds)
            index += 1


def share(
    points: Iterable[Any], seconds_of: Callable[[Any], float], workers: int, start: float = 0.0
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
            chunks.append(Chunk(len(chunks), tuple(listed[begin:end]), start + total))
            begin, total = end, 0.0
    return chunks
