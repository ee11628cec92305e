"""Times a network under several algorithms in turns, so that a drift of the machine hits all alike.

The first lane runs twice: how far it is from itself tells what a difference has to exceed. What
autotunes any layer runs in a process of its own, as torch would give it the plans of the others.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from hpcsweep import catalog
from hpcsweep.errors import Refused
from hpcsweep.measure.bench import torch_bench
from hpcsweep.measure.timing import loop, stats
from hpcsweep.measure.workloads.inference import Inference

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from hpcsweep.point import Point

    Interval = tuple[float, float, float]

_WARM_UP: Final = 10
_LEAST: Final = 100  # passes of each lane
_TOGETHER: Final = 5  # passes whose medians are one pair
_MOST_SECONDS: Final = 60.0
_BUILD_SECONDS: Final = 5.0  # of the networks, and to warm up
SECONDS: Final = _MOST_SECONDS + _BUILD_SECONDS  # that `measure` takes at most, about


@dataclass(frozen=True)
class Paired:
    """How long each lane takes, over the first one: median and 95 % interval of the pairs."""

    default_ms: float
    ratios: Mapping[str, Interval]


def measure(default: Point, mixed: Point, run: Mapping[str, Any]) -> Paired:
    """Time the default against itself, the mixed network, and the autotuner where there is one.

    `Refused` where this machine is not the one of `run`, `Unsupported` where it cannot do it.
    """
    points = {"itself": default, "mixed": mixed}
    first = _bench(run)
    if first.tunes:
        axes = {**default.axes, "algorithm": catalog.AUTOTUNE}
        points[catalog.AUTOTUNE] = replace(default, axes=axes)
    order = (default, *points.values())
    # these before the others, whose processes would be strangers on the GPU
    own = {at: _bench(run) for at, point in enumerate(order) if not (first.tunes and _tunes(point))}
    device = first.device.type
    with ExitStack() as stack, torch.inference_mode():
        lanes = [
            own[at].lane(point) if at in own else stack.enter_context(elsewhere(point, device))
            for at, point in enumerate(order)
        ]
        loop.collect(lanes, loop.Fixed(_WARM_UP))
        rule = loop.Adaptive(_LEAST, target=0.0, most_seconds=_MOST_SECONDS)
        times = loop.collect(lanes, rule).times
    ratios = {name: ratio(times[0], own) for name, own in zip(points, times[1:], strict=True)}
    return Paired(stats.median(times[0]), ratios)


def _bench(run: Mapping[str, Any]) -> Inference:
    bench = torch_bench("inference", run)
    assert isinstance(bench, Inference)  # noqa: S101 - for the type checker
    return bench


def _tunes(point: Point) -> bool:
    algorithm = point.axes["algorithm"]
    return catalog.AUTOTUNE in (algorithm.values() if isinstance(algorithm, dict) else [algorithm])


@dataclass(frozen=True)
class _Remote:
    """The clock of a lane in another process: it runs the passes there."""

    pipe: Connection

    def block(self, _run: object, count: int) -> list[float]:
        """Run `count` passes and return the milliseconds of each; raise what is raised there."""
        self.pipe.send(count)
        return _answer(self.pipe)


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
            lane = Inference(device).lane(point)
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
    summary = stats.summarise(ratios)
    return (summary.median, *(summary.ci95 or (math.nan, math.nan)))
