"""The `training` workload: one point in, its overall row, layer rows and step times out.

Every question has a pass of its own, in this order:

* **warm-up**: a few steps, undone afterwards;
* **training**: all epochs without any instrument but one tick per step; step and epoch times,
  throughput, memory, loss and accuracy are of this pass;
* **phases**: some steps more, each part of a step timed (see `phases`);
* **memory**: three steps more, with a look at the memory in use after each part;
* **layers**: forward, loss and backward on one batch, every layer timed (see `layerpass`);
* **evidence** and **numerics**, as for inference.

What is learned in the passes after the training is in no column.
"""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from hpcsweep.conv import backend as backends
from hpcsweep.measure import (
    clocks,
    convolutions,
    evaluate,
    framework,
    lanes,
    loop,
    machine,
    memory,
    phases,
    stats,
    trainable,
    work,
)
from hpcsweep.measure import data as datasets
from hpcsweep.measure.convolutions import Coverage
from hpcsweep.measure.outcome import Measured, OutOfMemory, Unsupported
from hpcsweep.measure.shapes import Shapes, shape_pass
from hpcsweep.measure.telemetry import Telemetry
from hpcsweep.measure.trainer import Score, Trainer
from hpcsweep.records import DOUBTFUL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.measure.data import Data
    from hpcsweep.measure.machine import Device
    from hpcsweep.measure.phases import PhaseTimer, PhaseTimes, Ticker
    from hpcsweep.measure.trainer import Result
    from hpcsweep.point import Point
    from hpcsweep.records import Row

    Batch = tuple[Tensor, Tensor]

_MEMORY_STEPS: Final = 3
_NO_DETERMINISM: Final = "does not have a deterministic implementation"


@dataclass(frozen=True)
class _Ready:
    """A point whose network and data are ready."""

    point: Point
    data: Data
    trainer: Trainer
    shapes: Shapes
    choices: Sequence[LayerChoice]


@dataclass
class _Run:
    """What the training pass brought."""

    first_ms: float = 0.0
    warmup_n: int = 0
    steps_ms: list[float] = field(default_factory=list)
    epochs_s: list[float] = field(default_factory=list)
    learned: list[Result] = field(default_factory=list)
    before: Result | None = None
    validated: list[Result] = field(default_factory=list)
    validation_s: list[float] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        """Say whether every loss was a number."""
        return all(result.finite for result in self.learned)


