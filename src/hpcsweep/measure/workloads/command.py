"""Points that run a command of the user's own. Standard library only.

The command belongs to the process group of the point's worker, which ends with the point. Its
output goes to the attempt's log, where its results are read.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NoReturn

from hpcsweep import environment
from hpcsweep.catalog.columns import FOREIGN, cell, kinds
from hpcsweep.catalog.record import row_of
from hpcsweep.catalog.row_records import OutcomeCells
from hpcsweep.measure.bench_api import Measurement, OutOfMemory, Progress
from hpcsweep.measure.workloads.noop import Noop, once
from hpcsweep.point import Point
from hpcsweep.spec import template
from hpcsweep.text import number_in

# Bytes of the output that are read, from its end: results are there, and a log may have gigabytes.
_MOST_OUTPUT: Final = 1 << 24
# Characters of a last line: in a cell, and on the screen.
_MOST_WORDS: Final = 400
# What is no column would break a table, a filter or a template.
_NAME: Final = re.compile(r"\w[\w .:/%()@-]*")
# What a shell says of a program that was killed.
_KILLED: Final = 128 + signal.SIGKILL
# last words of torch, C++ and Python, CUDA and HIP, JAX, and Slurm
_NO_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|std::bad_alloc|\bMemoryError\b"
    r"|\w*ALLOC_FAILED|cannot allocate memory|RESOURCE_EXHAUSTED|oom[-_ ]kill",
    re.IGNORECASE,
)
_TRACEBACK: Final = "Traceback (most recent call last)"
_OF_CHILD: Final = re.compile(r"ChildFailedError|CalledProcessError")  # of launchers


class NoResults(Exception):
    """The command ended well, but did not say its results as the sweep expects them."""


class Command(Noop):
    """The `command` workload: runs a program, and takes what it says for results.

    The times of a row are those of the whole run; nothing proves what the program says.
    """

    def __init__(self, run: Mapping[str, Any]) -> None:
        super().__init__()
        self._folder = Path(run["search_path"][0])  # of the sweep file

    def environment(self) -> dict[str, Any]:
        """Return the provenance that needs no torch; nobody looks at the device."""
        return {**super().environment(), "row": {}}

    def measure(
        self,
        point: Point,
        tries: int = 0,  # noqa: ARG002 - the no-op's
        progress: Progress | None = None,  # noqa: ARG002 - it has no checks
    ) -> Measurement:
        """Run the command once; where it fails, this process ends as it did.

        Raises:
            OutOfMemory: its last words, or the kernel, say so.
            NoResults: it did not say its results.
        """
        results = point.measure.get("results", {})
        run = point.measure["run"]
        out = Path(os.environ[environment.ARTIFACTS], point.point_id)
        out.mkdir(exist_ok=True)
        values = {**point.axes, template.OUT: str(out)}
        words = template.words(run, values, shell=point.measure.get("shell", False))
        named = template.results_file(results)
        file = self._folder / template.filled(named, values) if named else None
        before = _state(file)
        killed = _kernel_kills()
        log = os.fstat(1).st_size
        began = time.perf_counter_ns()
        code = subprocess.run(
            words,
            cwd=self._folder,
            env={**os.environ, "PATH": environment.programs()},
            stdin=subprocess.DEVNULL,
            preexec_fn=_heed_signals,
            check=False,
        ).returncode
        ms = (time.perf_counter_ns() - began) / 1e6
        text = _output(log)
        with suppress(OSError):
            out.rmdir()  # nothing is in it
        if code:
            _fail(code, text, by_kernel=_kernel_kills() > killed)
        if file and _state(file) in {before, None}:
            raise NoResults(f"{file} was not written")
        said = _results(results, text, file)
        outcome = OutcomeCells(
            flags=FOREIGN,
            valid=True,
            own_results=_own(said, point),
            artifacts=point.point_id if out.exists() else None,
        )
        return Measurement(row_of(once(ms), outcome), [], [ms], timed_s=ms / 1000)


def _heed_signals() -> None:
    """Let a command end by what its worker ignores, since what is ignored would stay so."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def _state(file: Path | None) -> tuple[int, ...] | None:
    """Return what changes if a file is written; None without one."""
    with suppress(OSError):
        if file:
            found = file.stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
    return None


