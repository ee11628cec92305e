"""Compares what is timed in turns, so that a drift of the machine hits all alike.

What autotunes runs in a process of its own, as torch would give it the plans of the others.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from hpcsweep.errors import Refused
from hpcsweep.measure import measure_point as pipeline
from hpcsweep.measure import switches
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.timing import loop, stats
from hpcsweep.measure.workloads.inference import InferenceNetwork, InferencePasses

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from hpcsweep.measure.measure_point import PointBench
    from hpcsweep.point import Point

    Interval = tuple[float, float, float]

_TOGETHER: Final = 5  # passes whose medians are one pair


@dataclass(frozen=True)
class _Remote:
    """The clock of a lane in another process: it runs the passes there."""

    pipe: Connection

    def block(self, _run: object, count: int) -> list[float]:
        """Run `count` passes and return the milliseconds of each; raise what is raised there."""
        self.pipe.send(count)
        return _answer(self.pipe)


def clean_lane(point: Point, bench: PointBench) -> loop.Lane:
    """Return the lane of a point's own passes, warmed up; each lane has a bench of its own.

    The caller switches inference mode on.
    """
    network = pipeline.build(point, bench)
    choices = pipeline.choose(network, bench)
    assert isinstance(network, InferenceNetwork)
    passes = InferencePasses(network, choices)
    passes.warm_up()
    clean = passes.lanes.clean

    @contextmanager
    def around(count: int) -> Iterator[None]:
        switches.apply(point.axes)  # the autotuner belongs to the process, not the network
        with clean.around(count):
            yield

    return replace(clean, around=around)


@contextmanager
def elsewhere(point: Point, device: str) -> Iterator[loop.Lane]:
    """Give the lane of a point in a process of its own, which ends afterwards."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=_serve, args=(theirs, point, device), daemon=True)
    child.start()
    theirs.close()
    try:
        _answer(ours)  # the network is ready
        yield loop.Lane(lambda: None, _Remote(ours))
    finally:
        ours.close()
        child.join()


def _answer(pipe: Connection) -> list[float]:
    try:
        times = pipe.recv()
    except EOFError:
        raise Refused("the process that times a network with the autotuner ended") from None
    if isinstance(times, Exception):
        raise times
    return list(times)


def _serve(pipe: Connection, point: Point, device: str) -> None:
    """Run passes of a point's lane as often as is asked, until nobody asks any more."""
    try:
        with torch.inference_mode():
            lane = clean_lane(point, on_device("inference", device))
            pipe.send([])
            with suppress(EOFError), loop.quiet_collector():
                while count := pipe.recv():
                    with lane.around(count):
                        pipe.send(lane.clock.block(lane.run, count))
    except Exception as error:  # noqa: BLE001 - raised where it was asked for
        pipe.send(error)


def ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the median ratio of neighbouring passes, and its interval; NaN for too few pairs."""
    size = min(_TOGETHER, len(first))
    pieces = [slice(at, at + size) for at in range(0, len(first) - size + 1, size)]
    ratios = [stats.median(second[piece]) / stats.median(first[piece]) for piece in pieces]
    ordered = sorted(ratios)
    rank = stats.median_rank(len(ordered))  # pairs are of passes apart, so they are independent
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (math.nan, math.nan)
    return stats.median(ratios), low, high
