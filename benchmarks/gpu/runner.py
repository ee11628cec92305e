"""Runs steps one after another, each in a process of its own that is ended at its limit.

A process of its own, since a profiler stays attached to the process that it was used in, and since
an error of the device takes the process along.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.gpu import ROOT
from benchmarks.gpu.record import COMPLETE, RUNNING, STOPPED, Record, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

WHEELS: Final = ROOT / ".gpu"
_GRACE_S: Final = 15.0  # a step ends by itself between two items; one item may take a while
_LAST_WORDS_S: Final = 3.0
_SUPPORT: Final = ROOT / "tests" / "support"
_SIMULATED: Final = "NVIDIA H100 80GB HBM3"
_PATIENCE: Final = 20  # times as long, since operators of a simulation are slow
_COMMANDS: Final = ("click", "filelock", "jinja2", "pydantic", "yaml")


@dataclass(frozen=True)
class Step:
    """A step: the seconds that it may take, what it finds out, and the modules that it needs."""

    seconds: float
    says: str
    needs: tuple[str, ...] = ()


# what tells most comes first
STEPS: Final[Mapping[str, Step]] = {
    "device": Step(15, "device, software, how long a delay is"),
    "points": Step(140, "the network with every algorithm, eager and as a graph; a point's cost"),
    "supervised": Step(60, "a sweep: submit, worker, telemetry, collect", _COMMANDS),
    "kernels": Step(90, "kernels of every algorithm, their times, claimed of every other one"),
    "plans": Step(70, "every plan of some convolutions: errors, notes, support", ("cudnn",)),
    "memory": Step(20, "a point that does not fit, and the next one"),
    "energy": Step(20, "the energy counter against integrated power", ("pynvml",)),
    "tests": Step(90, "the tests marked gpu", (*_COMMANDS, "pytest", "hypothesis")),
    "replayed": Step(40, "a graph's output against the eager one"),
    "tuning": Step(50, "autotune after auto, and in a process of its own"),
    "precision": Step(60, "errors in float32, TF32 and half types"),
    "stars": Step(45, "one call under two names, in three processes"),
    "sessions": Step(45, "what profiler sessions lose, and change"),
    "layers": Step(80, "every layer and algorithm, batched, in a bare loop"),
    "bandwidth": Step(10, "a cold read of the whole cache"),
    "caches": Step(15, "hot, rewritten and rotated caches"),
    "sizes": Step(25, "three image sizes"),
    "floors": Step(15, "what an event costs, and its resolution"),
    "queue": Step(15, "how many launches the driver holds"),
}


def run(out: Path, seconds: float, scratch: Path, *, simulated: bool) -> None:
    """Run the steps that are not complete, until `seconds` are over."""
    ends = time.monotonic() + seconds - _GRACE_S
    environ = environment(scratch, simulated=simulated)
    lacking = {name: missing(step.needs, environ) for name, step in STEPS.items()}
    for module in sorted({module for modules in lacking.values() for module in modules}):
        without = ", ".join(name for name, modules in lacking.items() if module in modules)
        print(f"no module {module}: its claims stay open ({without})", flush=True)
    for name, step in STEPS.items():
        if lacking[name]:
            note = f"needs {', '.join(lacking[name])}"
            Record(name, {}, state=STOPPED, note=note, folder=out).write()
            continue
        limit = min(step.seconds * (_PATIENCE if simulated else 1), ends - time.monotonic())
        if limit <= 0:
            print(f"{name}: not begun, the time is over", flush=True)
            continue
        told = {"step": name, "out": str(out), "seconds": limit, "simulated": simulated}
        command = (sys.executable, "-m", "benchmarks.gpu.step", json.dumps(told))
        _run_one(name, out, command, environ, limit)


def environment(scratch: Path, *, simulated: bool) -> dict[str, str]:
    """Return the environment of steps: with the wheels beside the source, or the simulation."""
    folders = [ROOT, ROOT / "src"]
    environ = {"KINETO_LOG_LEVEL": "99", **os.environ}
    for wheel in sorted(WHEELS.glob("*.whl")):
        zipfile.ZipFile(wheel).extractall(scratch / "wheels")
    if simulated:
        folders += [_SUPPORT / "simulatedsite", _SUPPORT]
        library = scratch / "libcudnn.so"
        source = _SUPPORT / "native" / "cudnn.c"
        words = ["-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-lm"]
        subprocess.run([shutil.which("cc") or "gcc", *words], check=True)
        environ["HPCSWEEP_CUDNN"] = str(library)
        program = scratch / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho {_SIMULATED}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        environ["PATH"] = os.pathsep.join([str(scratch), environ["PATH"]])
    environ["PYTHONPATH"] = os.pathsep.join(map(str, [*folders, scratch / "wheels"]))
    return environ


def missing(modules: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the modules that steps would not find."""
    path = [*environ["PYTHONPATH"].split(os.pathsep), *sys.path]
    finder = importlib.machinery.PathFinder
    return [module for module in modules if finder.find_spec(module, path) is None]


def _run_one(
    name: str, out: Path, command: Sequence[str], environ: Mapping[str, str], limit: float
) -> None:
    """Run one step, unless it is complete; say in its file how it ended if it did not itself."""
    print(f"\n{name}: {STEPS[name].says} (at most {limit:.0f} s)", flush=True)
    began = time.monotonic()
    ended = run_within(command, environ, limit + _GRACE_S - _LAST_WORDS_S)
    path = out / f"{name}.json"
    record = read(path) if path.exists() else Record(name, {}, folder=out)
    seconds = time.monotonic() - began
    record.seconds = max(record.seconds, round(seconds, 1))
    record.write()
    if record.state == RUNNING:
        record.end(STOPPED, f"ended with {ended} after {seconds:.0f} s; run it again to continue")
    if record.state != COMPLETE:
        print(f"{name}: {record.state}: {record.note}", flush=True)
    print(f"{name}: {seconds:.1f} s", flush=True)


def run_within(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> str:
    """Run a command in the source tree; end it when its time is over. Return how it ended."""
    with subprocess.Popen(command, cwd=ROOT, env=dict(environ)) as child:
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
