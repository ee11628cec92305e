"""Runs steps one after another, each in a process of its own that is ended at its limit.

A process of its own, since a profiler stays attached to the process that it was used in, and since
an error of the device takes the process along.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.gpu import ROOT
from benchmarks.gpu.record import COMPLETE, RUNNING, STOPPED, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_GRACE_S: Final = 20.0  # a step ends by itself between two items; one item may take a while
_LAST_WORDS_S: Final = 5.0


@dataclass(frozen=True)
class Step:
    """A step: the seconds that it may take, and what it finds out. `step` has its function."""

    seconds: float
    says: str


STEPS: Final[Mapping[str, Step]] = {
    # the first call, at most ten minutes
    "device": Step(30, "device, software, how long a delay is"),
    "controls": Step(90, "each algorithm claimed of the kernels of every other one"),
    "plans": Step(150, "every plan of 20 convolutions: errors, notes, support told before"),
    "tuning": Step(60, "autotune after auto, and in a process of its own"),
    "replayed": Step(60, "a graph's output against the eager one"),
    "precision": Step(90, "errors in float32, TF32 and half types"),
    "stars": Step(60, "one call under two names, in three processes"),
    "energy": Step(30, "the energy counter against integrated power"),
    "bandwidth": Step(20, "a cold read of the whole cache"),
    # the second one, at most ten minutes
    "kernels": Step(90, "kernel names and CUPTI durations"),
    "layers": Step(150, "every layer and algorithm, batched, in a bare loop"),
    "floors": Step(40, "what an event costs, and its resolution"),
    "caches": Step(30, "hot, rewritten and rotated caches"),
    "sessions": Step(60, "what profiler sessions lose, and change"),
    "support": Step(60, "algorithm x type x layout, forward and gradients"),
    "points": Step(90, "the network with every algorithm"),
    "queue": Step(30, "how many launches the driver holds"),
    "sizes": Step(40, "three image sizes"),
}
FIRST: Final = tuple(STEPS)[:9]


def run(names: Sequence[str], out: Path, told: Mapping[str, object], seconds: float) -> int:
    """Run steps until `seconds` are over; return how many did not end as they should."""
    out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    bad = 0
    for name in names:
        left = ends - time.monotonic()
        if left <= _GRACE_S:
            print(f"{name}: not begun, the time is over", flush=True)
            bad += 1
            continue
        limit = min(STEPS[name].seconds, left - _GRACE_S)
        print(f"\n{name}: {STEPS[name].says} (at most {limit:.0f} s)", flush=True)
        bad += not _run_one(name, out, told, limit)
    return bad


def _run_one(name: str, out: Path, told: Mapping[str, object], limit: float) -> bool:
    """Run one step; return whether its file says that it is complete."""
    whole = json.dumps({"step": name, "out": str(out), "seconds": limit, **told})
    command = (sys.executable, "-m", "benchmarks.gpu.step", whole)
    began = time.monotonic()
    ended = run_within(command, limit + _GRACE_S)
    path = out / f"{name}.json"
    if not path.exists():
        print(f"{name}: ended with {ended} before it wrote anything", flush=True)
        return False
    record = read(path)
    if record.state == RUNNING:
        seconds = time.monotonic() - began
        record.end(STOPPED, f"ended with {ended} after {seconds:.0f} s; run it again to continue")
    return record.state == COMPLETE


def run_within(command: Sequence[str], seconds: float) -> str:
    """Run a command in the source tree; end it when its time is over. Return how it ended."""
    quiet = {"KINETO_LOG_LEVEL": "99", **os.environ}
    with subprocess.Popen(command, cwd=ROOT, env=quiet) as child:
        try:
            return f"status {child.wait(seconds)}"
        except subprocess.TimeoutExpired:
            child.terminate()
        except BaseException:
            child.kill()
            raise
        try:
            child.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            child.kill()
        return "its time over"
