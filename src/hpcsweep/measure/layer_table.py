"""Makes the layer rows of a point, and times distinct convolutions alone.

In all functions, `about` has the cells on algorithms, one entry per convolution, in call order.

With `layers: unique` and `layers: batched` every distinct convolution runs alone, with the clock
and the stopping rule of a pass, on several inputs in turn that together are larger than the cache;
all calls with the same `unique_key` share its time. For training a predictor this takes less than
half of the time of the layer pass, and no timer inside a pass. A single call on a GPU includes the
cost of two events, or of the launch of a graph. A *batch* of calls shares this cost: many calls in
one graph (on a CPU in a loop), whose time is divided by their number.

An isolated layer differs from a layer in its network: its weights stay in the cache, unless that is
flushed before each call, and nothing runs before it. The column `cold` is `input` if the inputs in
turn outgrow the cache. So `layer_timer` is `isolated` or `batched`, there is no `__other__` row,
and percentages are shares of the clean pass, whose sum need not be 100.

With `layers: plans` each plan that the back-end has for a convolution is timed in the same way,
after the point's own. Its rows name it as `algorithm`; their `layer_timer` is `plans`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from hpcsweep.catalog import columns
from hpcsweep.catalog.checks.algorithm import LayerAlgorithm
from hpcsweep.catalog.checks.numerics import LayerNumerics
from hpcsweep.catalog.columns import LIMITS, Row
from hpcsweep.catalog.record import Cells, row_of
from hpcsweep.catalog.row_records import LayerCells, LayerPassCells
from hpcsweep.conv.backend import Backend
from hpcsweep.conv.choice import LayerChoice, decide
from hpcsweep.conv.proof import Evidence, cell, profiled_passes
from hpcsweep.conv.swap import is_plain, running
from hpcsweep.measure import caches, model_builder, rounding
from hpcsweep.measure.network import Choices
from hpcsweep.measure.shape_pass import LayerCall
from hpcsweep.measure.timing import loop, stats
from hpcsweep.measure.timing.clocks import nothing
from hpcsweep.measure.timing.lanes import Lanes, LaneWork, make_lanes
from hpcsweep.measure.timing.layer_timer import LayerTimes
from hpcsweep.measure.timing.stats import Summary
from hpcsweep.measure.work import call_cells
from hpcsweep.point import Point

OTHER: Final = "__other__"
UNIQUE: Final = "unique"
BATCHED: Final = "batched"
PLANS: Final = "plans"
MODES: Final = (UNIQUE, BATCHED, PLANS)
# calls of a batch at least, so that a launch's cost hardly shows in that of a call ...
BATCH: Final = 20
# ... and at most: inputs have their turn in it, but each call of a graph takes memory
_MOST_CALLS: Final = 1024
_ISOLATED: Final = "isolated"

About = Sequence[Sequence[Cells]]  # what checks found of each convolution, in call order


class LayerTable:
    """The layer pass of a point: one summary per call, and one for the rest of the pass."""

    @classmethod
    def of(cls, lanes: Lanes, times: Sequence[Sequence[float]]) -> LayerTable | None:
        """Summarise the times of all lanes; None where layers are not timed."""
        if not lanes.parts:
            return None
        timed = lanes.timed()
        pass_times = lanes.pass_times(times)
        return cls(timed, pass_times, times[0], lanes.parts, lanes.event_floor_ms)

    def __init__(
        self,
        timed: LayerTimes,
        pass_times: Sequence[float],
        clean_times: Sequence[float],
        parts: int = 1,
        event_floor_ms: float | None = None,
    ) -> None:
        """Summarise the times of the layer lane; clean pass i ran next to layer pass i."""
        self._timed = timed
        self._clean_times = clean_times
        self._parts = parts
        self._event_floor_ms = event_floor_ms
        self._sums = list[float]()
        rest = []
        timed_calls = filter(None, timed.times)
        for total, *calls in zip(pass_times, *timed_calls, strict=True):
            self._sums.append(sum(calls))
            rest.append(total - sum(calls))
        self._whole = stats.summarise(pass_times)
        self._rest = stats.summarise(rest)
        self._of_calls = [stats.summarise(times) if times else None for times in timed.times]
        self._overhead_pct = 100 * (self._over_clean(pass_times) - 1)
        self._of_times = list[Row]()

    def rows(self, point: Point, about: About, of_others: Sequence[Cells] = ()) -> list[Row]:
        """Return the rows of timed layer calls in order, `__other__` last.

        `of_others` are further cells of the calls that are no convolutions.
        """
        # if the profiled pass ran other layers, their kernels cannot be assigned to these
        others = [call for call in self._timed.calls if call.conv is None]
        of_other_calls = iter(of_others if len(others) == len(of_others) else [])
        of_convolutions = iter(about)
        # a point is recorded before each check that may end the process, with the same times
        self._of_times = self._of_times or self._without_findings(point)
        rows = []
        for call, of_times in zip(self._timed.calls, self._of_times, strict=False):
            if call.conv is None:
                found = [next(of_other_calls, Cells())]
            else:
                found = [*next(of_convolutions)]
            if of_times:
                rows.append({**of_times, **row_of(*found)})
        return [*rows, {**self._of_times[-1]}]

    def _without_findings(self, point: Point) -> list[Row]:
        """Return the rows of all layer calls, an empty one without times; `__other__` last."""
        shared = _shared_cells(point, self._timed.timer)
        calls = self._timed.calls
        forward = len(calls) - self._timed.backward
        rows = list[Row]()
        for index, (call, summary) in enumerate(zip(calls, self._of_calls, strict=True)):
            if summary is None:
                rows.append({})
                continue
            direction = "forward" if index < forward else "backward"
            place = LayerCells(call_index=index, direction=direction)
            rows.append(row_of(shared, call_cells(call), place, summary.layer_cells(self._whole)))
        rest = LayerCells(layer=OTHER, op=OTHER, call_index=len(calls), direction=None)
        return [*rows, row_of(shared, self._rest.layer_cells(self._whole), rest)]

    def convolution_means(self) -> tuple[list[float], list[float]] | None:
        """Return the mean milliseconds of convolution calls, and of other calls that convolve.

        Both are in order of the calls; None unless every call was timed.
        """
        own = list[float]()
        others = list[float]()
        for call, summary in zip(self._timed.calls, self._of_calls, strict=True):
            if summary is None:
                return None
            if call.conv is not None:
                own.append(summary.mean)
            elif call.convolutions:
                others.append(summary.mean)
        return own, others

    def flags(self) -> list[str]:
        """Return the flags of the layer pass."""
        flags = []
        if self._timed.starved:
            flags.append("layer_starved")
        if self._overhead_pct > LIMITS["hook_overhead"]:
            flags.append("hook_overhead")
        return flags

    def overall_cells(self) -> LayerPassCells:
        """Return the columns that compare the layer pass with the clean pass."""
        return LayerPassCells(
            layer_pass_mean_ms=self._whole.mean,
            layer_pass_parts=self._parts,
            event_floor_ms=self._event_floor_ms,
            hook_overhead_pct=self._overhead_pct,
            layer_sum_over_total=self._over_clean(self._sums),
            other_pct=100 * self._rest.mean / self._whole.mean,
        )

    def _over_clean(self, times: Sequence[float]) -> float:
        """Return the median of the ratios of times to those of the clean passes next to them.

        A disturbance spoils single pairs, and would move a mean.
        """
        return stats.median([a / b for a, b in zip(times, self._clean_times, strict=True)])


@dataclass(frozen=True)
class IsolatedTable:
    """Convolutions that were timed alone, in call order; calls of equal work share a time.

    Their shares are those of the `clean` pass; `plans` are by keys; `timed_s` are the seconds of
    all timed calls (see `loop.Collected`).
    """

    calls: Sequence[LayerCall]
    times: Sequence[_CallTimes]
    clean: Summary
    timer: str
    plans: Mapping[str, Sequence[_PlanTimes]]
    timed_s: float

    def rows(
        self,
        point: Point,
        about: About,
        of_others: Sequence[Cells] = (),  # noqa: ARG002 - a layer pass's
    ) -> list[Row]:
        """Return one row per convolution call, in call order; `call_index` counts convolutions."""
        shared = _shared_cells(point, self.timer)
        rows = []
        of_plans = []
        for index, (call, of_call) in enumerate(zip(self.calls, self.times, strict=True)):
            place = LayerCells(call_index=index, direction="forward")
            same = (shared, place, call_cells(call))
            times = of_call.summary.layer_cells(self.clean)
            rows.append(row_of(*same, times, *about[index], LayerCells(cold=of_call.cold)))
            for of_plan, cells in self.plans.get(call.key, ()):
                times = of_plan.summary.layer_cells(self.clean)
                of_plans.append(row_of(*same, times, *cells))
        return rows + of_plans

    def convolution_means(self) -> tuple[list[float], list[float]]:
        """Return the mean milliseconds of the convolution calls, which alone are timed."""
        return [of_call.summary.mean for of_call in self.times], []

    def flags(self) -> list[str]:
        """Return none: there is no layer pass."""
        return []

    def overall_cells(self) -> LayerPassCells:
        """Return the sum of the isolated convolutions over the clean pass."""
        total = sum(of_call.summary.median for of_call in self.times)
        return LayerPassCells(layer_sum_over_total=total / self.clean.median)


def _shared_cells(point: Point, timer: str) -> LayerCells:
    """Return the cells that all layer rows of a point share: its axes that such rows have."""
    axes = columns.axis_cells(point.axes)
    declared = {name: axes[name] for name in LayerCells.declared if name in axes}
    return LayerCells(**declared, point_id=point.point_id, layer_timer=timer)


@dataclass(frozen=True)
class _CallTimes:
    """The times of a call, and what was cold in it."""

    summary: Summary
    cold: str


# A plan that was tried alone: its times, and what tells its row from that of the point's own
# algorithm.
_PlanTimes = tuple[_CallTimes, Sequence[Cells]]


def time_isolated(
    model: nn.Module, calls: Sequence[LayerCall], choices: Choices, point: Point, clean: Summary
) -> IsolatedTable:
    """Time each distinct convolution of a network whose algorithm is assigned.

    The calls are those of the shape pass; only convolutions are timed, with `layers: plans` each
    plan of the back-end, too. `clean` is the pass of which times are shares.
    """
    convolutions = [call for call in calls if call.conv is not None]
    isolation = _Isolation(point, choices.backend, next(model.parameters()).device)
    timed = dict[tuple[str, str], _CallTimes]()
    plans = dict[str, list[_PlanTimes]]()
    times = []
    with loop.quiet_collector():  # once for all: a collection takes a tenth of a second
        for call, picked in zip(convolutions, choices.calls, strict=True):
            kind = call.key, picked.used
            if kind not in timed:
                layer = model.get_submodule(call.layer)
                inputs = inputs_of(call, next(layer.parameters()), point)
                timed[kind] = isolation.time(layer, inputs)
                if point.measure["layers"] == PLANS and is_plain(layer):
                    plans[call.key] = isolation.time_plans(call, layer, inputs, picked.used)
            times.append(timed[kind])
    timer = BATCHED if isolation.in_batches else _ISOLATED
    return IsolatedTable(convolutions, times, clean, timer, plans, isolation.timed_s)


class _Isolation:
    """Times layers of a point alone, each after the previous one's data left the cache."""

    def __init__(self, point: Point, backend: Backend, device: torch.device) -> None:
        self._point = point
        self._backend = backend
        self._flush = caches.preparation("cold", device)
        self._flushed = point.axes["cache_state"] == "cold"
        wanted = point.measure["layers"] == BATCHED or point.axes["launch"] == "graph"
        # calls share a graph, in which with a cold cache only the first one would find it cold
        self.in_batches = wanted and not self._flushed
        self.timed_s = 0.0

    def time(self, layer: nn.Module, inputs: Sequence[Tensor]) -> _CallTimes:
        """Time the calls of a layer."""
        settings: dict[str, Any] = dict(self._point.measure)
        device = inputs[0].device
        launch = self._point.axes["launch"]
        calls = 1
        in_turn = len(inputs)
        if self.in_batches:
            launch = "graph"
            calls = max(BATCH, min(_MOST_CALLS, len(inputs)))
            if device.type == "cuda":  # a replay uses the inputs of its capture again
                in_turn = min(calls, len(inputs))
        turns = itertools.cycle(inputs)

        def run() -> None:
            for _ in range(calls):
                layer(next(turns))

        todo = LaneWork(layer, run, self._flush if self._flushed else nothing)
        self._flush()
        lanes = make_lanes(device, launch, todo)
        lanes = lanes.settled(lanes.warm_up(settings))
        done, _ = lanes.collect(settings)
        cold = "none"
        if self._flushed:
            cold = "input+weights"
        elif caches.outgrown(device, in_turn * inputs[0].nbytes):
            cold = "input"
        summary = stats.summarise([time / calls for time in done.times[0]])
        self.timed_s += done.timed_s
        return _CallTimes(summary, cold)

    def time_plans(
        self, call: LayerCall, layer: nn.Conv2d, inputs: Sequence[Tensor], used: str
    ) -> list[_PlanTimes]:
        """Time the plans of a call that run, but for the one that the point has `used`."""
        assert call.conv is not None  # noqa: S101 - a convolution
        device = layer.weight.device.type
        found = []
        for name in self._backend.plans(call.conv, self._point.measure["plans"]):
            choice = decide(name, call.layer, call.conv, self._backend, device)
            if not choice.fallback and choice.used != used:
                found.append(self._time_plan(choice, layer, inputs))
        return found

    def _time_plan(
        self, choice: LayerChoice, layer: nn.Conv2d, inputs: Sequence[Tensor]
    ) -> _PlanTimes:
        x = inputs[0]
        twin = running(layer, choice.used, self._backend)
        output = twin(x)
        times = self.time(twin, inputs)
        tf32 = self._point.axes["tf32"]
        exactness = rounding.of_call(layer, x, output, choice, device=x.device.type, tf32=tf32)
        proof = Evidence(choice.layer)
        if self._point.measure["evidence"]:
            alone = [replace(choice, layer="")]  # it is no part of a network
            proved = profiled_passes.prove_forward(twin, lambda: twin(x), alone, self._backend)
            (proof,) = proved.calls
        algorithm = LayerAlgorithm(
            algorithm_used=choice.used,
            algorithm_evidence=cell(proof),
            fallback_reason=proof.problem,
            backend=choice.backend,
            plan=choice.plan or choice.used,
            plan_notes=choice.plan_notes,
            workspace_bytes=choice.workspace_bytes,
        )
        numerics = LayerNumerics(max_rel_error=exactness.error, error_over_bound=exactness.excess)
        cells = LayerCells(algorithm=choice.used, layer_timer=PLANS, cold=times.cold)
        return times, (cells, algorithm, numerics)


def inputs_of(call: LayerCall, weight: Tensor, point: Point) -> list[Tensor]:
    """Return inputs of a call that together are larger than the cache.

    A cache depends on addresses, not on values, so all have the same numbers.
    """
    generator = torch.Generator().manual_seed(point.axes["seed"])
    first = torch.randn(call.inputs[0], generator=generator).to(
        device=weight.device,
        dtype=weight.dtype,
        memory_format=model_builder.LAYOUTS[point.axes["memory_format"]],
    )
    count = caches.input_count("rotated", weight.device, first.nbytes)
    return [first, *(first.clone() for _ in range(count - 1))]
