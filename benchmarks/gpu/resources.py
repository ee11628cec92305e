"""Memory and energy: a point that does not fit, and the energy counter against power over time."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.gpu import environment, points
from hpcsweep.measure import model_builder
from hpcsweep.measure.bench_api import OutOfMemory
from hpcsweep.measure.checks import energy
from hpcsweep.measure.checks.telemetry import TelemetryCheck
from hpcsweep.measure.machine import rig
from hpcsweep.measure.machine.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.gpu.lab import Lab
    from hpcsweep.measure.bench_api import Bench

FULL: Final = "full"
FREE: Final = "free"
HEAVY: Final = "heavy batch"
_SPARED: Final = 24 << 20  # bytes that the point may have
_POWER_S: Final = 3.0
_NONE: Any = None  # the check looks at no network
_LOOK_S: Final = 0.02  # NVML's power changes no faster


def memory_and_energy(lab: Lab) -> None:
    """Measure a point on a GPU that is full, the same when it is not, and energy in two ways."""
    for key, find in lab.each({FULL: _full, FREE: _free, HEAVY: _energy}):
        with lab.entry(key) as facts:
            facts.update(find(lab))


def _full(lab: Lab) -> dict[str, Any]:
    bench = points.bench_of()  # it wants some memory of its own
    size = torch.cuda.mem_get_info()[0] - _SPARED
    held = torch.empty(size, dtype=torch.uint8, device="cuda")
    try:
        return _crowded(bench, lab)
    finally:
        del held
        torch.cuda.empty_cache()


def _free(lab: Lab) -> dict[str, Any]:
    return _crowded(points.bench_of(), lab)


def _crowded(bench: Bench, lab: Lab) -> dict[str, Any]:
    """Measure a point of many images; say whether it fits."""
    axes = {"batch_size": lab.options.crowd}
    try:
        row = bench.measure(points.point(lab.options, axes, points.QUICK)).row
    except OutOfMemory as error:
        return {"outcome": "out of memory", "peak": error.peak, "limit": error.limit}
    return {"outcome": "measured", "median_ms": row["median_ms"]}


def _energy(lab: Lab) -> dict[str, Any]:
    """Hold the energy counter against power that is integrated, under a heavy batch."""
    mine = Rig("cuda", environment.driver())
    looks = TelemetryCheck(mine)
    with torch.inference_mode():
        network = model_builder.build_float32(lab.options.model).cuda()
        image = torch.randn(lab.options.heavy, 3, lab.options.size, lab.options.size, device="cuda")

        def one_pass() -> None:
            network(image)
            torch.cuda.synchronize()

        one_pass()
        looks.settled(_NONE)
        cells = None
        if mine.driver is not None:
            cells = energy.energy_cells(
                energy.passes_with_counter(mine.driver, one_pass, mine.wait, 5)
            )
        facts = {"energy_j": cells and cells.energy_j, **integrated(one_pass, _power())}
        looks.look()
    return {**facts, "reasons": looks.after(_NONE, _NONE, _NONE).cells.throttle_reasons}


def _power() -> Callable[[], float]:
    """Return what asks NVML for the GPU's power, in watts."""
    import pynvml  # noqa: PLC0415 - only where there is an NVIDIA GPU

    pynvml.nvmlInit()
    number = rig.driver_index(torch.cuda.current_device())
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    return lambda: float(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)


def integrated(
    one_pass: Callable[[], object],
    watts: Callable[[], float],
    now: Callable[[], float] = time.monotonic,
) -> dict[str, float]:
    """Return joules of a pass by its power, while passes run for some seconds without a pause.

    Power is looked at between two passes, at most every 20 ms: the GPU never waits for a look.
    """
    passes = 0
    looks = [(now(), watts())]
    while looks[-1][0] - looks[0][0] < _POWER_S:
        one_pass()
        passes += 1
        if now() - looks[-1][0] >= _LOOK_S:
            looks.append((now(), watts()))
    return {"integrated_j": area(looks) / passes, "looks": float(len(looks))}


def area(looks: Iterable[tuple[float, float]]) -> float:
    """Return the integral of (time, power), by trapezoids."""
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(looks))
