"""Every distinct convolution with every algorithm, as a stream of calls and as a graph of them.

Each is timed by the product's clock and by two bare events, so that a stream is held against a
stream, and a graph against a graph.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.gpu import convolutions
from benchmarks.gpu.machine import BATCH, bare_loop, in_turns, microseconds, resolution
from benchmarks.gpu.record import reason
from hpcsweep.measure.timing import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.gpu.lab import Lab
    from benchmarks.gpu.machine import Gpu

    Runs = Mapping[str, Callable[[], object]]

_FEW: Final = 11  # passes of what only the clocks are compared by


def timed(lab: Lab) -> None:
    """Time the calls of all algorithms of a convolution in turns, the default's twice."""
    convolutions.full_precision()
    with torch.inference_mode():
        for key, shape in lab.each(convolutions.kinds(lab.options)):
            with lab.entry(key) as facts:
                runs = dict(convolutions.calls(shape, "cuda"))
                facts.update(compare(lab.machine, runs, lab.options.iterations))


def compare(machine: Gpu, runs: Runs, passes: int) -> dict[str, Any]:
    """Return the time of each call by either clock, in a graph and in a stream; or why not."""
    tried = {name: _captured(machine, run) for name, run in runs.items()}
    graphs = {name: graph for name, graph in tried.items() if not isinstance(graph, str)}
    streams = {name: partial(_often, runs[name]) for name in graphs}
    times = in_turns(machine, graphs, passes)
    steps = [step for found in times.values() if (step := resolution(found))]
    return {
        "graph": {name: microseconds(found, BATCH) for name, found in times.items()},
        "graph_bare_us": _bare(machine, graphs),
        "stream": {
            name: microseconds(found, BATCH)
            for name, found in in_turns(machine, streams, min(passes, _FEW)).items()
        },
        "stream_bare_us": _bare(machine, streams),
        "resolution_us": 1000 * min(steps, default=0.0) / BATCH,
        "failed": {name: why for name, why in tried.items() if isinstance(why, str)},
    }


def _captured(machine: Gpu, run: Callable[[], object]) -> Callable[[], object] | str:
    """Return a graph of calls, or why there is none."""
    try:
        run()
        return machine.batch(run, BATCH)
    except Exception as error:  # noqa: BLE001 - told, and the others are timed
        return reason(error)


def _often(run: Callable[[], object]) -> None:
    for _ in range(BATCH):
        run()


def _bare(machine: Gpu, batches: Runs) -> dict[str, float]:
    """Return microseconds per call between two events, without a clock of the product."""
    found = {}
    for name, batch in batches.items():
        times = bare_loop(machine.runtime, batch, 1, _FEW)
        found[name] = 1000 * stats.median(times) / BATCH
    return found
