"""The `training` workload: one point in, its overall row, layer rows and step times out.

Every question has a pass of its own, in this order:

* **warm-up**: a few steps, undone afterwards;
* **training**: all epochs without any instrument but one tick per step; step and epoch times,
  throughput, memory, loss and accuracy are of this pass (see `epochs`);
* **phases**: some steps more, each part of a step timed; then three with a look at the memory in
  use after each part (see `instrumented`);
* **layers**: forward, loss and backward on one batch, every layer timed (see `layerpass`);
* **evidence** of the forward pass as for inference, then of a step's backward pass;
* **numerics** of the forward pass.

What is learned in the passes after the training is in no column.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from hpcsweep.catalog.columns import DOUBTFUL
from hpcsweep.conv import swap
from hpcsweep.conv.proof import autograd_graph
from hpcsweep.conv.proof import backward_pass as gradients
from hpcsweep.conv.proof import profiler_events as profiled
from hpcsweep.measure import models, numerics, profilers
from hpcsweep.measure.bench_api import Measured, Unsupported
from hpcsweep.measure.convolutions import Coverage
from hpcsweep.measure.data import loaders as datasets
from hpcsweep.measure.machine import framework, memory, provenance
from hpcsweep.measure.shape_pass import Shapes, shape_pass
from hpcsweep.measure.timing import stats
from hpcsweep.measure.training import instrumented, layer_pass, network
from hpcsweep.measure.training.checkpoints import Checkpoints
from hpcsweep.measure.training.epochs import TrainingPass, next_steps
from hpcsweep.measure.training.trainer import Score, Trainer
from hpcsweep.measure.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.profiler_events import Evidence
    from hpcsweep.measure.data.loaders import Data
    from hpcsweep.measure.training.epochs import History
    from hpcsweep.measure.training.layer_pass import LayerPass
    from hpcsweep.measure.training.phases import PhaseTimes
    from hpcsweep.measure.training.trainer import Batch
    from hpcsweep.point import Point

# How torch says that an operator, or a compiler, is missing here.
_CANNOT: Final = (
    "does not have a deterministic implementation",
    "No working C++ compiler found",
    "Cannot find a working triton installation",
)
REPEATED_MOST_S: Final = 60.0  # a throttled training that was longer is not taken again
_LOSSLESS: Final = ("float32", "float64")


@dataclass(frozen=True)
class _Ready:
    """A point whose network and data are ready; `batch` lies on the device."""

    point: Point
    data: Data
    trainer: Trainer
    batch: Batch
    shapes: Shapes
    choices: Sequence[LayerChoice]
    gradients: Sequence[LayerChoice]
    setup_ms: float


@dataclass(frozen=True)
class _Passes:
    """What the passes brought."""

    history: History
    phases: PhaseTimes
    layers: LayerPass | None
    proofs: Sequence[Evidence]
    error: float | None
    cells: Row
    artifacts: Row


class Training(Workbench):
    """Measures training points on one device."""

    def measure(self, point: Point, tries: int = 0) -> Measured:  # noqa: ARG002 - the no-op's business
        """Measure one point.

        Raises:
            Unsupported: the device, the network, the compiler or the algorithm cannot do it.
            OutOfMemory: it did not fit.

        """
        deterministic = framework.determinism(wanted=point.axes["deterministic"])
        try:
            with self._told_apart(_CANNOT), deterministic:
                return self._measure(point)
        finally:
            if point.axes["compile"] == "inductor":
                torch.compiler.reset()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _measure(self, point: Point) -> Measured:
        self._refuse_early(point)
        framework.apply(point.axes)
        torch.manual_seed(point.axes["seed"])
        load = provenance.load_average()
        data = datasets.open_data(point)
        try:
            ready = self._prepare(point, data)
            if profilers.replaces_timing(point.measure["profile"]):
                return Measured(self._profile(ready))
            passes = self._run(ready)
        finally:
            data.close()
        flags = self._flags(ready, passes)
        row: Row = {
            **self._cells(ready, passes),
            "load_avg_1min": load,
            "flags": ";".join(flags),
            "valid": DOUBTFUL.isdisjoint(flags),
        }
        calls = [*ready.choices, *ready.gradients]
        layers = passes.layers.rows(point, calls, passes.proofs) if passes.layers else []
        return Measured(row, layers, passes.history.steps_ms)

    def _refuse_early(self, point: Point) -> None:
        """Refuse what this device cannot do, before anything is built."""
        axes, kind = point.axes, self.device.type
        profilers.refuse_early(point.measure["profile"], kind)
        framework.refuse_early(axes, kind)
        if axes["amp"] != "off" and axes["dtype"] != "float32":
            raise Unsupported(f"amp: {axes['amp']} casts float32 weights; dtype is {axes['dtype']}")
        if axes["amp"] == "fp16" and kind == "cpu":
            raise Unsupported("amp: fp16 needs a GPU; on a CPU there is bf16")
        if axes["pin_memory"] and kind != "cuda":
            raise Unsupported(
                f"pin_memory speeds up copies to a GPU; on {kind} nothing is copied, "
                "so there is nothing to measure"
            )
        if point.measure["layers"] not in (True, False):
            raise Unsupported(
                f"layers: {point.measure['layers']} is for inference; in training: true"
            )

    def _prepare(self, point: Point, data: Data) -> _Ready:
        """Build the network, look at its shapes, give it its algorithm, wrap it in a trainer."""
        device = self.device.torch_device
        model = network.build(point, data.num_classes, device)
        trainer = Trainer(point, device, model, model, data.steps * point.axes["epochs"])
        batch = trainer.to_device(next(data.epoch(0)))
        untouched = trainer.state_dict()
        with trainer.autocast():
            shapes = shape_pass(model, batch[0])
        trainer.load_state_dict(untouched)  # where it ran for real, batch norms have counted
        choices, setup_ms = self._choose(model, shapes, point)
        began = time.perf_counter()
        backward = gradients.choices(choices, self._backend)
        setup_ms += 1e3 * (time.perf_counter() - began)
        trainer.run = network.compiled(model, point)
        return _Ready(point, data, trainer, batch, shapes, choices, backward, setup_ms)

    def _run(self, ready: _Ready) -> _Passes:
        """Run one pass after the other."""
        trainer, data, settings = ready.trainer, ready.data, ready.point.measure
        ticker = instrumented.ticker(trainer.device)
        training = TrainingPass(
            trainer,
            data,
            ticker,
            self._wait,
            validates=settings["validation"],
            at_epoch_end=self._telemetry.sample,
            repeatable=self._telemetry.watches,
        )
        self._memory.reset()
        training.warm_up(settings["warmup"])
        checkpoints = Checkpoints(ready.point, trainer, training.history)
        training.after_epoch = checkpoints.after_epoch
        checkpoints.resume()
        self._memory.reset()  # what autotuning and compiling took is not the training's
        throttled_ms = self._train(training, ready.point.axes["epochs"])
        history = training.history
        checkpoints.finish()
        cells: Row = {
            "throttled_median_ms": throttled_ms,
            "timer": ticker.timer,
            **memory.cells(self._memory),
            **self._memory.allocator_cells(),
            **self._telemetry.cells(),
        }
        timer = instrumented.phase_timer(trainer.device)
        timed = instrumented.time_phases(trainer, data, settings["iterations"], timer)
        cells["mem_avg_bytes"] = instrumented.average_memory(trainer, data, self._memory)
        layers, proofs = self._layers(ready), self._prove(ready)
        artifacts = _both(checkpoints.cells(), self._profile(ready))
        return _Passes(history, timed, layers, proofs, self._error(ready), cells, artifacts)

    def _train(self, training: TrainingPass, epochs: int) -> float | None:
        """Run the training; once more after a pause if the GPU was throttled meanwhile.

        The median step of the first try is then returned. A second try that is throttled, too,
        stands as it is, and is flagged; so does a training that is too long to be taken again.
        """
        self._telemetry.begin()
        history = training.run(epochs)
        if sum(history.epochs_s) > REPEATED_MOST_S or not self._was_throttled():
            return None
        first = stats.median(history.steps_ms)
        self._telemetry.begin()
        training.again(epochs)
        return first

    def _profile(self, ready: _Ready) -> Row:
        """Run the profilers that the sweep wants on further steps of the training."""
        steps, score = next_steps(ready.data, sys.maxsize), Score.zero(ready.trainer.device)

        def run() -> None:
            ready.trainer.step(next(steps), score)

        return self._profile_step(ready.point, run)

    def _layers(self, ready: _Ready) -> LayerPass | None:
        """Time every layer, forward and backward; compiled networks have none."""
        settings = ready.point.measure
        if not settings["layers"] or ready.point.axes["compile"] != "none":
            return None
        return layer_pass.measure(ready.trainer, ready.batch, ready.shapes, settings["iterations"])

    def _prove(self, ready: _Ready) -> list[Evidence]:
        """Profile a forward pass, then a step's computation for what the gradients ran."""
        if not ready.point.measure["evidence"] or not ready.choices:
            return []
        if ready.point.axes["compile"] != "none":
            return []
        trainer = ready.trainer

        def forward() -> None:
            with trainer.autocast():
                trainer.model(ready.batch[0])

        def compute() -> None:
            trainer.compute(ready.batch)

        proof = self._prove_pass(trainer.model, forward, ready.choices)
        backward = gradients.prove(trainer.model, compute, ready.choices, self._backend)
        return [*proof.calls, *backward]

    def _error(self, ready: _Ready) -> float | None:
        """Return the largest relative error of the trained network against float64.

        It leaves the network in evaluation mode, and its convolutions plain. None where weights
        are not those that float64 would start from, or no numbers any more.
        """
        point, trainer = ready.point, ready.trainer
        if not point.measure["numerics"] or point.axes["dtype"] not in _LOSSLESS:
            return None
        trainer.model.eval()
        with torch.no_grad(), trainer.autocast():
            (image,) = models.make_inputs(point, trainer.device)
            output = trainer.model(image)
        if not all(
            bool(torch.isfinite(tensor).all()) for tensor in autograd_graph.tensors_in(output)
        ):
            return None
        swap.restore(trainer.model)
        return numerics.Reference(trainer.device).error(point, trainer.model, output)

    def _cells(self, ready: _Ready, passes: _Passes) -> Row:
        clean = stats.summarise(passes.history.steps_ms)
        layers = passes.layers
        return {
            **clean.row(),
            "warmup_n": passes.history.warmup_n,
            "first_call_ms": passes.history.first_ms,
            "stop_reason": "fixed",
            "throughput_ips": 1000 * ready.point.axes["batch_size"] / clean.median,
            **passes.cells,
            **passes.history.cells(ready.data),
            **passes.phases.cells(clean.n, clean.median),
            **Coverage(
                ready.choices, layers.convolution_means() if layers else (), ready.gradients
            ).cells(),
            **(layers.cells() if layers else {}),
            "algorithm_evidence": profiled.source(passes.proofs),
            "max_rel_error": passes.error,
            **self._work(ready),
            **passes.artifacts,
            "algorithm_setup_ms": ready.setup_ms,
            "threads": torch.get_num_threads(),
        }

    def _flags(self, ready: _Ready, passes: _Passes) -> list[str]:
        overhead = passes.layers.cells()["hook_overhead_pct"] if passes.layers else None
        calls = [*ready.choices, *ready.gradients]
        found = self._doubts(ready.point, calls, passes.proofs, passes.error, overhead)
        return [
            *stats.summarise(passes.history.steps_ms).flags(),
            *passes.phases.flags(),
            *self._telemetry.flags(),
            *found,
            *([] if passes.history.finite else ["nan_loss"]),
        ]

    def _work(self, ready: _Ready) -> Row:
        """Return the work of a forward pass."""
        cells = self._work_cells(ready.trainer.model, ready.shapes, 1.0, ready.point)
        names = ("params", "flops", "macs", "flops_convention", "bytes_min", "arith_intensity")
        return {name: cells[name] for name in names}


def _both(kept: Row, profiled: Row) -> Row:
    """Return the columns of checkpoints and profilers; both name artifacts."""
    named = filter(None, (kept["artifacts"], profiled.get("artifacts")))
    return {**kept, "artifacts": ";".join(named)}
