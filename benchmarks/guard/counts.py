"""What fixed runs cost in counts that do not depend on the machine's mood, beside their budgets.

::

    python -m benchmarks.guard.counts [--write]

For each run: modules imported, Python and C functions called, files of the run's folder opened, and
bytes written (children included). A test fails where a count is a tenth above its budget; `--write`
makes today's counts the budgets. They hold for one version of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.markdown import print_head, print_row
from hpcsweep.version import revision

BUDGETS: Final = Path(__file__).with_name("budgets.json")
ALLOWED: Final = 1.1
Counts = Mapping[str, Mapping[str, int]]  # by run and kind
KINDS: Final = ("modules", "calls", "files", "bytes")
# They stand in one folder and run in this order: each finds what those before it left.
RUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "expand 1,000 points": ("expand", "large.yaml", "--json"),
    "estimate of 1,000 points": ("estimate", "large.yaml", "--cluster", "local"),
    "submit and measure 20 points": ("submit", "small.yaml", "--cluster", "local", "--workers=1"),
    "status of 20 points": ("status", "--json"),
    "collect of 20 points": ("collect", "small"),
    "report of 20 points": ("report", "small", "--json"),
}
SWEEP: Final = """
workload: noop
axes: {model: [a, b], input_size: {start: 1, stop: %d, step: 1}}
"""
COUNT: Final = """
import atexit, json, os, sys
folder, calls, files = os.getcwd(), 0, 0

def opened(event, arguments):
    global files
    if event == "open" and isinstance(arguments[0], str):
        files += os.path.abspath(arguments[0]).startswith(folder)

def called(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")

def tell():
    sys.setprofile(None)
    with open("/proc/self/io") as file:
        io = dict(line.split(": ") for line in file)
    counts = {"modules": len(sys.modules), "calls": calls, "files": files}
    with open(os.environ["COUNTS"], "w") as file:
        json.dump({**counts, "bytes": int(io["wchar"])}, file)

atexit.register(tell)
sys.addaudithook(opened)
from hpcsweep.cli import main, run  # `main` imports the program, which is not what is counted
sys.setprofile(called)
run()
"""


def counted() -> dict[str, dict[str, int]]:
    """Return the counts of each run."""
    with tempfile.TemporaryDirectory() as name, tempfile.NamedTemporaryFile() as told:
        folder = Path(name)
        (folder / "large.yaml").write_text(SWEEP % 500)
        (folder / "small.yaml").write_text(SWEEP % 10)
        environment = {
            **os.environ,
            "COUNTS": told.name,
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "80",
        }
        revision()  # after an edit git writes its index anew, once: no cost of a run
        found = {}
        for run, arguments in RUNS.items():
            subprocess.run(
                [sys.executable, "-c", COUNT, *arguments],
                cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            found[run] = json.loads(Path(told.name).read_text())
    return found


def budgets() -> dict[str, Any]:
    """Return the budgets of the runs, and the Python that they hold for."""
    return json.loads(BUDGETS.read_text())


def above(counts: Counts, most: Counts) -> list[str]:
    """Return what is more than a tenth above its budget."""
    return [
        f"{run}: {counts[run][kind]:,} {kind}, budget {most[run][kind]:,}"
        for run in RUNS
        for kind in KINDS
        if counts[run][kind] > ALLOWED * most[run][kind]
    ]


def python() -> str:
    """Return the version of Python that counts belong to."""
    return ".".join(platform.python_version_tuple()[:2])


def main() -> int:
    """Print the counts beside the budgets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="make these counts the budgets")
    options = parser.parse_args()
    counts = counted()
    if options.write:
        record = {"python": python(), "runs": counts}
        BUDGETS.write_text(json.dumps(record, indent=1) + "\n")
    most = budgets()["runs"]
    print_head("run | " + " | ".join(f"{kind} (budget)" for kind in KINDS))
    for run, found in counts.items():
        print_row(run, *(f"{found[kind]:,} ({most[run][kind]:,})" for kind in KINDS))
    return int(bool(above(counts, most)))


if __name__ == "__main__":
    sys.exit(main())
