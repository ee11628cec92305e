"""Runs steps one after another, each in a process of its own that is ended at its limit.

A process of its own, since a profiler stays attached to the process that it was used in, and since
an error of the device takes the process along. What is complete begins no process.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import sys
import time
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu import ROOT, processes
from benchmarks.gpu.processes import LAST_WORDS_S, SIGNAL
from benchmarks.gpu.record import COMPLETE, RUNNING, STOPPED, Record, begun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

WHEELS: Final = ROOT / ".gpu"  # `make gpu-wheels` fills it
_GRACE_S: Final = 12.0  # a step ends by itself between two items; one item may take a while
_START_S: Final = 10.0  # a step that has less does not get far
_IDENTITY_S: Final = 120.0  # torch, cuDNN and CUPTI from a cold disk
_SUPPORT: Final = ROOT / "tests" / "support"
_PATIENCE: Final = 6  # times as long on a pretend GPU: such a machine has few cores, and is busy
_COMMANDS: Final = ("click", "filelock", "jinja2", "pydantic", "yaml")


@dataclass(frozen=True)
class Step:
    """A step: the seconds that it may take, what it finds out, and the modules that it needs."""

    seconds: float
    says: str
    needs: tuple[str, ...] = ()


# What tells most comes first. The seconds include the start of the process.
STEPS: Final[Mapping[str, Step]] = {
    "device": Step(25, "delays, event floors, the driver's queue, bandwidth, caches"),
    "points": Step(110, "the network with every algorithm, eager and as a graph; a point's cost"),
    "supervised": Step(45, "a sweep: submit, worker, telemetry, collect", _COMMANDS),
    "kernels": Step(60, "kernels of every algorithm, their times, claimed of every other one"),
    "sessions": Step(45, "what profiler sessions lose, and change"),
    "plans": Step(45, "plans of some convolutions: errors, notes, support", ("cudnn",)),
    "resources": Step(30, "a point that does not fit, and the next one; energy twice"),
    "tests": Step(65, "the tests marked gpu", (*_COMMANDS, "pytest", "hypothesis")),
    "replayed": Step(25, "a graph's output against the eager one"),
    "tuning": Step(40, "autotune after auto, and in a process of its own"),
    "precision": Step(55, "errors in float32, TF32 and half types"),
    "stars": Step(35, "one call under two names, in three processes"),
    "layers": Step(70, "every layer and algorithm, as a stream and as a graph, by two clocks"),
    "sizes": Step(25, "three image sizes"),
}


class NoDevice(Exception):
    """There is no GPU to measure; why has been printed."""


def run(
    out: Path,
    ends: float,
    scratch: Path,
    *,
    pretended: bool,
    after: Callable[[Path], object],
) -> None:
    """Run steps until a moment by `time.monotonic`: those that never began, then incomplete ones.

    `after` is called with the device's folder when a step has ended.

    Raises:
        NoDevice: torch finds no GPU.
    """
    ends -= _GRACE_S
    environ = environment(scratch, pretended=pretended)
    known = identity(scratch, environ, pretended=pretended)
    folder = out / folder_name(known)
    folder.mkdir(parents=True, exist_ok=True)
    able = [name for name in STEPS if _has_its_modules(name, folder, known, environ)]
    new = [name for name in able if begun(folder, name, known) is None]
    for name in (*new, *able):
        record = begun(folder, name, known)
        if record and record.state == COMPLETE:
            continue
        patience = _PATIENCE if pretended else 1
        limit = min(patience * STEPS[name].seconds, ends - time.monotonic())
        if limit <= _START_S:
            print(f"\nthe time is over before {name}", flush=True)
            break
        ended = _run_one(name, folder, known, environ, limit)
        limit = min(limit, ends - time.monotonic())
        if ended.startswith(SIGNAL) and limit > _START_S:
            _run_one(name, folder, known, {**environ, "TEARDOWN_CUPTI": "0"}, limit, ended)
        after(folder)
    after(folder)


def folder_name(known: Mapping[str, Any]) -> str:
    """Return the folder of a device's figures: those of two devices never meet."""
    words = known["name"] if known["kind"] == "cuda" else f"{known['kind']} {known['name']}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def identity(scratch: Path, environ: Mapping[str, str], *, pretended: bool) -> dict[str, Any]:
    """Return device and software, asked once for all steps.

    Raises:
        NoDevice: torch finds no GPU.
    """
    path = scratch / "identity.json"
    ended = processes.run(_python({"to": str(path), "pretended": pretended}), _IDENTITY_S, environ)
    if not path.exists():
        raise NoDevice(f"the device was not found: {ended}")
    known: dict[str, Any] = json.loads(path.read_text())
    return known


