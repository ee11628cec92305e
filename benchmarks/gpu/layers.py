"""Every distinct convolution with every algorithm: batched, in turns, and in a bare loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu import convolutions
from benchmarks.gpu.machine import BATCH, bare_loop, in_turns, microseconds, resolution
from benchmarks.gpu.record import reason
from hpcsweep.measure.timing import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.gpu.lab import Lab
    from benchmarks.gpu.machine import Gpu

_BARE_LOOPS = 11


def batched(lab: Lab) -> None:
    """Time the batches of all algorithms of a convolution in turns, the default's twice."""
    convolutions.full_precision()
    with torch.inference_mode():
        for key, shape in lab.each(convolutions.kinds(lab.options)):
            with lab.entry(key) as facts:
                runs = dict(convolutions.calls(shape, "cuda"))
                facts.update(compare(lab.machine, runs, lab.options.iterations))


def compare(machine: Gpu, runs: Mapping[str, Callable[[], object]], passes: int) -> dict[str, Any]:
    """Return each call's time by the product's clock, and by a bare loop; or why it has none."""
    tried = {name: _batch(machine, run) for name, run in runs.items()}
    batches = {name: batch for name, batch in tried.items() if not isinstance(batch, str)}
    times = in_turns(machine, batches, passes)
    steps = [step for found in times.values() if (step := resolution(found))]
    return {
        "batched": {name: microseconds(found, BATCH) for name, found in times.items()},
        "bare_us": {name: _bare(machine, runs[name]) for name in batches},
        "resolution_us": 1000 * min(steps, default=0.0) / BATCH,
        "failed": {name: why for name, why in tried.items() if isinstance(why, str)},
    }


def _batch(machine: Gpu, run: Callable[[], object]) -> Callable[[], object] | str:
    """Return a batch of calls, or why there is none."""
    try:
        run()
        return machine.batch(run, BATCH)
    except Exception as error:  # noqa: BLE001 - told, and the others are timed
        return reason(error)


def _bare(machine: Gpu, run: Callable[[], object]) -> float:
    return 1000 * stats.median(bare_loop(machine.runtime, run, BATCH, _BARE_LOOPS))
