"""What the benches of torch's workloads share: one device, who watches it, and what points need.

`Inference` and `Training` are workbenches that differ in what they run and time.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.conv import backend as backends
from hpcsweep.conv.proof import forward_pass
from hpcsweep.measure import convolutions, numerics, profilers, work
from hpcsweep.measure.bench_api import OutOfMemory, Unsupported
from hpcsweep.measure.layer_table import HOOK_OVERHEAD_PCT
from hpcsweep.measure.machine import framework, memory, provenance
from hpcsweep.measure.machine.telemetry import THROTTLED, Telemetry
from hpcsweep.measure.timing import lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.forward_pass import Proof
    from hpcsweep.conv.proof.profiler_events import Evidence
    from hpcsweep.measure.machine.provenance import Device
    from hpcsweep.measure.shape_pass import Shapes
    from hpcsweep.point import Point

COOLING_S: Final = 2.0  # what a throttled GPU gets before it is asked again


class Workbench:
    """One device with its memory, its telemetry and its back-end of convolutions."""

    def __init__(self, device: str = "cpu", telemetry: Telemetry | None = None) -> None:
        """Take a kind of device: cpu, cuda or mps."""
        self.device: Device = provenance.device(device)
        self._telemetry = telemetry or Telemetry()
        self._memory = memory.watch(self.device.torch_device)
        self._wait = lanes.synchronizer(self.device.torch_device)
        self._backend = backends.choose(self.device.type)
        self._profiled = False

    def environment(self) -> dict[str, Any]:
        """Return provenance for env.json; its `row` holds the cells repeated in each row."""
        return provenance.environment(self.device, self._telemetry)

    @contextmanager
    def _told_apart(
        self, cannot: Sequence[str] = (), give_back: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Make `OutOfMemory` and `Unsupported` of what torch raises for them.

        `cannot` are texts that, besides the usual ones, mean that something is missing here; when
        memory ran out, `give_back` frees what can be freed.
        """
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if framework.is_out_of_memory(error):
                peak, limit = self._memory.peak(), self._memory.limit()
                give_back()
                raise OutOfMemory(peak, limit, str(error).splitlines()[0]) from error
            if framework.is_missing_operator(error) or any(text in str(error) for text in cannot):
                raise Unsupported(_telling_line(str(error), cannot)) from error
            raise

    def _choose(
        self, model: nn.Module, shapes: Shapes, point: Point
    ) -> tuple[list[LayerChoice], float]:
        """Give a network its algorithm; return what each call got, and how long that took, ms."""
        began = time.perf_counter()
        algorithm, settings = point.axes["algorithm"], point.measure
        choices = convolutions.choose(model, shapes, algorithm, settings, self._backend)
        return choices, 1e3 * (time.perf_counter() - began)

    def _profile_step(self, point: Point, run: Callable[[], object]) -> Row:
        """Run the profilers that the sweep wants on a pass or step."""
        settings = dict(point.measure)
        step = profilers.Step(run, self._wait, self.device.type, settings["warmup"])
        return profilers.run(settings["profile"], step, point.point_id, settings)

    def _prove_pass(
        self, model: nn.Module, run: Callable[[], object], choices: Sequence[LayerChoice]
    ) -> Proof:
        """Profile one pass; a GPU's first session may lose kernels, so it is run twice there."""
        sessions = 2 if self.device.type == "cuda" and not self._profiled else 1
        self._profiled = True
        for _ in range(sessions):
            proof = forward_pass.prove(model, run, choices, self._backend)
        return proof

    def _was_throttled(self) -> bool:
        """Say whether the GPU was throttled in what was just timed, and let it cool down if so."""
        if THROTTLED not in self._telemetry.flags():
            return False
        time.sleep(COOLING_S)
        return True

    def _work_cells(self, model: nn.Module, shapes: Shapes, median_ms: float, point: Point) -> Row:
        """Return the work of a forward pass, and its rates in that time."""
        params = sum(p.numel() for p in model.parameters())
        return work.cells(shapes, params, median_ms, point.axes, self.device)

    def _doubts(
        self,
        point: Point,
        choices: Sequence[LayerChoice],
        proofs: Sequence[Evidence],
        error: float | None,
        overhead_pct: float | None,
    ) -> list[str]:
        """Return the flags about instruments, algorithms and the machine's sharing."""
        axes = point.axes
        precision = {"bf16": "bfloat16", "fp16": "float16"}.get(axes.get("amp", ""), axes["dtype"])
        found = {
            "hook_overhead": overhead_pct is not None and overhead_pct > HOOK_OVERHEAD_PCT,
            "algorithm_mismatch": any(call.mismatch for call in proofs),
            "fallback": any(choice.fallback for choice in choices),
            "shared_cpu": self.device.type == "cpu" and framework.shares_cpu(),
            "inaccurate": numerics.inaccurate(error, precision, tf32=axes["tf32"]),
        }
        return [name for name, raised in found.items() if raised]


def _telling_line(text: str, telling: Sequence[str]) -> str:
    """Return the line that says what is missing; a compiler's first one may be a heading."""
    lines = text.splitlines()
    return next((line for line in lines if any(words in line for words in telling)), lines[0])