def _python(told: Mapping[str, Any]) -> Sequence[str]:
    return sys.executable, "-m", "benchmarks.gpu.step", json.dumps(told)


def environment(scratch: Path, *, pretended: bool) -> dict[str, str]:
    """Return the environment of steps, with the wheels beside the source, or on a pretend GPU.

    Raises:
        NoDevice: the pretend GPU cannot be built.
    """
    folders = [ROOT, ROOT / "src"]
    environ = {"KINETO_LOG_LEVEL": "99", **os.environ}
    _unpack(scratch / "wheels")
    if pretended:
        sys.path.append(str(_SUPPORT))
        import pretendgpu  # noqa: PLC0415 - of the tests, and only for this

        if why := pretendgpu.missing():
            raise NoDevice(f"no pretend GPU: {why}")
        # the kit is tried, not the arithmetic: a host takes a thousand times as long as a GPU
        environ = {**environ, **pretendgpu.built().environment()}
        folders.append(_SUPPORT)
    environ["PYTHONPATH"] = os.pathsep.join(map(str, [*folders, scratch / "wheels"]))
    return environ


def _unpack(folder: Path) -> None:
    """Unpack the wheels of which this Python has nothing: they may be of another version."""
    for path in sorted(WHEELS.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            tops = {name.partition("/")[0].removesuffix(".py") for name in wheel.namelist()}
            modules = [top for top in tops if top.isidentifier()]
            if missing(modules, {"PYTHONPATH": ""}) == modules:
                wheel.extractall(folder)


def _has_its_modules(
    name: str, folder: Path, known: Mapping[str, Any], environ: Mapping[str, str]
) -> bool:
    """Say whether a step finds the modules that it needs; else say in its file what it lacks."""
    lacking = missing(STEPS[name].needs, environ)
    if lacking and begun(folder, name, known) is None:
        note = f"needs {', '.join(lacking)}"
        print(f"{name}: {note}: its claims stay open", flush=True)
        Record(name, {}, state=STOPPED, note=note, folder=folder).write()
    return not lacking


def missing(modules: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the modules that steps would not find."""
    path = [*environ["PYTHONPATH"].split(os.pathsep), *sys.path]
    finder = importlib.machinery.PathFinder
    return [module for module in modules if finder.find_spec(module, path) is None]


def _run_one(  # noqa: PLR0913, PLR0917 - a process, its limits, and why it runs once more
    name: str,
    folder: Path,
    known: Mapping[str, Any],
    environ: Mapping[str, str],
    limit: float,
    before: str = "",
) -> str:
    """Run one step; say in its file how it ended if it did not itself.

    `before`: how it ended with the profiler leaving the process, so that it stays there this time.
    """
    print(f"\n{name}: {STEPS[name].says} (at most {limit:.0f} s)", flush=True)
    began = time.monotonic()
    told = {"step": name, "folder": str(folder), "environment": known, "ends": began + limit}
    ended = processes.run(_python(told), limit + _GRACE_S - LAST_WORDS_S, environ)
    seconds = time.monotonic() - began
    record = begun(folder, name, known) or Record(name, dict(known), folder=folder)
    record.seconds = max(record.seconds, round(seconds, 1))
    if before:
        record.remarks.append(f"ended with {before}, then ran with TEARDOWN_CUPTI=0")
    record.write()
    if record.state == RUNNING:
        record.end(STOPPED, f"ended with {ended} after {seconds:.0f} s; run it again to continue")
    if record.state != COMPLETE:
        print(f"{name}: {record.state}: {record.note}", flush=True)
    print(f"{name}: {seconds:.1f} s", flush=True)
    return ended
