"""One step in this process: ``python -m benchmarks.gpu.step JSON``; the runner calls it."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.gpu import (
    environment,
    facts,
    kernels,
    layers,
    machine,
    points,
    product,
    proofs,
    resources,
)
from benchmarks.gpu.lab import SMALL, Lab, Options, Stop, end
from benchmarks.gpu.record import RUNNING, STOPPED, Record, begun, reason
from hpcsweep.measure import switches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FUNCTIONS: Final[Mapping[str, Callable[[Lab], None]]] = {
    "device": facts.device,
    "points": points.network,
    "supervised": product.supervised,
    "kernels": kernels.durations,
    "sessions": kernels.sessions,
    "plans": proofs.plans,
    "resources": resources.memory_and_energy,
    "tests": product.tests,
    "replayed": proofs.replayed,
    "tuning": points.tuning,
    "precision": proofs.precision,
    "stars": proofs.stars,
    "layers": layers.timed,
    "sizes": points.sizes,
}


def identify(told: Mapping[str, Any]) -> None:
    """Write device and software to the file `to`, and load for the first time what steps load."""
    if not torch.cuda.is_available():
        sys.exit("this torch finds no GPU; --pretend tries the kit without one")
    switches.detach_profiler()
    known = environment.collect(pretended=told["pretended"])
    Path(told["to"]).write_text(json.dumps(known))
    environment.warm_up()


def main(told: Mapping[str, Any]) -> None:
    """Run a step, or go on with what its file lacks."""
    # whoever ends a step wants its last words, and that it ends what it started
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    name = told["step"]
    folder = Path(told["folder"])
    known = told["environment"]
    switches.detach_profiler()  # as the product's bench does
    record = begun(folder, name, known) or Record(name, known, folder=folder)
    before = record.seconds
    record.state = RUNNING
    record.note = ""
    record.write()
    options = SMALL if known["kind"] == environment.PRETENDED else Options()
    lab = Lab(machine.Gpu(), record, options, told["ends"])
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


if __name__ == "__main__":
    _told = json.loads(sys.argv[1])
    (main if "step" in _told else identify)(_told)
