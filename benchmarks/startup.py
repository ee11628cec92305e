"""How long hpcsweep takes to answer: help, status, expand; and 200 no-op points, start to table.

    python benchmarks/startup.py [--runs 9]

Whole processes, wall seconds, medians with minimum and maximum. The commands take turns, so that a
machine that drifts drifts for all; `python -c pass` is the floor, and the A/A pair (the same
command under two names) says how small a difference can be believed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = (sys.executable, "-c", "from hpcsweep.cli import run; run()")
NOOP = """\
workload: noop
axes:
  model: [a, b]
  input_size: {start: 1, stop: 100, num: 100}
"""
BUDGETS = {"--help": 0.150, "submit + collect, 200 no-op points": 0.700}


def main() -> None:
    """Time every command in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "noop.yaml").write_text(NOOP)
        _run(folder, "submit", "noop.yaml", "--cluster", "local", "--workers", "2")
        for number in range(runs):
            for label, call in _calls(folder, number).items():
                begin = time.perf_counter()
                call()
                times.setdefault(label, []).append(time.perf_counter() - begin)
    print(f"{'':38} {'median':>8} {'min':>8} {'max':>8}  budget")
    for label, values in times.items():
        budget = f"{BUDGETS[label] * 1000:.0f} ms" if label in BUDGETS else ""
        figures = (statistics.median(values), min(values), max(values))
        print(f"{label:38} " + " ".join(f"{1000 * v:5.0f} ms" for v in figures) + f"  {budget}")


def _calls(folder: Path, number: int) -> dict[str, object]:
    return {
        "python -c pass": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        "--help": lambda: _run(folder, "--help"),
        "--help, again (A/A)": lambda: _run(folder, "--help"),
        "status": lambda: _run(folder, "status"),
        "expand": lambda: _run(folder, "expand", "noop.yaml"),
        "submit + collect, 200 no-op points": lambda: _sweep(folder, number),
    }


def _sweep(folder: Path, number: int) -> None:
    results = f"results-{number}"
    submit = ("submit", "noop.yaml", "--cluster", "local", "--workers", "2")
    _run(folder, "--results", results, *submit)
    _run(folder, "--results", results, "collect", "noop")
    rows = (folder / results / "noop" / "overall.csv").read_text().count(",ok,")
    if rows != 200:
        raise SystemExit(f"{rows} rows instead of 200")


def _run(folder: Path, *arguments: str) -> None:
    subprocess.run([*RUN, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
