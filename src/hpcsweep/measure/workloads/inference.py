"""The `inference` workload: one point in, its overall row, layer rows and raw times out.

Each part has its own passes:

* **overall**: without any hook; this is the number to quote;
* **layers**: with a timer around every layer call. Its blocks alternate with those of the overall
  pass (see `timing.loop`), so that both run under the same conditions;
* **evidence**: one pass under the profiler, to prove which algorithm ran;
* **numerics**: one pass, compared with float64.

Only the first two are timed. Shapes and work come from a shape pass on the meta device.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from hpcsweep.catalog.columns import Row
from hpcsweep.conv import parts, swap
from hpcsweep.conv.proof import replay
from hpcsweep.conv.proof.evidence import Proof
from hpcsweep.measure import layer_table, models, numerics, profilers, work
from hpcsweep.measure.bench_api import CannotMeasure, Measurement
from hpcsweep.measure.layer_table import IsolatedTable, LayerTable
from hpcsweep.measure.machine import framework, memory, provenance
from hpcsweep.measure.machine.telemetry import Telemetry
from hpcsweep.measure.rounding import Exactness
from hpcsweep.measure.shape_pass import Shapes, shape_pass
from hpcsweep.measure.tensors import Held
from hpcsweep.measure.timing import caches, clocks, compiling, loop, stats
from hpcsweep.measure.timing import lanes as lanes_of
from hpcsweep.measure.timing.lanes import Lanes
from hpcsweep.measure.timing.loop import Lane
from hpcsweep.measure.workbench import Findings, Ready, Workbench
from hpcsweep.point import Point

_ENERGY_BLOCK_MS: Final = 100.0  # of passes between two waits, in which the GPU idles


class _Pass:
    """A pass of a network on its inputs in turn; `image` is that of the last pass."""

    def __init__(self, model: nn.Module, images: Sequence[Tensor]) -> None:
        self._model = model
        self._turns = itertools.cycle(images)
        self.image = images[0]

    def __call__(self) -> object:
        self.image = next(self._turns)
        return self._model(self.image)

    def again(self) -> object:
        """Run on the same input."""
        return self._model(self.image)


@dataclass(frozen=True, kw_only=True)
class _PreparedInference(Ready):
    """A point whose network is ready to run."""

    run: _Pass


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """The times of the overall pass, and of the layer pass where there was one.

    `lane` is a pass of the clean lane, which may be the replay of a graph.
    """

    lane: Callable[[], object]
    samples: list[float]
    clean: stats.Summary
    table: LayerTable | IsolatedTable | None
    flags: Sequence[str]
    cells: Row
    seconds: float


class Inference(Workbench):
    """Measures inference points on one device; keeps the network while points share it."""

    def __init__(self, device: str = "cpu", telemetry: Telemetry | None = None) -> None:
        super().__init__(device, telemetry)
        self._models = models.ModelCache(self.device.torch_device)
        self._reference = numerics.Float64Reference(self.device.torch_device)
        self._shapes: dict[tuple[object, int], Shapes] = {}

    def measure(self, point: Point, tries: int = 0) -> Measurement:  # noqa: ARG002 - the no-op's business
        """Measure one point.

        Raises:
            CannotMeasure: the device, the network or the algorithm cannot do it.
            OutOfMemory: it did not fit.
        """
        with self.translate_torch_errors(give_back=self._forget), torch.inference_mode():
            try:
                return self._measure(point)
            except Exception:
                self._forget()  # the network may be broken
                raise

    def lane(self, point: Point) -> Lane:
        """Return the clean lane of a point, for a caller that runs several lanes in turn.

        The caller switches inference mode on, and has a bench for each lane.
        """
        self._refuse_early(point)
        framework.apply(point.axes)
        ready = self._prepare(point)
        device = self.device.torch_device
        _once(ready.run, self._wait)
        prepare = caches.preparation(point.axes["cache_state"], device)
        todo = lanes_of.LaneWork(ready.model, ready.run, prepare)
        clean = lanes_of.lanes(device, point.axes["launch"], todo).clean

        @contextmanager
        def around(count: int) -> Iterator[None]:
            framework.apply(point.axes)  # the autotuner belongs to the process, not the network
            with clean.around(count):
                yield

        return replace(clean, around=around)

    def _measure(self, point: Point) -> Measurement:
        self._refuse_early(point)
        framework.apply(point.axes)
        compiling.forget()
        ready = self._prepare(point)
        if profilers.replaces_timing(point.measure["profile"]):
            return Measurement(self._profile(point, ready.run))
        timed = self._time(ready)
        proof = self._prove_timed(ready, timed)
        artifacts = self._profile(point, ready.run)
        outputs, layers = self._error(ready, timed.lane)
        findings = Findings(
            table=timed.table, proof=proof, outputs=outputs, layers=layers, timed_s=timed.seconds
        )
        median = timed.clean.median
        rates = work.rate_cells(
            ready.shapes, median, point.axes, self.device, tensor_cores=ready.may_use_tensor_cores
        )
        cells: Row = {
            **timed.cells,
            **timed.clean.row(),
            "throughput_ips": 1000 * point.axes["batch_size"] / median,
            **rates,
            **artifacts,
        }
        flags = timed.clean.flags(), timed.flags
        return self._measured(ready, findings, cells, timed.samples, flags)

    def _refuse_early(self, point: Point) -> None:
        super()._refuse_early(point)
        cold = point.axes["cache_state"] == "cold"
        if cold and point.measure["layers"] == layer_table.BATCHED:
            why = "layers: batched finds a warm cache; cache_state: cold takes unique"
            raise CannotMeasure(why)
        if point.axes["launch"] != "graph":
            return
        if self.device.type != "cuda":
            raise CannotMeasure(f"launch: graph needs a GPU; this is {self.device.type}")
        if point.axes["cache_state"] == "rotated":
            raise CannotMeasure("a graph replays one input; cache_state: cold is the alternative")

    def _prepare(self, point: Point) -> _PreparedInference:
        """Build or reuse the network, record its shapes, assign its algorithm."""
        load = provenance.load_average()
        model = self._network(point)
        state = point.axes["cache_state"]
        device = self.device.torch_device
        count = caches.input_count(state, device, models.input_bytes(point))
        images = caches.inputs_in_turn(partial(models.make_inputs, point, device), count)
        shapes = self._shapes.get(_images_of(point))
        if shapes is None:
            with models.seeded(point):  # the first pass may draw layers
                shapes = self._shapes[_images_of(point)] = shape_pass(model, images[0])
        choices, setup_ms = self._choose(model, shapes, point)
        return _PreparedInference(
            point=point,
            model=model,
            held=Held(model),  # as its first pass left it: that may make and replace layers
            shapes=shapes,
            choices=choices,
            setup_ms=setup_ms,
            load=load,
            run=_Pass(model, images),
        )

    def _network(self, point: Point) -> nn.Module:
        """Build the network, or reuse the previous point's; memory never holds two."""
        key = models.ModelKey.of(point)
        self._reference.make_room(point)
        others = (shapes for images, shapes in self._shapes.items() if images != _images_of(point))
        if any(shapes.late for shapes in others):  # its layers may fit those images alone
            self._models.drop()
        if not self._models.keep_only(key):
            self._shapes.clear()
            if ":" not in key.name:
                models.torchvision_models()  # before `settle`, which exempts it from collections
            loop.settle()
        model = self._models.get(key)
        swap.restore(model)
        return model

    def _time(self, ready: _PreparedInference) -> _Timed:
        """Warm up, then run the lanes in turn; watch memory and the GPU meanwhile."""
        settings = dict(ready.point.measure)
        device = self.device.torch_device
        self._memory.reset()
        with ready.held.settling():
            first_ms = _once(ready.run, self._wait)
        todo = lanes_of.LaneWork(
            ready.model,
            ready.run,
            caches.preparation(ready.point.axes["cache_state"], device),
            ready.shapes.calls if settings["layers"] is True else (),
            ready.shapes.calls,
        )
        lanes = lanes_of.lanes(device, ready.point.axes["launch"], todo)
        warmup_n = lanes.warm_up(settings)
        lanes = lanes.settled(1 + warmup_n)
        done, compiles, throttled_ms = self._unthrottled(lanes, settings)
        clean = stats.summarise(done.times[0])
        seconds = done.timed_s
        table: LayerTable | IsolatedTable | None = LayerTable.of(lanes, done.times)
        if settings["layers"] in layer_table.MODES:
            alone = layer_table.time_isolated(
                ready.model, ready.shapes.calls, ready.choices, ready.point, self._backend
            )
            table = IsolatedTable(alone, clean)
            seconds = seconds + alone.timed_s
        cells: Row = {
            "warmup_n": warmup_n,
            "stop_reason": done.reason,
            "timer": lanes.timer_name,
            "first_call_ms": first_ms,
            "throttled_median_ms": throttled_ms,
            **memory.cells(self._memory),
            **self._telemetry.cells(),
        }
        clock = lanes.device_clock
        if clock:
            cells |= {"host_ms": clock.host_ms, "launch_bound": clock.launch_bound(clean.median)}
            cells["sm_clock_pass_mhz"] = clock.sm_clock_mhz
        if settings["energy"]:
            cells |= self._energy(ready, lanes, clean.median, idles=bool(cells.get("launch_bound")))
        unseen = settings["layers"] is True and parts.is_compiled_in_part(ready.model)
        raised = {
            "launch_bound": lanes.starved(),
            "compiling": compiles,
            "recompiled": lanes.compiled.blocks > 0,
            "layers_compiled": bool(lanes.untimed) or unseen,
            "layers_uncaptured": lanes.uncaptured,
        }
        return _Timed(
            lane=lanes.clean.run,
            samples=done.times[0],
            clean=clean,
            table=table,
            flags=[name for name, is_raised in raised.items() if is_raised],
            cells=cells,
            seconds=seconds,
        )

    def _prove_timed(self, ready: _PreparedInference, timed: _Timed) -> Proof:
        """Prove a pass; hold the replay of a graph against it."""
        proof = self._prove(ready, ready.run.again)
        if ready.point.axes["launch"] != "graph" or not ready.point.measure["evidence"]:
            return proof
        ran = replay.replayed_kernels(timed.lane, self.device.torch_device)
        return replay.held_against(proof, ran)

    def _energy(
        self, ready: _PreparedInference, lanes: Lanes, median_ms: float, *, idles: bool
    ) -> Row:
        """Return the energy of a pass; of a graph's replay if the GPU would wait for the host."""
        if not self._telemetry.counts_energy:
            return {}
        sweep_dir = _replay(ready) if idles else lanes.clean.run
        if sweep_dir is None:
            return {"energy_method": "launch_bound"}
        passes = max(5, round(_ENERGY_BLOCK_MS / median_ms))
        cells = self._telemetry.energy_of(sweep_dir, self._wait, passes)
        return {**cells, "energy_method": "graph"} if cells and idles else cells

    def _unthrottled(
        self, lanes: Lanes, settings: dict[str, Any]
    ) -> tuple[loop.Collected, bool, float | None]:
        """Run the lanes; run them again after a pause if the GPU was throttled.

        Return the times, whether torch compiled meanwhile, and the first try's median if there was
        a second. A second try that is throttled, too, is kept and flagged.
        """
        self._telemetry.begin()
        done, compiles = lanes.collect(settings, self._telemetry.sample)
        if not self._was_throttled():
            return done, compiles, None
        self._telemetry.begin()
        return *lanes.collect(settings, self._telemetry.sample), stats.median(done.times[0])

    def _error(
        self, ready: _PreparedInference, lane: Callable[[], object]
    ) -> tuple[list[Exactness] | None, list[Exactness]]:
        """Compare a pass with float64; leave the network with plain layers.

        A graph replays on its own image, and gives the output.
        """

        def run() -> object:  # a network may change its input
            (image,) = models.make_inputs(ready.point, self.device.torch_device)
            output = ready.model(image)
            if ready.point.axes["launch"] != "graph":
                return output
            ready.run.image.data.copy_(image)
            return lane()

        return self._compare(ready, self._reference, run, "its call did not come")

    def _forget(self) -> None:
        """Drop the network, its shapes and references, and free their memory."""
        self._reference.drop()
        self._shapes.clear()
        self._models.drop()


def _replay(ready: _PreparedInference) -> Callable[[], object] | None:
    """Return a replay of the pass as a graph; None if it has none.

    One's own network is not tried: what a capture forbids may leave CUDA in an error that the rest
    of the point would meet. A graph has one input, so that `rotated` would be another pass.
    """
    axes = ready.point.axes
    replays = axes["launch"] == "graph"  # already, and the host is slow even so
    if replays or ":" in axes["model"] or axes["cache_state"] == "rotated":
        return None
    try:
        return clocks.capture(ready.run)
    except RuntimeError:  # such as too little memory: the times are measured already
        return None


def _images_of(point: Point) -> tuple[object, int]:
    return models.image_shape(point.axes), point.axes["batch_size"]


def _once(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the milliseconds of one pass by the host's clock."""
    wait()
    begin = time.perf_counter_ns()
    run()
    wait()
    return (time.perf_counter_ns() - begin) / 1e6