class Training:
    """Measures training points on one device."""

    def __init__(self, device: str = "cpu", telemetry: Telemetry | None = None) -> None:
        """Take a kind of device: cpu, cuda or mps."""
        self.device: Device = machine.device(device)
        self._telemetry = telemetry or Telemetry()
        self._memory = memory.watch(self.device.torch_device)
        self._wait = lanes.synchronizer(self.device.torch_device)
        self._backend = backends.choose(self.device.type)

    def environment(self) -> dict[str, Any]:
        """Return provenance for env.json; its `row` holds the cells repeated in each row."""
        return machine.environment(self.device, self._telemetry)

    def measure(self, point: Point, tries: int = 0) -> Measured:  # noqa: ARG002 - the no-op's business
        """Measure one point.

        Raises:
            Unsupported: the device, the network, the compiler or the algorithm cannot do it.
            OutOfMemory: it did not fit.

        """
        try:
            with _determinism(point):
                return self._measure(point)
        except (RuntimeError, MemoryError) as error:
            if framework.is_out_of_memory(error):
                peak, limit = self._memory.peak(), self._memory.limit()
                raise OutOfMemory(peak, limit, str(error).splitlines()[0]) from error
            if framework.is_missing_operator(error) or _NO_DETERMINISM in str(error):
                raise Unsupported(str(error).splitlines()[0]) from error
            raise
        finally:
            torch.compiler.reset()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _measure(self, point: Point) -> Measured:
        self._refuse_early(point)
        framework.apply(point.axes)
        torch.manual_seed(point.axes["seed"])
        load = machine.load_average()
        data = datasets.open_data(point)
        try:
            ready = self._prepare(point, data)
            run, cells = self._train(ready)
            timed = self._phases(ready)
            average = self._average_memory(ready)
        finally:
            data.close()
        median = stats.median(run.steps_ms)
        row: Row = {
            **cells,
            **_learning_cells(ready, run),
            **timed.cells(len(run.steps_ms), median),
            "throughput_ips": 1000 * point.axes["batch_size"] / median,
            **Coverage(ready.choices, ()).cells(),
            **self._work(ready),
            "mem_avg_bytes": average,
            "threads": torch.get_num_threads(),
            "load_avg_1min": load,
        }
        return self._measured(row, run, timed)

    def _measured(self, row: Row, run: _Run, timed: PhaseTimes) -> Measured:
        clean = stats.summarise(run.steps_ms)
        found = {
            "fallback": bool(row["conv_fallbacks"]),
            "shared_cpu": self.device.type == "cpu" and framework.shares_cpu(),
            "nan_loss": not run.finite,
        }
        flags = [
            *clean.flags(),
            *timed.flags(),
            *self._telemetry.flags(),
            *(name for name, raised in found.items() if raised),
        ]
        row |= {**clean.row(), "flags": ";".join(flags), "valid": DOUBTFUL.isdisjoint(flags)}
        return Measured(row, [], run.steps_ms)

    def _refuse_early(self, point: Point) -> None:
        """Refuse what this device cannot do, before anything is built."""
        axes, kind = point.axes, self.device.type
        if axes["amp"] != "off" and axes["dtype"] != "float32":
            raise Unsupported(f"amp: {axes['amp']} casts float32 weights; dtype is {axes['dtype']}")
        if axes["amp"] == "fp16" and kind == "cpu":
            raise Unsupported("amp: fp16 needs a GPU; on a CPU there is bf16")
        if axes["pin_memory"] and kind != "cuda":
            raise Unsupported(
                f"pin_memory speeds up copies to a GPU; on {kind} nothing is copied, "
                "so there is nothing to measure"
            )

    def _prepare(self, point: Point, data: Data) -> _Ready:
        """Build the network, look at its shapes, give it its algorithm, wrap it in a trainer."""
        device = self.device.torch_device
        model = trainable.build(point, data.num_classes, device)
        trainer = Trainer(point, device, model, model, data.steps * point.axes["epochs"])
        images, _ = trainer.to_device(next(iter(data.val)))
        size = (point.axes["batch_size"], *images.shape[1:])
        untouched = trainer.state_dict()
        with trainer.autocast():
            shapes = shape_pass(model, images.new_zeros(size))
        trainer.load_state_dict(untouched)  # where it ran for real, batch norms have counted
        choices = convolutions.choose(
            model, shapes, point.axes["algorithm"], point.measure, self._backend
        )
        trainer.run = trainable.compiled(model, point)
        return _Ready(point, data, trainer, shapes, choices)

    def _train(self, ready: _Ready) -> tuple[_Run, Row]:
        """Warm up, undo it, then train for all epochs."""
        run, ticker = _Run(), self._ticker()
        self._memory.reset()
        self._warm_up(ready, run)
        self._telemetry.begin()
        validates = ready.point.measure["validation"]
        if validates:
            run.before = self._validate(ready, run)
        for epoch in range(ready.point.axes["epochs"]):
            self._epoch(ready, run, ticker, epoch)
            if validates:
                run.validated.append(self._validate(ready, run))
        cells: Row = {
            "warmup_n": run.warmup_n,
            "stop_reason": "fixed",
            "timer": ticker.timer,
            "first_call_ms": run.first_ms,
            **memory.cells(self._memory),
            **self._telemetry.cells(),
        }
        return run, cells

    def _warm_up(self, ready: _Ready, run: _Run) -> None:
        """Take the first steps, which compile, tune and allocate; then forget them."""
        trainer = ready.trainer
        before = trainer.state_dict()
        score = Score.zero(trainer.device)
        wanted = max(1, ready.point.measure["warmup"])
        for batches in _epochs_without_end(ready.data):
            for _ in range(min(ready.data.steps, wanted - run.warmup_n)):
                self._wait()
                begin = time.perf_counter_ns()
                trainer.step(batches, score)
                self._wait()
                if not run.warmup_n:
                    run.first_ms = (time.perf_counter_ns() - begin) / 1e6
                run.warmup_n += 1
            if run.warmup_n >= wanted:
                break
        trainer.load_state_dict(before)

    def _epoch(self, ready: _Ready, run: _Run, ticker: Ticker, epoch: int) -> None:
        """Train for one epoch, with one tick per step."""
        trainer, score = ready.trainer, Score.zero(ready.trainer.device)
        with loop.quiet_collector():
            self._wait()
            begin = time.perf_counter()
            ticker.tick()
            batches = ready.data.epoch(epoch)
            for _ in range(ready.data.steps):
                trainer.step(batches, score)
                ticker.tick()
            run.steps_ms += ticker.read()
            run.epochs_s.append(time.perf_counter() - begin)
        self._telemetry.sample()
        trainer.epoch = epoch + 1
        run.learned.append(score.result())

    def _validate(self, ready: _Ready, run: _Run) -> Result:
        begin = time.perf_counter()
        result = evaluate.evaluate(ready.trainer, ready.data)
        run.validation_s.append(time.perf_counter() - begin)
        return result

    def _phases(self, ready: _Ready) -> PhaseTimes:
        """Go on training, for `iterations` steps, with every part timed."""
        timer, score = self._phase_timer(), Score.zero(ready.trainer.device)
        with loop.quiet_collector():
            for batches in _first_steps(ready, ready.point.measure["iterations"]):
                with timer.step():
                    ready.trainer.step(batches, score, timer.phase)
        return timer.times()

    def _average_memory(self, ready: _Ready) -> int | None:
        """Return the mean memory in use at the ends of the phases of a few steps."""
        seen: list[int] = []
        score = Score.zero(ready.trainer.device)

        @contextmanager
        def look(_name: str) -> Iterator[None]:
            yield
            now = self._memory.now()
            if now is not None:
                seen.append(now)

        for batches in _first_steps(ready, _MEMORY_STEPS):
            ready.trainer.step(batches, score, look)
        return round(sum(seen) / len(seen)) if seen else None

    def _phase_timer(self) -> PhaseTimer:
        if self.device.type == "cuda":
            return phases.DevicePhases(clocks.Cuda())
        return phases.HostPhases(self._wait)

    def _ticker(self) -> Ticker:
        if self.device.type == "cuda":
            return phases.DeviceTicker(clocks.Cuda())
        return phases.HostTicker(self._wait)

    def _work(self, ready: _Ready) -> Row:
        """Return the work of a forward pass; the rates of inference would not fit a step."""
        cells = work.cells(
            ready.shapes,
            sum(p.numel() for p in ready.trainer.model.parameters()),
            1.0,
            ready.point.axes,
            self.device,
        )
        names = ("params", "flops", "macs", "flops_convention", "bytes_min", "arith_intensity")
        return {name: cells[name] for name in names}


