"""The `training` workload: a pass is a step, forward and backward, on a batch.

Its passes, in order:

* **warm-up**: a few steps, whose effect is undone;
* **training**: all epochs, with one tick per step as the only instrument; step and epoch times,
  throughput, memory, loss and accuracy are of this pass. In it only the end of an epoch and the
  validation wait for the device (and torch's gradient scaler, once a step, in float16);
* **phases**: further steps in which each phase is timed; then three in which the memory in use is
  read after each phase;
* **layers**: forward, loss and backward on one batch, every layer timed (see `step_parts`).

Steps after the training pass change no column on learning.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcsweep.catalog.row_records import LoadCells, TimeCells, TrainingCells
from hpcsweep.conv.parts import Held
from hpcsweep.measure import compilations, model_builder
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.compilations import Calm, CompileCount
from hpcsweep.measure.data import loaders
from hpcsweep.measure.data.loaders import Data
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.network import Choices, Network, Times
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing import clocks, loop, stats
from hpcsweep.measure.timing.layer_timer import LayersChanged
from hpcsweep.measure.workloads import step_parts, training_network
from hpcsweep.measure.workloads.checkpoints import Checkpoints
from hpcsweep.measure.workloads.trainer import (
    Batch,
    Result,
    Score,
    Trainer,
    TrainingHistory,
    evaluate,
    next_steps,
)
from hpcsweep.point import Point

_log = logging.getLogger(__name__)


class Training:
    """Builds networks that learn, with their data."""

    # words of torch, if an operator or a compiler is missing
    cannot: Sequence[str] = (
        "does not have a deterministic implementation",
        "No working C++ compiler found",
        "Cannot find a working triton installation",
        "does not require grad and does not have a grad_fn",
    )

    def __init__(self, rig: Rig) -> None:
        """Measure on one device."""
        self._rig = rig
        self._data: Data | None = None

    def refuse_early(self, point: Point) -> None:
        """Raise `CannotMeasure` if this device cannot do the point."""
        axes = point.axes
        kind = self._rig.device.type
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

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Close the data in the end."""
        try:
            yield
        finally:
            self.forget()

    def build(self, point: Point) -> Network:
        """Build the network and its trainer, open the data, record the shapes."""
        model_builder.settle()
        # what data sets and networks of the user's own draw is the same in each visit
        torch.manual_seed(point.axes["seed"])
        load = os.getloadavg()[0]
        device = self._rig.device.torch_device
        data = self._data = loaders.open_data(point)
        model = training_network.build(point, data.num_classes, device)
        held = Held(model)
        trainer = Trainer(point, device, model, model, data.steps * point.axes["epochs"])
        batch = trainer.to_device(next(data.epoch(0)))
        # a shape pass that runs for real changes batch norms
        untouched = trainer.state_dict()
        with trainer.autocast():
            shapes = shape_pass(model, batch[0])
        if shapes.late:
            raise CannotMeasure("the network makes layers while it trains: no optimizer knows them")
        trainer.load_state_dict(untouched)
        return TrainingNetwork(
            point=point,
            rig=self._rig,
            model=model,
            held=held,
            shapes=shapes,
            load=load,
            compute=lambda: trainer.compute(batch),
            data=data,
            trainer=trainer,
            batch=batch,
        )

    def forget(self) -> None:
        """Close the data and free memory."""
        if self._data is not None:
            self._data.close()
            self._data = None
        if self._rig.device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(kw_only=True)
class TrainingNetwork(Network):
    """A network that learns; `batch` lies on the device."""

    data: Data
    trainer: Trainer
    batch: Batch
    _steps: Iterator[Iterator[Batch]] | None = None

    def passes(self, choices: Choices) -> TrainingPasses:  # noqa: ARG002
        """Return the training, and what is timed after it."""
        self.trainer.run = training_network.compiled(self.model, self.point)
        return TrainingPasses(self)

    def forward(self, image: Tensor | None = None) -> object:
        """Run the network, as it was before it was compiled, on images or on one batch."""
        with self.trainer.autocast():
            return self.model(self.batch[0] if image is None else image)

    def step(self) -> None:
        """Train one step further."""
        if self._steps is None:
            self._steps = next_steps(self.data, sys.maxsize)
        self.trainer.step(next(self._steps), Score.zero(self.trainer.device))

    def output(self, times: Times) -> object:  # noqa: ARG002 - a step has no output of its own
        """Run the trained network on the point's inputs, compiled if the point is."""
        with self.trainer.autocast():
            return self.trainer.run(*model_builder.make_inputs(self.point, self.trainer.device))


