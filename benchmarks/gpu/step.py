"""One step in this process: ``python -m benchmarks.gpu.step JSON``; the runner calls it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu import environment, facts, kernels, layers, machine, points, proofs, support
from benchmarks.gpu.lab import Lab, Options, Stop, end
from benchmarks.gpu.record import COMPLETE, RUNNING, STOPPED, Record, read, reason
from hpcsweep.errors import ResultsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FUNCTIONS: Final[Mapping[str, Callable[[Lab], None]]] = {
    "device": facts.device,
    "controls": proofs.controls,
    "plans": proofs.plans,
    "tuning": points.tuning,
    "replayed": proofs.replayed,
    "precision": proofs.precision,
    "stars": proofs.stars,
    "energy": proofs.energy,
    "bandwidth": proofs.bandwidth,
    "kernels": kernels.durations,
    "layers": layers.batched,
    "floors": facts.floors,
    "caches": facts.cache_states,
    "sessions": kernels.sessions,
    "support": support.matrix,
    "points": points.network,
    "queue": facts.queue,
    "sizes": points.sizes,
}


def main(told: dict[str, Any]) -> None:
    """Run a step, or go on with what its file lacks."""
    began = time.monotonic()
    device = machine.choose()
    known, options = environment.collect(device.kind), Options(**told["options"])
    fresh = Record(told["step"], known, told["options"], folder=Path(told["out"]))
    record = fresh if told.get("again") else continued(fresh)
    if record.state == COMPLETE:
        print(f"{record.step}: complete already; --again measures it anew")
        return
    before, record.state, record.note = record.seconds, RUNNING, ""
    record.write()
    lab = Lab(device, record, options, began + told["seconds"])
    try:
        FUNCTIONS[record.step](lab)
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
    """Return the file that is there already, if it is of the same device, software and options."""
    assert fresh.folder is not None
    try:
        earlier = read(fresh.folder / f"{fresh.step}.json")
    except (ResultsError, TypeError):
        return fresh
    same = earlier.identity == fresh.identity and earlier.options == fresh.options
    return earlier if same else fresh


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
