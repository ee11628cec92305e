"""One step in this process: ``python -m benchmarks.gpu.step JSON``; the runner calls it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.gpu import environment, facts, kernels, layers, machine, points, product, proofs
from benchmarks.gpu.lab import SMALL, Lab, Options, Stop, end
from benchmarks.gpu.record import COMPLETE, RUNNING, STOPPED, Record, read, reason
from hpcsweep.errors import ResultsError
from hpcsweep.measure.machine import framework

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FUNCTIONS: Final[Mapping[str, Callable[[Lab], None]]] = {
    "device": facts.device,
    "points": points.network,
    "supervised": product.supervised,
    "kernels": kernels.durations,
    "plans": proofs.plans,
    "memory": product.memory,
    "energy": proofs.energy,
    "tests": product.tests,
    "replayed": proofs.replayed,
    "tuning": points.tuning,
    "precision": proofs.precision,
    "stars": proofs.stars,
    "sessions": kernels.sessions,
    "layers": layers.batched,
    "bandwidth": proofs.bandwidth,
    "caches": facts.cache_states,
    "sizes": points.sizes,
    "floors": facts.floors,
    "queue": facts.queue,
}


def main(told: dict[str, Any]) -> None:
    """Run a step, or go on with what its file lacks."""
    began = time.monotonic()
    name = told["step"]
    folder = Path(told["out"])
    if not torch.cuda.is_available():
        note = "this torch finds no GPU; --simulated tries the kit without one"
        Record(name, {}, state=STOPPED, note=note, folder=folder).write()
        return
    framework.detach_profiler()  # as the product's bench does
    known = environment.collect(simulated=told["simulated"])
    record = continued(Record(name, known, folder=folder))
    if record.state == COMPLETE:
        print(f"{name}: complete already")
        return
    before = record.seconds
    record.state = RUNNING
    record.note = ""
    record.write()
    options = SMALL if told["simulated"] else Options()
    lab = Lab(machine.Gpu(), record, options, began + told["seconds"])
    try:
        FUNCTIONS[name](lab)
    except Stop as stop:
        record.end(STOPPED, str(stop))
    except Exception as error:
        record.end(STOPPED, reason(error))
        raise
    else:
        end(lab)
    finally:
        record.seconds = round(before + time.monotonic() - began, 1)
        record.write()


def continued(fresh: Record) -> Record:
    """Return the file that is there already, if it is of the same device and software."""
    assert fresh.folder is not None
    try:
        earlier = read(fresh.folder / f"{fresh.step}.json")
    except (ResultsError, TypeError):
        return fresh
    return earlier if earlier.identity == fresh.identity else fresh


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
