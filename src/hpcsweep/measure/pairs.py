"""Times a network under several algorithms in turns, so that a drift of the machine hits all alike.

Each algorithm has a network of its own. The first lane runs twice: how far it is from itself tells
what a difference has to exceed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from hpcsweep import catalog
from hpcsweep.measure.bench import torch_bench
from hpcsweep.measure.inference import Inference
from hpcsweep.measure.timing import loop, stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcsweep.point import Point

    Interval = tuple[float, float, float]

_WARM_UP: Final = 10
_LEAST: Final = 100  # passes of each lane
_TOGETHER: Final = 5  # passes whose medians are one pair
_MOST_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Paired:
    """How long each lane takes, over the first one: median and 95 % interval of the pairs."""

    default_ms: float
    ratios: Mapping[str, Interval]


def measure(default: Point, mixed: Point, run: Mapping[str, Any]) -> Paired:
    """Time the default against itself, the mixed network, and the autotuner where there is one.

    Raises:
        Refused: this machine is not the one that `run` asks for.
        Unsupported: it cannot do one of them.

    """
    points = {"itself": default, "mixed": mixed}
    benches = [torch_bench("inference", run) for _ in range(4)]
    first = benches[0]
    if isinstance(first, Inference) and first.device.type == "cuda":
        axes = {**default.axes, "algorithm": catalog.AUTOTUNE}
        points[catalog.AUTOTUNE] = replace(default, axes=axes)
    with torch.inference_mode():
        lanes = [
            bench.lane(point)
            for bench, point in zip(benches, [default, *points.values()], strict=False)
            if isinstance(bench, Inference)
        ]
        loop.collect(lanes, loop.Fixed(_WARM_UP))
        rule = loop.Adaptive(_LEAST, target=0.0, most_seconds=_MOST_SECONDS)
        times = loop.collect(lanes, rule).times
    found = {name: ratio(times[0], own) for name, own in zip(points, times[1:], strict=True)}
    return Paired(stats.median(times[0]), found)


def ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the median ratio of neighbouring passes, and its interval; NaN for too few pairs."""
    size = min(_TOGETHER, len(first))
    ratios = [
        stats.median(second[at : at + size]) / stats.median(first[at : at + size])
        for at in range(0, len(first) - size + 1, size)
    ]
    found = stats.summarise(ratios)
    return (found.median, *(found.ci95 or (math.nan, math.nan)))
