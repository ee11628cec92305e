"""The `inference` workload: one point in, its overall row, layer rows and raw times out.

Every question has a pass of its own:

* **overall**: no hook anywhere; this is the number to quote;
* **layers**: timers around every layer call, and nothing else; its blocks take turns with those
  of the overall pass (see `loop`), so that both see the same machine, and timers are on
  for its own blocks alone;
* **evidence**: one pass under the profiler, to prove which algorithm ran;
* **numerics**: one pass against float64.

Shapes and work come from a shape pass on the meta device. Only the first two are timed.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hpcsweep.catalog.columns import DOUBTFUL
from hpcsweep.conv import swap
from hpcsweep.conv.proof import profiler_events
from hpcsweep.measure import models, numerics, profilers
from hpcsweep.measure.bench_api import Measured, Unsupported
from hpcsweep.measure.convolutions import Coverage
from hpcsweep.measure.layer_table import IsolatedTable, LayerTable
from hpcsweep.measure.machine import framework, memory, provenance
from hpcsweep.measure.shape_pass import Shapes, shape_pass
from hpcsweep.measure.timing import caches, isolated, loop, stats
from hpcsweep.measure.timing import lanes as lanes_of
from hpcsweep.measure.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.forward_pass import Proof
    from hpcsweep.measure.machine.telemetry import Telemetry
    from hpcsweep.measure.timing.lanes import Lanes
    from hpcsweep.point import Point


@dataclass(frozen=True)
class _Prepared:
    """A point whose network is ready to run."""

    point: Point
    model: nn.Module
    image: Tensor
    run: Callable[[], object]
    shapes: Shapes
    choices: Sequence[LayerChoice]
    setup_ms: float

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.point.measure)


@dataclass(frozen=True)
class _Timed:
    """The times of the overall pass, and of the layer pass where there was one."""

    clean: stats.Summary
    samples: list[float]
    table: LayerTable | IsolatedTable | None
    lanes: Lanes
    cells: Row


class Inference(Workbench):
    """Measures inference points on one device; keeps the network while points share it."""

    def __init__(self, device: str = "cpu", telemetry: Telemetry | None = None) -> None:
        """Take a kind of device: cpu, cuda or mps."""
        super().__init__(device, telemetry)
        self._models = models.ModelCache(self.device.torch_device)
        self._reference = numerics.Reference(self.device.torch_device)
        self._shapes: dict[tuple[int, int], Shapes] = {}

    def measure(self, point: Point, tries: int = 0) -> Measured:  # noqa: ARG002 - the no-op's business
        """Measure one point.

        Raises:
            Unsupported: the device, the network or the algorithm cannot do it.
            OutOfMemory: it did not fit.

        """
        with self._told_apart(give_back=self._forget), torch.inference_mode():
            return self._measure(point)

    def _measure(self, point: Point) -> Measured:
        self._refuse_early(point)
        framework.apply(point.axes)
        load = provenance.load_average()
        ready = self._prepare(point)
        if profilers.replaces_timing(point.measure["profile"]):
            return Measured(self._profile(ready))
        timed = self._time(ready)
        proof = self._prove(ready)
        artifacts = self._profile(ready)
        layer_errors = self._layer_errors(ready)
        error = self._error(ready)
        flags = self._flags(ready, timed, proof, error)
        table = timed.table
        row: Row = {
            **timed.cells,
            **timed.clean.row(),
            "throughput_ips": 1000 * point.axes["batch_size"] / timed.clean.median,
            **Coverage(ready.choices, table.convolution_means() if table else ()).cells(),
            "algorithm_setup_ms": ready.setup_ms,
            "algorithm_evidence": profiler_events.source(proof.calls if proof else ()),
            "max_rel_error": error,
            **(table.overall_cells(timed.samples) if table else {}),
            **self._work_cells(ready.model, ready.shapes, timed.clean.median, point),
            "threads": torch.get_num_threads(),
            "load_avg_1min": load,
            **artifacts,
            "flags": ";".join(flags),
            "valid": DOUBTFUL.isdisjoint(flags),
        }
        layers = table.rows(point, ready.choices, proof.calls if proof else ()) if table else []
        convolutions_only = (layer for layer in layers if layer.get("algorithm_used"))
        for layer, of_layer in zip(convolutions_only, layer_errors, strict=bool(layer_errors)):
            layer["max_rel_error"] = of_layer
        return Measured(row, layers, timed.samples)

    def _profile(self, ready: _Prepared) -> Row:
        """Run the profilers that the sweep wants, after everything that is timed."""
        return self._profile_step(ready.point, ready.run)

    def _refuse_early(self, point: Point) -> None:
        profilers.refuse_early(point.measure["profile"], self.device.type)
        framework.refuse_early(point.axes, self.device.type)
        if point.axes["launch"] != "graph":
            return
        if self.device.type != "cuda":
            raise Unsupported(f"launch: graph needs a GPU; this is {self.device.type}")
        if point.axes["cache_state"] == "rotated":
            raise Unsupported("a graph replays one input; cache_state: cold is the alternative")

    def _prepare(self, point: Point) -> _Prepared:
        """Build or take the network, look at its shapes, give it its algorithm."""
        model, is_new = self._models.get(models.ModelKey.of(point))
        if is_new:
            self._shapes.clear()
        swap.restore(model)
        state, device = point.axes["cache_state"], self.device.torch_device
        count = caches.input_count(state, device, models.input_bytes(point))
        images = models.make_inputs(point, device, count)
        key = (point.axes["input_size"], point.axes["batch_size"])
        if key not in self._shapes:
            self._shapes[key] = shape_pass(model, images[0])
        shapes = self._shapes[key]
        choices, setup_ms = self._choose(model, shapes, point)
        turns = itertools.cycle(images)

        def run() -> object:
            return model(next(turns))

        return _Prepared(point, model, images[0], run, shapes, choices, setup_ms)

    def _time(self, ready: _Prepared) -> _Timed:
        """Warm up, then run the lanes in turns; watch memory and the GPU meanwhile."""
        settings, device = ready.settings, self.device.torch_device
        self._memory.reset()
        first_ms = _once(ready.run, self._wait)
        todo = lanes_of.Pass(
            ready.model,
            ready.run,
            caches.preparation(ready.point.axes["cache_state"], device),
            ready.shapes.calls if settings["layers"] is True else (),
        )
        lanes = lanes_of.lanes(device, ready.point.axes["launch"], todo)
        warm = loop.collect([lanes.clean], loop.warm_up_rule(settings))
        done, throttled_ms = self._unthrottled(lanes, settings)
        clean = stats.summarise(done.times[0])
        table: LayerTable | IsolatedTable | None = None
        if lanes.layer_timer:
            table = LayerTable(lanes.layer_timer, done.times[1])
        elif settings["layers"] == isolated.UNIQUE:
            alone = isolated.measure(ready.model, ready.shapes.calls, ready.choices, ready.point)
            table = IsolatedTable(alone, clean)
        cells: Row = {
            "warmup_n": len(warm.times[0]),
            "stop_reason": done.reason,
            "timer": lanes.timer_name,
            "first_call_ms": first_ms,
            "throttled_median_ms": throttled_ms,
            **memory.cells(self._memory),
            **self._telemetry.cells(),
        }
        if settings["energy"]:
            cells |= self._telemetry.energy_of(lanes.clean.run, self._wait)
        if lanes.device_clock:
            cells["host_ms"] = lanes.device_clock.host_ms
            cells["launch_bound"] = lanes.device_clock.launch_bound(clean.median)
        return _Timed(clean, done.times[0], table, lanes, cells)

    def _unthrottled(
        self, lanes: Lanes, settings: dict[str, Any]
    ) -> tuple[loop.Collected, float | None]:
        """Run the lanes; once more after a pause if the GPU was throttled meanwhile.

        The second value is then the median of the first try. A second try that is throttled, too,
        stands as it is, and is flagged.
        """
        done = self._collect(lanes, settings)
        if not self._was_throttled():
            return done, None
        if lanes.layer_timer:
            lanes.layer_timer.forget()
        return self._collect(lanes, settings), stats.median(done.times[0])

    def _collect(self, lanes: Lanes, settings: dict[str, Any]) -> loop.Collected:
        self._telemetry.begin()
        rule = loop.stopping_rule(settings)
        return loop.collect(lanes.all(), rule, at_block_end=self._telemetry.sample)

    def _prove(self, ready: _Prepared) -> Proof | None:
        """Profile one pass."""
        if not ready.settings["evidence"] or not ready.choices:
            return None
        return self._prove_pass(ready.model, ready.run, ready.choices)

    def _layer_errors(self, ready: _Prepared) -> list[float | None]:
        """Return the error of every convolution call, if they are wanted and there is float64."""
        if ready.settings["numerics"] != "layers" or self.device.type == "mps":
            return []
        return numerics.convolution_errors(ready.model, ready.run)

    def _error(self, ready: _Prepared) -> float | None:
        """Return the largest relative error against float64; leaves the network plain."""
        if not ready.settings["numerics"]:
            return None
        output = ready.model(ready.image)
        swap.restore(ready.model)
        return self._reference.error(ready.point, ready.model, output)

    def _flags(
        self, ready: _Prepared, timed: _Timed, proof: Proof | None, error: float | None
    ) -> list[str]:
        clock, table = timed.lanes.device_clock, timed.table
        calls = proof.calls if proof else ()
        overhead = table.overall_cells(timed.samples)["hook_overhead_pct"] if table else None
        starved = clock is not None and clock.mostly_starved
        return [
            *timed.clean.flags(),
            *self._telemetry.flags(),
            *self._doubts(ready.point, ready.choices, calls, error, overhead),
            *(["launch_bound"] if starved else []),
        ]

    def _forget(self) -> None:
        """Give memory back after it ran out."""
        self._reference.drop()
        self._shapes.clear()
        self._models.drop()


def _once(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the milliseconds of one pass by the host's clock."""
    wait()
    begin = time.perf_counter_ns()
    run()
    wait()
    return (time.perf_counter_ns() - begin) / 1e6
