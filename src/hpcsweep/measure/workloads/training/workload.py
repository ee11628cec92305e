"""The `training` workload: one point in, its overall row, layer rows and step times out.

Its passes, in order:

* **warm-up**: a few steps, whose effect is undone;
* **training**: all epochs, with one tick per step as the only instrument; step and epoch times,
  throughput, memory, loss and accuracy are of this pass (see `epochs`);
* **phases**: further steps in which each phase is timed; then three in which the memory in use is
  read after each phase (see `epochs`);
* **layers**: forward, loss and backward on one batch, every layer timed (see `layer_pass`);
* **evidence** of the forward pass as for inference, then of the backward pass of a step;
* **numerics** of the forward pass.

Steps after the training pass change no column on learning.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from typing import Final

import torch

from hpcsweep.catalog.columns import Row
from hpcsweep.conv.proof import backward_pass
from hpcsweep.conv.proof.evidence import Proof
from hpcsweep.measure import models, numerics, profilers
from hpcsweep.measure.bench_api import CannotMeasure, Measurement
from hpcsweep.measure.data import loaders
from hpcsweep.measure.data.loaders import Data
from hpcsweep.measure.layer_table import LayerTable
from hpcsweep.measure.machine import framework, memory, provenance
from hpcsweep.measure.rounding import Exactness
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.tensors import Held
from hpcsweep.measure.timing import loop, stats
from hpcsweep.measure.workbench import Findings, Ready, Workbench
from hpcsweep.measure.workloads.training import epochs, layer_pass, network
from hpcsweep.measure.workloads.training.checkpoints import Checkpoints
from hpcsweep.measure.workloads.training.epochs import TrainingPass, next_steps
from hpcsweep.measure.workloads.training.trainer import Batch, Score, Trainer
from hpcsweep.point import Point

# Messages of torch if an operator or a compiler is missing.
_CANNOT: Final = (
    "does not have a deterministic implementation",
    "No working C++ compiler found",
    "Cannot find a working triton installation",
    "does not require grad and does not have a grad_fn",
)
REPEATED_MOST_S: Final = 60.0  # a longer training is not repeated after throttling


@dataclass(frozen=True, kw_only=True)
class _PreparedTraining(Ready):
    """A point whose network and data are ready; `batch` lies on the device."""

    data: Data
    trainer: Trainer
    batch: Batch


class Training(Workbench):
    """Measures training points on one device."""

    def measure(self, point: Point, tries: int = 0) -> Measurement:  # noqa: ARG002 - the no-op's business
        """Measure one point.

        Raises:
            CannotMeasure: the device, the network, the compiler or the algorithm cannot do it.
            OutOfMemory: it did not fit.
        """
        deterministic = framework.determinism(wanted=point.axes["deterministic"])
        try:
            with self.translate_torch_errors(_CANNOT), deterministic:
                return self._measure(point)
        finally:
            if point.axes["compile"] == "inductor":
                torch.compiler.reset()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _measure(self, point: Point) -> Measurement:
        self._refuse_early(point)
        framework.apply(point.axes)
        loop.settle()
        torch.manual_seed(point.axes["seed"])
        load = provenance.load_average()
        data = loaders.open_data(point)
        try:
            ready = self._prepare(point, data, load)
            if profilers.replaces_timing(point.measure["profile"]):
                return Measurement(self._profile_steps(ready))
            return self._run(ready)
        finally:
            data.close()

    def _refuse_early(self, point: Point) -> None:
        super()._refuse_early(point)
        axes = point.axes
        kind = self.device.type
        if axes["amp"] != "off" and axes["dtype"] != "float32":
            raise CannotMeasure(
                f"amp: {axes['amp']} casts float32 weights; dtype is {axes['dtype']}"
            )
        if axes["amp"] == "fp16" and kind == "cpu":
            raise CannotMeasure("amp: fp16 needs a GPU; on a CPU there is bf16")
        if axes["pin_memory"] and kind != "cuda":
            raise CannotMeasure(
                f"pin_memory speeds up copies to a GPU; on {kind} nothing is copied, "
                "so there is nothing to measure"
            )
        if point.measure["layers"] not in (True, False):
            raise CannotMeasure(
                f"layers: {point.measure['layers']} is for inference; in training: true"
            )

    def _prepare(self, point: Point, data: Data, load: float | None) -> _PreparedTraining:
        """Build the network, record its shapes, assign its algorithm, make a trainer."""
        device = self.device.torch_device
        model = network.build(point, data.num_classes, device)
        held = Held(model)
        trainer = Trainer(point, device, model, model, data.steps * point.axes["epochs"])
        batch = trainer.to_device(next(data.epoch(0)))
        untouched = trainer.state_dict()
        with trainer.autocast():
            shapes = shape_pass(model, batch[0])
        if shapes.late:
            raise CannotMeasure("the network makes layers while it trains: no optimizer knows them")
        trainer.load_state_dict(untouched)  # a real shape pass has changed batch norms
        choices, setup_ms = self._choose(model, shapes, point)
        began = time.perf_counter()
        calls = zip(choices, shapes.convolution_calls, strict=True)
        learning = [choice for choice, call in calls if call.gradients]
        gradients = backward_pass.choices(learning, self._backend)
        setup_ms += 1e3 * (time.perf_counter() - began)
        trainer.run = network.compiled(model, point)
        return _PreparedTraining(
            point=point,
            model=model,
            held=held,
            shapes=shapes,
            choices=choices,
            gradients=gradients,
            setup_ms=setup_ms,
            load=load,
            data=data,
            trainer=trainer,
            batch=batch,
        )

    def _run(self, ready: _PreparedTraining) -> Measurement:
        """Run all passes; return the rows."""
        trainer = ready.trainer
        data = ready.data
        settings = ready.point.measure
        ticker = epochs.ticker(trainer.device)
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
        with ready.held.settling():
            training.warm_up(settings["warmup"])
        checkpoints = Checkpoints(ready.point, trainer, training.history)
        training.after_epoch = checkpoints.after_epoch
        checkpoints.resume()
        self._memory.reset()  # memory of autotuning and compiling does not count
        throttled_ms = self._train(training, ready.point.axes["epochs"])
        history = training.history
        clean = stats.summarise(training.history.steps_ms)
        checkpoints.finish()
        cells: Row = {
            **clean.row(),
            "stop_reason": "fixed",
            "throughput_ips": 1000 * ready.point.axes["batch_size"] / clean.median,
            "throttled_median_ms": throttled_ms,
            "timer": ticker.timer,
            **memory.cells(self._memory),
            **self._memory.allocator_cells(),
            **self._telemetry.cells(),
            **history.cells(data),
        }
        timer = epochs.phase_timer(trainer.device)
        with training.compiled.block():
            phases = epochs.time_phases(trainer, data, settings["iterations"], timer)
        cells |= phases.cells(clean.n, clean.median)
        cells["mem_avg_bytes"] = epochs.average_memory(trainer, data, self._memory)
        (table, layers_s) = self._layers(ready)
        proof = self._prove_step(ready)
        kept = checkpoints.cells()
        profiled = self._profile_steps(ready)
        artifacts = filter(None, (kept["artifacts"], profiled.get("artifacts")))
        cells |= {**kept, "artifacts": ";".join(artifacts)}
        timed_s = math.fsum((*history.steps_ms, *phases.steps)) / 1000 + layers_s
        outputs, compared = self._error(ready)
        findings = Findings(
            table=table, proof=proof, outputs=outputs, layers=compared, timed_s=timed_s
        )
        last = {
            "compiling": training.compiled.blocks > 0,
            "nan_loss": not history.finite,
            "layers_compiled": bool(settings["layers"]) and table is None,
        }
        about = [*data.flags, *(name for name, raised in last.items() if raised)]
        flags = [*clean.flags(), *phases.flags()], about
        return self._measured(ready, findings, cells, history.steps_ms, flags)

    def _train(self, training: TrainingPass, epochs: int) -> float | None:
        """Run the training, again after a pause if the GPU was throttled meanwhile.

        Return the median step of the first try if there was a second. A second throttled try is
        kept and flagged; so is a training that is too long to be repeated.
        """
        self._telemetry.begin()
        history = training.run(epochs)
        if sum(history.epochs_s) > REPEATED_MOST_S or not self._was_throttled():
            return None
        first = stats.median(history.steps_ms)
        self._telemetry.begin()
        training.again(epochs)
        return first

    def _profile_steps(self, ready: _PreparedTraining) -> Row:
        """Run the sweep's profilers on further steps of the training."""
        steps = next_steps(ready.data, sys.maxsize)
        score = Score.zero(ready.trainer.device)
        return self._profile(ready.point, lambda: ready.trainer.step(next(steps), score))

    def _layers(self, ready: _PreparedTraining) -> tuple[LayerTable | None, float]:
        """Time every layer, forward and backward; no table for compiled networks."""
        settings = ready.point.measure
        if not settings["layers"] or ready.point.axes["compile"] != "none":
            return None, 0.0
        return layer_pass.measure(ready.trainer, ready.batch, ready.shapes, settings["iterations"])

    def _prove_step(self, ready: _PreparedTraining) -> Proof:
        """Prove a forward pass, then the gradients of a step's computation."""
        calls = [*ready.choices, *(gradient.call for gradient in ready.gradients)]
        profiled = ready.point.measure["evidence"] and ready.point.axes["compile"] == "none"
        if not profiled or not calls:
            return Proof.unseen(call.layer for call in calls)
        trainer = ready.trainer
        batch = ready.batch

        def forward() -> object:
            with trainer.autocast():
                return trainer.model(batch[0])

        proof = self._prove(ready, forward)
        backward = backward_pass.prove(
            trainer.model,
            lambda: trainer.compute(batch),
            [g.call for g in ready.gradients],
            self._backend,
        )
        return replace(proof, calls=(*proof.calls, *backward))

    def _error(self, ready: _PreparedTraining) -> tuple[list[Exactness] | None, list[Exactness]]:
        """Compare the trained network with float64.

        Leave the network in evaluation mode, in which some layers are not called, and with plain
        convolutions.
        """
        point = ready.point
        trainer = ready.trainer
        trainer.model.eval()

        def run() -> object:
            with trainer.autocast():
                return trainer.model(*models.make_inputs(point, trainer.device))

        with torch.no_grad():
            return self._compare(ready, numerics.Float64Reference(trainer.device), run, None)