class TrainingPasses:
    """The training, then steps for phases and memory, then the layer pass."""

    # it took what it took, and left checkpoints: a training that was disturbed is flagged
    repeatable = False

    def __init__(self, net: TrainingNetwork) -> None:
        self._network = net
        self._trainer = net.trainer
        self._stamps = clocks.stamps_of(net.trainer.device)
        self._history = TrainingHistory()
        self._compiled = CompileCount()  # epochs in which torch compiled
        self._checkpoints = Checkpoints(net.point, net.trainer, self._history)

    def warm_up(self) -> None:
        """Run steps, which tune and allocate, until none compiles, and undo them; then resume."""
        net = self._network
        trainer = self._trainer
        # the training begins with what was built, whatever the warm-up learns
        before = trainer.state_dict()
        score = Score.zero(trainer.device)
        least = net.point.measure["warmup"]
        for module in (trainer.run, *trainer.model.modules()):
            if isinstance(module, torch.jit.ScriptModule):  # it is compiled by what it sees
                least = max(least, compilations.RUNS)
        calm = Calm(max(1, least))
        with net.held.settling():
            for batches in next_steps(net.data, sys.maxsize):
                if calm.reached:
                    break
                net.rig.wait()
                begin = time.perf_counter_ns()
                with calm.run():
                    trainer.step(batches, score)
                net.rig.wait()
                if not self._history.warmup_n:
                    self._history.first_ms = (time.perf_counter_ns() - begin) / 1e6
                self._history.warmup_n += 1
            trainer.load_state_dict(before)
        self._checkpoints.resume()

    def time(self, look: Callable[[], object]) -> None:
        """Train all epochs that are left."""
        point = self._network.point
        history = self._history
        validates = point.measure["validation"]
        if validates and history.before is None:
            history.before = self._validate()
        for number in range(self._trainer.epoch, point.axes["epochs"]):
            self._train(number)
            look()
            if validates:
                history.validated.append(self._validate())
            self._checkpoints.after_epoch()

    def _train(self, number: int) -> None:
        """Train for one epoch; a step lasts from one tick to the next."""
        data = self._network.data
        score = Score.zero(self._trainer.device)
        with loop.quiet_collector(), self._compiled.block():
            # the first step does not begin behind work of a validation
            self._network.rig.wait()
            begin = time.perf_counter()
            ticks = [self._stamps.now()]
            batches = data.epoch(number)
            for _ in range(data.steps):
                self._trainer.step(batches, score)
                ticks.append(self._stamps.now())
            self._history.steps_ms += clocks.intervals(self._stamps, ticks)
            self._history.epochs_s.append(time.perf_counter() - begin)
        self._trainer.epoch = number + 1
        self._history.learned.append(score.result())

    def _validate(self) -> Result:
        begin = time.perf_counter()
        result = evaluate(self._trainer, self._network.data)
        self._history.validation_s.append(time.perf_counter() - begin)
        return result

    def samples(self) -> list[float]:
        """Return the milliseconds of the steps."""
        return self._history.steps_ms

    def times(self) -> Times:
        """Return the times, after phases and layers are timed in steps of their own."""
        net = self._network
        trainer = self._trainer
        data = net.data
        history = self._history
        settings = net.point.measure
        clean = stats.summarise(history.steps_ms)
        # before further steps change the weights
        self._checkpoints.finish()
        with self._compiled.block():
            timed = step_parts.time_phases(trainer, data, settings["iterations"])
        timing = TimeCells(
            warmup_n=history.warmup_n,
            first_call_ms=history.first_ms,
            stop_reason="fixed",
            timer=self._stamps.timer,
        )
        training = TrainingCells(
            resumed_epoch=self._checkpoints.resumed,
            lr_used=trainer.optimizer.defaults["lr"],
            weight_decay_used=trainer.optimizer.defaults["weight_decay"],
        )
        memory = step_parts.average_memory(trainer, data, net.rig.memory)
        cells = [
            timing,
            history.cells(data) | training,
            timed.cells(clean.n, clean.median),
            LoadCells(mem_avg_bytes=memory),
        ]
        flags = [*timed.flags(), *data.flags]
        table = None
        layers_s = 0.0
        layers_compiled = bool(settings["layers"])
        if layers_compiled and net.point.axes["compile"] == "none":
            try:
                table, layers_s = step_parts.time_layers(
                    trainer, net.batch, net.shapes, settings["iterations"]
                )
                layers_compiled = table is None
            except LayersChanged as error:  # what was learnt and timed so far stands
                _log.warning("%s", error)
                flags.append("layers_changed")
                layers_compiled = False
        if not history.finite:
            flags.append("nan_loss")
        steps_s = math.fsum((*history.steps_ms, *timed.steps)) / 1000
        return Times(
            samples=history.steps_ms,
            summary=clean,
            seconds=steps_s + layers_s,
            run=net.step,
            cells=cells,
            artifacts=";".join(self._checkpoints.kept),
            flags=flags,
            table=table,
            compiled=self._compiled.blocks > 0,
            layers_compiled=layers_compiled,
        )
