"""Packs points into chunks, and orders the points of each; it writes none.

One Slurm task measures one chunk, so many points share the cost of importing torch, and those of
one network share a worker. What will be compared, the algorithms and the visits of one
configuration, is a *block*: it stays in one chunk unless it alone exceeds the limit. A chunk ends
where the next block would exceed its limit. Chunks that share a job are evened out, since its GPUs
wait for the last one.

Inside a chunk one visit follows the other, each in a worker of its own, so that the visits of a
point lie as far apart as the chunk allows. A visit takes the networks in random order, of each the
configurations, of each the algorithms: so a drift of the machine meets all alike, a worker still
builds a network once, and what will be compared lies side by side.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, groupby, islice
from typing import Any, Final

from hpcsweep.catalog import VISIT, network_of
from hpcsweep.point import Point, differing
from hpcsweep.store.chunk_file import Chunk

Block = Sequence[Any]  # of points, or of what stands for them
Seconds = Callable[[Any], float]  # that a point is expected to take
WorkerOf = Callable[[Any], Hashable]  # equal for points that share a worker

_COMPARED: Final = frozenset({"algorithm", VISIT})


@dataclass(frozen=True)
class Limits:
    """How large a chunk may become: expected seconds, and points.

    Of the seconds `start` are before any worker, and `worker` the start of each.
    """

    seconds: float = math.inf
    points: float = math.inf
    start: float = 0.0
    worker: float = 0.0


def blocks(points: Iterable[Point]) -> Iterator[list[Point]]:
    """Cut a stream of points where the configuration changes."""
    for _, block in groupby(points, _configuration):
        yield list(block)


def _configuration(point: Point) -> Hashable:
    axes = {**point.axes}
    for name in _COMPARED:
        axes.pop(name, None)
    return tuple(axes.values())


def packed(
    blocks: Iterable[Block], seconds_of: Seconds, worker_of: WorkerOf, limits: Limits
) -> Iterator[Chunk]:
    """Pack a stream of blocks into chunks, in order; a point over the limit gets its own chunk."""
    index = 0
    total = limits.start
    batch: list[Any] = []
    workers = set[Hashable]()
    for block in blocks:
        costs = [seconds_of(point) for point in block]
        keys = {worker_of(point) for point in block}
        whole = limits.start + limits.worker * len(keys) + sum(costs)
        parts: list[tuple[Block, float, set[Hashable]]] = [(block, sum(costs), keys)]
        if whole > limits.seconds or len(block) > limits.points:  # they find a place one by one
            one_by_one = zip(block, costs, strict=True)
            parts = [([point], seconds, {worker_of(point)}) for point, seconds in one_by_one]
        for part, seconds, needed in parts:
            more = seconds + limits.worker * len(needed - workers)
            full = total + more > limits.seconds or len(batch) + len(part) > limits.points
            if batch and full:
                yield Chunk(index, tuple(batch), total)
                index = index + 1
                batch = []
                workers = set()
                total = limits.start
                more = seconds + limits.worker * len(needed)
            batch += part
            workers |= needed
            total += more
    if batch:
        yield Chunk(index, tuple(batch), total)


def spread(
    blocks: Iterable[Block], seconds_of: Seconds, worker_of: WorkerOf, limits: Limits, tasks: int
) -> Iterator[Chunk]:
    """Split blocks into so many runs of about equal time; more where one would be too large."""
    listed = list(blocks)
    costs: dict[int, float] = {}
    of_blocks = []
    for block in listed:
        of_block = [seconds_of(point) for point in block]
        costs.update(zip(map(id, block), of_block, strict=True))
        of_blocks.append(sum(of_block))
    index = 0
    for part in _shared(listed, of_blocks, tasks):
        for chunk in packed(part, lambda point: costs[id(point)], worker_of, limits):
            yield Chunk(index, chunk.points, chunk.seconds)
            index += 1


def evened(
    chunks: Iterable[Chunk],
    seconds_of: Seconds,
    worker_of: WorkerOf,
    limits: Limits,
    per_job: int,
) -> Iterator[Chunk]:
    """Cut the points of each job anew into `per_job` chunks of about equal time.

    The last job has fewer only where it has fewer blocks.
    """
    index = 0
    left = iter(chunks)
    while job := [*islice(left, per_job)]:
        points = chain.from_iterable(chunk.points for chunk in job)
        even = [*spread(blocks(points), seconds_of, worker_of, limits, per_job)]
        # of another number the next jobs would begin amid those of this one
        is_whole = len(job) <= len(even) <= per_job
        for chunk in even if is_whole else job:
            yield Chunk(index, chunk.points, chunk.seconds)
            index += 1


def _shared(blocks: list[Block], costs: list[float], parts: int) -> list[list[Block]]:
    """Cut a list into at most so many runs of about equal cost, none of them empty."""
    target = sum(costs) / max(parts, 1)
    found: list[list[Block]] = []
    begin = 0
    passed = 0.0
    for end, cost in enumerate(costs, start=1):
        passed += cost
        left = parts - len(found) - 1
        if end == len(costs) or (left > 0 and passed >= target * (len(found) + 1)):
            found.append(blocks[begin:end])
            begin = end
    return found


def arranged(chunk: Chunk) -> Chunk:
    """Return a chunk with its points in the order in which they are measured."""
    # of the other axes all points have the same value: to hash them takes longer than all else
    told = [name for name in differing(chunk.points) if name not in _COMPARED]

    def rank(*what: object) -> bytes:
        """Return a random number of a thing, the same each time."""
        return hashlib.sha256(repr((chunk.order_seed, *what)).encode()).digest()

    rank_of_network = cache(rank)  # of each there are many points

    def place(point: Point) -> tuple[Any, ...]:
        visit = point.axes.get(VISIT, 1)
        network = rank_of_network(visit, network_of(point.axes))
        configuration = rank(visit, *map(point.axes.get, told))
        return visit, network, configuration, rank(point.point_id)

    return replace(chunk, points=tuple(sorted(chunk.points, key=place)))
