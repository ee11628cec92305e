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
MOST_S: Final = 480.0


@dataclass(frozen=True)
class Step:
    """A step: the seconds that it may take, and what it finds out. `step` has its function."""

    seconds: float
    says: str


STEPS: Final[Mapping[str, Step]] = {
    "device": Step(60, "device, software, how long a delay is"),
    "floors": Step(180, "what an event costs, and its resolution"),
    "queue": Step(90, "how many launches the driver holds"),
    "support": Step(300, "algorithm x type x layout, forward and gradients"),
    "kernels": Step(300, "kernel names and CUPTI durations"),
    "sessions": Step(300, "what profiler sessions lose, and change"),
    "caches": Step(120, "hot, rewritten and rotated caches"),
    "tuning": Step(180, "autotune after auto, and in a process of its own"),
    "layers": Step(MOST_S - _GRACE_S, "every layer and algorithm, batched"),
    "points": Step(MOST_S - _GRACE_S, "the network with every algorithm"),
    "sizes": Step(MOST_S - _GRACE_S, "a sweep of 100 image sizes"),
}


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
