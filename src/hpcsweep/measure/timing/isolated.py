"""Times every distinct convolution of a network alone: `layers: unique` and `layers: batched`.

ResNet-50 calls 53 convolutions, of which 23 differ. Each of these runs alone, with the clock and
the stopping rule of a pass, on several inputs in turn that together are larger than the cache.
Every call of the same `unique_key` gets its time. For training a predictor this costs less than
half of the time of all layers, and needs no timer inside a pass.

A single call on a GPU carries the cost of two events, or of the launch of a graph. A *batch* of
calls shares it: `batched` captures many calls in one graph and divides the time of a replay by
them, and so does `unique` where the point itself is launched as a graph. On a CPU a batch loops.

An isolated layer differs from a layer in its network: its weights stay in the cache, unless that is
flushed before each call, and nothing runs before it. What was cold is told by bytes: `input` where
the inputs that take turns outgrow the cache, which those of many small calls in a graph do not. So
`layer_timer` says `isolated` or `batched`, there is no `__other__` row, and percentages are shares
of the clean pass, whose sum need not be 100.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from hpcsweep.conv.choice import LayerChoice
from hpcsweep.measure.shape_pass import LayerCall
from hpcsweep.measure.timing import caches, loop, stats
from hpcsweep.measure.timing import lanes as lanes_of
from hpcsweep.measure.timing.clocks import nothing
from hpcsweep.measure.timing.stats import Summary
from hpcsweep.point import Point

UNIQUE: Final = "unique"
BATCHED: Final = "batched"
MODES: Final = (UNIQUE, BATCHED)
BATCH: Final = 20  # calls at least; inputs have their turn in a batch
_MOST_CALLS: Final = 1024  # of a batch
_ALIGNED: Final = 256  # bytes, as allocators do: kernels are chosen by alignment
_ISOLATED: Final = "isolated"
_DRAWN: Final = 1 << 20


@dataclass(frozen=True)
class Isolated:
    """The convolution calls in order, with their times; calls of equal work share a summary.

    `timed_s` are the seconds of all timed calls (see `loop.Collected`).
    """

    calls: Sequence[LayerCall]
    times: Sequence[Summary]
    cold: Sequence[str]
    timer: str
    timed_s: float


def measure(
    model: nn.Module, calls: Sequence[LayerCall], choices: Sequence[LayerChoice], point: Point
) -> Isolated:
    """Time each distinct convolution of a network whose algorithm is assigned.

    The calls are those of the shape pass; only convolutions are timed.
    """
    convolutions = [call for call in calls if call.conv is not None]
    keys = [(c.key, pick.used) for c, pick in zip(convolutions, choices, strict=True)]
    firsts = dict(reversed(list(zip(keys, convolutions, strict=True))))
    layers = {key: model.get_submodule(firsts[key].layer) for key in dict.fromkeys(keys)}
    weights = {key: next(layer.parameters()) for key, layer in layers.items()}
    types = {weight.dtype: weight for weight in weights.values()}  # a layer may have its own
    pools = {
        dtype: _Inputs(
            weight, [firsts[key] for key in layers if weights[key].dtype == dtype], point
        )
        for dtype, weight in types.items()
    }
    flush = caches.preparation("cold", next(model.parameters()).device)
    with loop.quiet_collector():  # once, since a collection takes a tenth of a second
        found = {
            key: _time(layer, pools[weights[key].dtype].inputs(firsts[key]), point, flush)
            for key, layer in layers.items()
        }
    timer = BATCHED if _in_batches(point) else _ISOLATED
    timed_s = sum(one.seconds for one in found.values())
    times, cold = [found[key].summary for key in keys], [found[key].cold for key in keys]
    return Isolated(convolutions, times, cold, timer, timed_s)


def _in_batches(point: Point) -> bool:
    """Say whether calls share a graph; a flushed cache is cold for the first of them alone."""
    wanted = point.measure["layers"] == BATCHED or point.axes["launch"] == "graph"
    return wanted and point.axes["cache_state"] != "cold"


@dataclass(frozen=True)
class _CallTimes:
    """The times of a call, what was cold in it, and the seconds that it took to find out."""

    summary: Summary
    cold: str
    seconds: float


def _time(
    layer: nn.Module, inputs: Sequence[Tensor], point: Point, flush: Callable[[], object]
) -> _CallTimes:
    """Time the calls of a layer; they find nothing that the layer before left in the cache."""
    settings: dict[str, Any] = dict(point.measure)
    batched, device = _in_batches(point), inputs[0].device
    launch = "graph" if batched else point.axes["launch"]
    calls = max(BATCH, min(_MOST_CALLS, len(inputs))) if batched else 1
    turns = itertools.cycle(inputs)

    def run() -> None:
        for _ in range(calls):
            layer(next(turns))

    flushed = point.axes["cache_state"] == "cold"
    in_graph = batched and device.type == "cuda"
    used = min(calls, len(inputs)) if in_graph else len(inputs)
    rotated = caches.outgrown(device, used * inputs[0].nbytes)
    todo = lanes_of.LaneWork(layer, run, flush if flushed else nothing)
    flush()
    lanes = lanes_of.lanes(device, launch, todo)
    done, _ = lanes.settled(lanes.warm_up(settings)).collect(settings)
    cold = "input+weights" if flushed else "input" if rotated else "none"
    return _CallTimes(stats.summarise([time / calls for time in done.times[0]]), cold, done.timed_s)


class _Inputs:
    """Random numbers of a weight's type; the inputs of all layers with that type are views."""

    def __init__(self, weight: Tensor, calls: Sequence[LayerCall], point: Point) -> None:
        self._device, self._bytes_of_one = weight.device, weight.element_size()
        self._nhwc = point.axes["memory_format"] == "nhwc"
        need = max((self._count(call) * self._step(call) for call in calls), default=0)
        generator = torch.Generator().manual_seed(point.axes["seed"])
        drawn = torch.randn(min(need, _DRAWN), generator=generator).to(weight.device, weight.dtype)
        # what matters to a cache is where numbers lie, so drawing a million of them is enough
        self._numbers = drawn.repeat(-(-need // max(len(drawn), 1)))[:need]

    def inputs(self, call: LayerCall) -> list[Tensor]:
        """Return inputs of a call that together are larger than the cache."""
        (n, c, h, w), size, step = call.inputs[0], _numbers(call), self._step(call)
        pieces = [self._numbers[i * step :][:size] for i in range(self._count(call))]
        if self._nhwc:
            return [piece.view(n, h, w, c).permute(0, 3, 1, 2) for piece in pieces]
        return [piece.view(n, c, h, w) for piece in pieces]

    def _step(self, call: LayerCall) -> int:
        """Return the numbers from one input to the next."""
        aligned = _ALIGNED // self._bytes_of_one
        return -(-_numbers(call) // aligned) * aligned

    def _count(self, call: LayerCall) -> int:
        return caches.input_count("rotated", self._device, _numbers(call) * self._bytes_of_one)


def _numbers(call: LayerCall) -> int:
    return math.prod(call.inputs[0])
