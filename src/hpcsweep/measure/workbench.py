"""The base of the benches `Inference` and `Training`: device, telemetry, and a point's rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, Final

import torch
from torch import nn

from hpcsweep import catalog
from hpcsweep.catalog import may_use_tensor_cores
from hpcsweep.catalog.columns import DOUBTFUL, Row
from hpcsweep.conv import backend as backends
from hpcsweep.conv import swap
from hpcsweep.conv.choice import GradientChoice, LayerChoice
from hpcsweep.conv.proof import forward_pass
from hpcsweep.conv.proof.evidence import Proof
from hpcsweep.errors import first_line
from hpcsweep.measure import convolutions, numerics, profilers, rounding, work
from hpcsweep.measure.bench_api import CannotMeasure, Measurement, OutOfMemory
from hpcsweep.measure.layer_table import HOOK_OVERHEAD_PCT, IsolatedTable, LayerTable
from hpcsweep.measure.machine import framework, memory, provenance
from hpcsweep.measure.machine.control import Control
from hpcsweep.measure.machine.provenance import Device
from hpcsweep.measure.machine.telemetry import THROTTLED, Telemetry
from hpcsweep.measure.rounding import Arithmetic, Exactness
from hpcsweep.measure.shape_pass import Shapes
from hpcsweep.measure.tensors import Held
from hpcsweep.measure.timing import lanes, layer_timer
from hpcsweep.point import Point

_REDUCED: Final = {"bf16": "bfloat16", "fp16": "float16"}  # mixed precision
COOLING_S: Final = 2.0  # pause for a throttled GPU before the second try


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A point whose network has its algorithm.

    `load` is the node's load before the network was built, `held` are the network's tensors.
    """

    point: Point
    model: nn.Module
    held: Held
    shapes: Shapes
    choices: Sequence[LayerChoice]
    gradients: Sequence[GradientChoice] = ()
    setup_ms: float
    load: float | None

    @property
    def may_use_tensor_cores(self) -> bool:
        """Whether any convolution may use tensor cores."""
        ran = [(c.backend, c.used) for c in self.choices]
        return bool(self.shapes.outside or not ran or any(starmap(may_use_tensor_cores, ran)))


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The times of layers, the proof, and the comparisons with float64 of a point.

    `outputs` and `layers` compare the outputs and the convolution calls; `outputs` is None if the
    sweep wants no comparison. `timed_s` are the seconds of all timed passes (see `Measurement`).
    """

    table: LayerTable | IsolatedTable | None
    proof: Proof
    outputs: Sequence[Exactness] | None
    layers: Sequence[Exactness] = ()
    timed_s: float


class Workbench:
    """One device with its memory, its telemetry and its back-end of convolutions."""

    def __init__(self, device: str = "cpu", telemetry: Telemetry | None = None) -> None:
        """Use the current device of a type: cpu, cuda or mps."""
        self.device: Device = provenance.device(device)
        self._telemetry = telemetry or Telemetry()
        self._memory = memory.watch(self.device.torch_device)
        self._wait = lanes.synchronizer(self.device.torch_device)
        self._control = Control(self.device.torch_device)
        self._backend = backends.choose(self.device.type)
        if self.device.type == "cuda":
            framework.detach_profiler()
        self.tunes = framework.has_autotuner(self.device.type)
        framework.apply(catalog.axis_defaults(catalog.INFERENCE.name))

    def environment(self) -> dict[str, Any]:
        """Return provenance for env.json; its `row` holds the cells repeated in each row."""
        return provenance.environment(self.device, self._telemetry)

    @property
    def history(self) -> dict[str, Any]:
        """What points showed of the machine, those of earlier workers included."""
        return {
            "controls_ms": self._control.earlier_ms,
            "unlimited_mhz": self._telemetry.unlimited_mhz,
        }

    @history.setter
    def history(self, found: Mapping[str, Any]) -> None:
        self._control.earlier_ms = found.get("controls_ms", [])
        self._telemetry.unlimited_mhz = found.get("unlimited_mhz", 0.0)

    @contextmanager
    def translate_torch_errors(
        self, cannot: Sequence[str] = (), give_back: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Turn torch's errors about memory and operators into `OutOfMemory` and `CannotMeasure`.

        `cannot` are further messages that mean `CannotMeasure`. `give_back` frees memory after it
        ran out.
        """
        self._control.begin()
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if framework.is_out_of_memory(error):
                peak = self._memory.peak()
                limit = self._memory.limit()
                give_back()
                raise OutOfMemory(peak, limit, first_line(error)) from error
            if framework.is_missing_operator(error) or any(text in str(error) for text in cannot):
                lines = str(error).splitlines()  # of which the first may be a mere heading
                telling = (line for line in lines if any(words in line for words in cannot))
                raise CannotMeasure(next(telling, lines[0])) from error
            raise

    def _refuse_early(self, point: Point) -> None:
        """Raise `CannotMeasure` before anything is built, if this device cannot do the point."""
        profilers.refuse_early(point.measure["profile"], self.device.type)
        framework.refuse_early(point.axes, self.device.type)

    def _choose(
        self, model: nn.Module, shapes: Shapes, point: Point
    ) -> tuple[list[LayerChoice], float]:
        """Assign a network its algorithm; return the choices of all calls, and the milliseconds."""
        began = time.perf_counter()
        algorithm = point.axes["algorithm"]
        settings = point.measure
        # gradients and evidence have the same limit
        self._backend = self._backend.limited(settings["workspace_mib"] * convolutions.MIB)
        choices = convolutions.choose(model, shapes, algorithm, settings, self._backend)
        return choices, 1e3 * (time.perf_counter() - began)

    def _profile(self, point: Point, run: Callable[[], object]) -> Row:
        """Run the sweep's profilers on a pass or step, after all timed passes."""
        settings = dict(point.measure)
        step = profilers.ProfiledStep(run, self._wait, self.device.type, settings["warmup"])
        return profilers.run(settings["profile"], step, point.point_id, settings)

    def _prove(
        self,
        ready: Ready,
        run: Callable[[], object],
    ) -> Proof:
        """Prove a forward pass; on a GPU mark the other layers, so that their kernels are known."""
        if not ready.point.measure["evidence"] or not ready.choices:
            return Proof.unseen(choice.layer for choice in ready.choices)
        on_gpu = self.device.type == "cuda"
        calls = ready.shapes.calls if on_gpu else ()
        marking = partial(layer_timer.marked, ready.model, calls)
        return forward_pass.prove(ready.model, run, ready.choices, self._backend, marking)

    def _compare(
        self,
        ready: Ready,
        reference: numerics.Float64Reference,
        run: Callable[[], object],
        missing: str | None,
    ) -> tuple[list[Exactness] | None, list[Exactness]]:
        """Compare the outputs and convolution calls of a pass with float64; leave plain layers.

        `run` takes the point's first input, drawn anew. `missing` is the reason for calls that do
        not come; None if they need not come.
        """
        wanted = ready.point.measure["numerics"]
        axes = ready.point.axes
        if not wanted:
            return None, []
        tf32 = axes["tf32"] and self.device.type == "cuda"
        calls = numerics.Convolutions(ready.choices, tf32=tf32, whole=wanted == "layers")
        with calls.compared(ready.model):
            ran = rounding.if_it_fits(lambda: [run()])
        swap.restore(ready.model)
        if ran is None:  # beside a graph, which keeps the memory of its own pass
            images = axes["batch_size"]
            skipped = rounding.no_memory(images, images)
            return [Exactness(subject="output", skipped=skipped)], calls.verdicts(None)
        (output,) = ran
        kind = self.device.type
        how = [Arithmetic.of(choice, kind, tf32=tf32, casts=False) for choice in ready.choices]
        dtype = _REDUCED.get(axes.get("amp", ""), axes["dtype"])
        limit_of = partial(rounding.output_limit, ready.shapes, how, dtype, tf32=tf32)
        limit = limit_of()
        outputs = reference.verdicts(ready.point, ready.model, output, limit)
        if any(map(rounding.is_wrong, outputs)) and reference.coarsest:
            limit = limit_of(coarsest=reference.coarsest)
            outputs = reference.verdicts(ready.point, ready.model, output, limit)
        if any(map(rounding.is_wrong, outputs)):
            explain = partial(numerics.explain_random, run, outputs, limit)
            outputs = rounding.if_it_fits(explain) or outputs
        return reference.settled(outputs), calls.verdicts(missing)

    def _was_throttled(self) -> bool:
        """Say whether the GPU was throttled in the last passes; if it was, let it cool down."""
        if THROTTLED not in self._telemetry.flags():
            return False
        time.sleep(COOLING_S)
        return True

    def _measured(
        self,
        ready: Ready,
        findings: Findings,
        cells: Row,
        samples: list[float],
        flags: tuple[Sequence[str], Sequence[str]],
    ) -> Measurement:
        """Return a point's rows, given the workload's cells, and its first and last flags."""
        ready.held.check()
        table = findings.table
        first, last = flags
        means = table.convolution_means() if table else None
        times = convolutions.Times(*means) if means else None
        used, flags_of_use = convolutions.algorithm_use(
            *(ready.point.axes["algorithm"], ready.shapes, ready.choices, ready.gradients),
            *(findings.proof, times),
        )
        watched, disturbed = self._control.row()
        flags_of_use["switched"] = not framework.is_kept(ready.point.axes)
        flags_of_use["uncovered"] = used["algorithm_uncovered"] is not None
        raised = [*first, *self._telemetry.flags(), *self._doubts(findings, flags_of_use)]
        raised += [*disturbed, *last]
        row: Row = {
            **cells,
            **used,
            **watched,
            **(table.overall_cells() if table else {}),
            **work.amount_cells(ready.model, ready.shapes),
            "algorithm_setup_ms": ready.setup_ms,
            "algorithm_evidence": findings.proof.source.value,
            **rounding.cells([*(findings.outputs or ()), *findings.layers], findings.outputs or ()),
            "threads": torch.get_num_threads(),
            "load_avg_1min": ready.load,
            "flags": ";".join(raised),
            "valid": DOUBTFUL.isdisjoint(raised),
        }
        # forward calls come first
        calls: list[convolutions.Choice] = [*ready.choices, *ready.gradients]
        about = convolutions.call_cells(calls, findings.proof.calls)
        for of_call, verdict in zip(about, findings.layers, strict=False):
            of_call |= {"max_rel_error": verdict.error, "error_over_bound": verdict.excess}
        layers = table.rows(ready.point, about, findings.proof.others_ms) if table else []
        return Measurement(row, layers, samples, findings.proof, findings.timed_s)

    def _doubts(self, findings: Findings, used: Mapping[str, bool]) -> list[str]:
        """Return the flags on timers, algorithms, exactness and a shared machine."""
        verdicts = [*(findings.outputs or ()), *findings.layers]
        overhead = findings.table.overall_cells()["hook_overhead_pct"] if findings.table else None
        reasons = {
            "layer_starved": findings.table is not None and findings.table.starved,
            "hook_overhead": overhead is not None and overhead > HOOK_OVERHEAD_PCT,
            **used,
            "shared_cpu": self.device.type == "cpu" and framework.shares_cpu(),
            "inaccurate": any(map(rounding.is_wrong, verdicts)),
            "unverified": any(map(rounding.is_open, verdicts)),
            "unchecked": findings.outputs is None,
            "partly_checked": any(map(rounding.is_partial, verdicts)),
        }
        return [name for name, raised in reasons.items() if raised]
