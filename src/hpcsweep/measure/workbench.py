"""What the benches of torch's workloads share: the device, its telemetry, and a point's results.

`Inference` and `Training` are workbenches that differ in what they run and time.
"""

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
from hpcsweep.catalog.axes import may_use_tensor_cores
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
from hpcsweep.measure.rounding import Exactness
from hpcsweep.measure.shape_pass import Shapes
from hpcsweep.measure.tensors import Held
from hpcsweep.measure.timing import lanes, layer_timer
from hpcsweep.point import Point

_REDUCED: Final = {"bf16": "bfloat16", "fp16": "float16"}  # mixed precision
COOLING_S: Final = 2.0  # what a throttled GPU gets before it is asked again


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A point whose network has its algorithm; `load` is the node's before that.

    `held` are the tensors that it is measured with.
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
    def calls(self) -> list[LayerChoice | GradientChoice]:
        """What all convolution calls run, forward ones first."""
        return [*self.choices, *self.gradients]

    @property
    def may_use_tensor_cores(self) -> bool:
        """Whether the rate of tensor cores is within reach of any convolution."""
        ran = [(c.backend, c.used) for c in self.choices]
        return bool(self.shapes.outside or not ran or any(starmap(may_use_tensor_cores, ran)))


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the passes after the timed ones found, and the layers' times.

    `outputs` and `layers` compare the outputs and the convolution calls with float64; None: not
    asked for.
    `timed_s` are the seconds of all timed passes (see `Measurement`).
    """

    table: LayerTable | IsolatedTable | None
    proof: Proof
    outputs: Sequence[Exactness] | None
    layers: Sequence[Exactness] = ()
    timed_s: float


class Workbench:
    """One device with its memory, its telemetry and its back-end of convolutions."""

    def __init__(self, device: str = "cpu", telemetry: Telemetry | None = None) -> None:
        """Take a kind of device: cpu, cuda or mps."""
        self.device: Device = provenance.device(device)
        self._telemetry = telemetry or Telemetry()
        self._memory = memory.watch(self.device.torch_device)
        self._wait = lanes.synchronizer(self.device.torch_device)
        self._control = Control(self.device.torch_device)
        self._backend = backends.choose(self.device.type)
        self.tunes = framework.has_autotuner(self.device.type)
        self.rest()

    def environment(self) -> dict[str, Any]:
        """Return provenance for env.json; its `row` holds the cells repeated in each row."""
        return provenance.environment(self.device, self._telemetry)

    def rest(self) -> None:
        """Set the switches that each point sets to those of a point that asks for none."""
        framework.apply(catalog.axis_defaults("inference"))

    @contextmanager
    def translate_torch_errors(
        self, cannot: Sequence[str] = (), give_back: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Turn torch's errors into `OutOfMemory` and `CannotMeasure` where they mean that.

        `cannot` are further texts that mean `CannotMeasure`. `give_back` frees memory when it ran
        out.
        """
        self._control.begin()
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if framework.is_out_of_memory(error):
                peak, limit = self._memory.peak(), self._memory.limit()
                give_back()
                raise OutOfMemory(peak, limit, first_line(error)) from error
            if framework.is_missing_operator(error) or any(text in str(error) for text in cannot):
                raise CannotMeasure(_telling_line(str(error), cannot)) from error
            raise

    def _refuse_early(self, point: Point) -> None:
        """Raise `CannotMeasure` for what this device cannot do, before anything is built."""
        profilers.refuse_early(point.measure["profile"], self.device.type)
        framework.refuse_early(point.axes, self.device.type)

    def _choose(
        self, model: nn.Module, shapes: Shapes, point: Point
    ) -> tuple[list[LayerChoice], float]:
        """Give a network its algorithm; return what each call got, and how long that took, ms."""
        began = time.perf_counter()
        algorithm, settings = point.axes["algorithm"], point.measure
        # its gradients and its evidence are asked for under the same limit
        self._backend = self._backend.limited(settings["workspace_mib"] * convolutions.MIB)
        choices = convolutions.choose(model, shapes, algorithm, settings, self._backend)
        return choices, 1e3 * (time.perf_counter() - began)

    def _profile(self, point: Point, run: Callable[[], object]) -> Row:
        """Run the profilers that the sweep wants on a pass or step, after all that is timed."""
        settings = dict(point.measure)
        step = profilers.ProfiledStep(run, self._wait, self.device.type, settings["warmup"])
        return profilers.run(settings["profile"], step, point.point_id, settings)

    def _prove(
        self,
        ready: Ready,
        run: Callable[[], object],
        plain: Callable[[], object] | None = None,
        timed: Sequence[object] = (),
    ) -> Proof:
        """Profile a forward pass; layers that are no convolutions are marked for their kernels.

        `plain` and `timed` are as in `forward_pass.prove`.
        """
        if not ready.point.measure["evidence"] or not ready.choices:
            return Proof.unseen(choice.layer for choice in ready.choices)
        on_gpu = self.device.type == "cuda"
        calls = ready.shapes.calls if on_gpu else ()
        marking = partial(layer_timer.marked, ready.model, calls)
        return forward_pass.prove(
            *(ready.model, run, ready.choices, self._backend, marking), plain=plain, timed=timed
        )

    def _compare(
        self,
        ready: Ready,
        reference: numerics.Float64Reference,
        run: Callable[[], object],
        missing: str | None,
    ) -> tuple[list[Exactness] | None, list[Exactness]]:
        """Compare the outputs and convolution calls of a pass with float64; leaves them plain.

        `run` takes the point's first input, drawn anew. `missing` is told of calls that do not
        come; None: they need not.
        """
        wanted, axes = ready.point.measure["numerics"], ready.point.axes
        if not wanted:
            return None, []
        tf32 = axes["tf32"] and self.device.type == "cuda"
        calls = numerics.Convolutions(ready.choices, tf32=tf32, whole=wanted == "layers")
        with calls.compared(ready.model):
            output = run()
        swap.restore(ready.model)
        how = [calls.arithmetic(choice, self.device.type) for choice in ready.choices]
        dtype = _REDUCED.get(axes.get("amp", ""), axes["dtype"])
        limit = rounding.output_limit(ready.shapes, how, dtype, tf32=tf32)
        outputs = reference.verdicts(ready.point, ready.model, output, limit)
        if any(map(rounding.is_wrong, outputs)):
            outputs = numerics.told_random(run, outputs, limit)
        return outputs, calls.verdicts(missing)

    def _was_throttled(self) -> bool:
        """Say whether the GPU was throttled in the last passes; if so, let it cool down."""
        if THROTTLED not in self._telemetry.flags():
            return False
        time.sleep(COOLING_S)
        return True

    def _measured(
        self,
        ready: Ready,
        found: Findings,
        cells: Row,
        samples: list[float],
        flags: tuple[Sequence[str], Sequence[str]],
    ) -> Measurement:
        """Return a point's rows; `cells` are the workload's own, `flags` its first and its last."""
        ready.held.check()
        table = found.table
        first, last = flags
        times = None
        if table and table.complete:
            times = convolutions.Times(table.convolution_means(), table.other_convolution_means())
        used, flags_of_use = convolutions.algorithm_use(
            *(ready.point.axes["algorithm"], ready.shapes, ready.choices, ready.gradients),
            *(found.proof, times),
        )
        watched, disturbed = self._control.row()
        flags_of_use["switched"] = not framework.is_kept(ready.point.axes)
        flags_of_use["uncovered"] = used["algorithm_uncovered"] is not None
        raised = [*first, *self._telemetry.flags(), *self._doubts(found, flags_of_use)]
        raised += [*disturbed, *last]
        row: Row = {
            **cells,
            **used,
            **watched,
            **(table.overall_cells() if table else {}),
            **work.amount_cells(ready.model, ready.shapes),
            "algorithm_setup_ms": ready.setup_ms,
            "algorithm_evidence": found.proof.source.value,
            **rounding.cells([*(found.outputs or ()), *found.layers], found.outputs or ()),
            "threads": torch.get_num_threads(),
            "load_avg_1min": ready.load,
            "flags": ";".join(raised),
            "valid": DOUBTFUL.isdisjoint(raised),
        }
        about = convolutions.call_cells(ready.calls, found.proof.calls)
        for of_call, verdict in zip(about, found.layers, strict=False):  # forward calls come first
            of_call |= {"max_rel_error": verdict.error, "error_over_bound": verdict.excess}
        layers = table.rows(ready.point, about, found.proof.others_ms) if table else []
        return Measurement(row, layers, samples, found.proof, found.timed_s)

    def _doubts(self, found: Findings, used: Mapping[str, bool]) -> list[str]:
        """Return the flags about instruments, algorithms and the machine's sharing."""
        verdicts = [*(found.outputs or ()), *found.layers]
        overhead = found.table.overall_cells()["hook_overhead_pct"] if found.table else None
        reasons = {
            "layer_starved": found.table is not None and found.table.starved,
            "hook_overhead": overhead is not None and overhead > HOOK_OVERHEAD_PCT,
            **used,
            "shared_cpu": self.device.type == "cpu" and framework.shares_cpu(),
            "inaccurate": any(map(rounding.is_wrong, verdicts)),
            "unverified": any(map(rounding.is_open, verdicts)),
            "unchecked": found.outputs is None,
        }
        return [name for name, raised in reasons.items() if raised]


def _telling_line(text: str, telling: Sequence[str]) -> str:
    """Return the line that says what is missing; a compiler's first one may be a heading."""
    lines = text.splitlines()
    return next((line for line in lines if any(words in line for words in telling)), lines[0])