def _kernel_kills() -> int:
    """Return how many processes of this control group the kernel killed for want of memory."""
    with suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
        events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text().split()
        return int(events[events.index("oom_kill") + 1])
    return 0


def _output(begin: int) -> str:
    """Return what was written into the log since its size was `begin`."""
    with Path(os.environ[environment.LOG]).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(begin, end - _MOST_OUTPUT))
        return file.read().decode(errors="replace")


def _fail(code: int, text: str, *, by_kernel: bool) -> NoReturn:
    """End this process as the command did, so that the supervisor tells how, with last words."""
    _, _, last = text.rpartition(_TRACEBACK)  # before it, the program may have mended a lack
    # such a launcher ends with a traceback of its own, after the one that matters
    last = text if _OF_CHILD.search(last) else last
    for line in reversed(last.splitlines()):
        if _NO_MEMORY.search(line):
            raise OutOfMemory(None, None, line.strip()[:_MOST_WORDS])
    code = -signal.SIGKILL if code == _KILLED else code
    if code == -signal.SIGKILL and by_kernel:
        raise OutOfMemory(None, None, "the kernel killed the command")
    sys.stdout.flush()
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _results(wanted: Mapping[str, Any], text: str, file: Path | None) -> Mapping[str, Any]:
    """Return what the command said, by its own names, or by those that the sweep gives."""
    said = _said(wanted, text, file)
    columns = wanted.get("columns")
    if not columns:
        return said
    missing = [name for name in columns.values() if name not in said]
    if missing:
        raise NoResults(f"there is no {', '.join(missing)} among {', '.join(said)}")
    return {column: said[name] for column, name in columns.items()}


def _said(wanted: Mapping[str, Any], text: str, file: Path | None) -> Mapping[str, Any]:
    pattern = wanted.get("pattern")
    if pattern:
        matches = [*re.finditer(pattern, text, re.MULTILINE)]
        if not matches:
            raise NoResults(f"nothing in its output matches {pattern}")
        return _numbers(matches[-1].groupdict())
    if file is None:
        return _last_object(text) if "json" in wanted else {}
    with file.open(encoding="utf-8-sig", newline="") as lines:  # Excel and PowerShell mark UTF-8
        if "csv" in wanted:
            rows = csv.reader(lines)
            names = [name.strip() for name in next(rows, ())]
            last: list[str] = []
            for cells in rows:
                last = cells or last
            row = _numbers(dict(zip_longest(names, last))) if last else {}
        else:
            row = json.load(lines)
    if not row or not isinstance(row, dict):
        raise NoResults(f"{file} has no row" if "csv" in wanted else f"{file} is no JSON object")
    if None in row:
        raise NoResults(f"the last row of {file} has more cells than the header")
    return {str(name): value for name, value in row.items()}


def _numbers(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return texts of a program as what they say: numbers, or the texts themselves."""
    said: dict[str, Any] = {}
    for name, text in texts.items():
        stripped = text and text.strip()
        number = number_in(stripped) if stripped is not None else None
        said[name] = stripped if number is None else number
    return said


def _last_object(text: str) -> dict[str, Any]:
    for line in reversed(re.split(r"[\r\n]+", text)):
        if line.lstrip().startswith("{"):
            with suppress(ValueError, RecursionError):
                found: dict[str, Any] = json.loads(line)
                return found
    raise NoResults("no line of its output is a JSON object")


def _own(said: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Return the results without axes that it repeats; `NoResults` for names that are taken."""
    own = {}
    taken = []
    for name, value in said.items():
        if name in point.axes and cell(value) == cell(point.axes[name]):
            continue
        if not _NAME.fullmatch(name):
            raise NoResults(f"{name!r:.60} cannot be the name of a column")
        if name in {*kinds(), *point.axes}:
            taken.append(name)
        own[name] = value
    if taken:
        remedy = f"`results: {{columns: {{NAME: {taken[0]}}}}}` in the sweep takes it by another"
        raise NoResults(f"{', '.join(taken)} is a column already; {remedy}")
    return own