def _epochs_without_end(data: Data) -> Iterator[Iterator[Batch]]:
    """Yield the batches of one epoch after another."""
    return (data.epoch(number) for number in itertools.count())


def _first_steps(ready: _Ready, count: int) -> Iterator[Iterator[Batch]]:
    """Yield, for each of `count` steps, the batches to take the next one from."""
    left = count
    for batches in _epochs_without_end(ready.data):
        for _ in range(min(left, ready.data.steps)):
            yield batches
        left -= ready.data.steps
        if left <= 0:
            return


def _learning_cells(ready: _Ready, run: _Run) -> Row:
    """Return the columns about epochs, loss and accuracy."""
    data, last = ready.data, run.learned[-1]
    after = run.validated[-1] if run.validated else None
    seconds = sum(run.epochs_s)
    return {
        "steps": len(run.steps_ms),
        "train_samples": data.train_samples,
        "val_samples": data.val_samples,
        "train_s": seconds,
        "epoch_s": seconds / len(run.epochs_s),
        "validation_s": sum(run.validation_s) / len(run.validation_s) if after else None,
        "throughput_sps": data.train_samples * len(run.epochs_s) / seconds,
        "train_loss": last.loss,
        "train_accuracy": last.accuracy,
        "val_loss_before": run.before.loss if run.before else None,
        "val_accuracy_before": run.before.accuracy if run.before else None,
        "val_loss_after": after.loss if after else None,
        "val_accuracy_after": after.accuracy if after else None,
        "learning_valid": run.finite,
        "epochs_s": run.epochs_s,
        "epochs_train_loss": [result.loss for result in run.learned],
        "epochs_train_accuracy": [result.accuracy for result in run.learned],
        "epochs_val_loss": [result.loss for result in run.validated],
        "epochs_val_accuracy": [result.accuracy for result in run.validated],
    }


@contextmanager
def _determinism(point: Point) -> Iterator[None]:
    """Have operators that give the same bits every time, where the point asks for them."""
    torch.use_deterministic_algorithms(point.axes["deterministic"])
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)
