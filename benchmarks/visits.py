"""Stars of repeated visits on this machine, under a load that comes and goes.

::

    python -m benchmarks.visits [--rows 100] [--visits 3] [--only once,equal,planted]
                                [--folder FOLDER]

Real sweeps, submitted, measured and reported by the commands:

* **once**: as the next one, with one visit, to compare what it costs;
* **equal**: `auto` against a map of `auto`, which is the same work; each star is false;
* **planted**: a network with six products of matrices in place of five where its one small
  convolution is assigned `gemm`; each row without a star for `auto` is missed.

Meanwhile another process computes for 10 to 30 seconds, waits as long, and so on. Visits that are
not valid are measured again, twice at most, as the summary of a sweep advises (`retry --invalid`).
Prints rows, stars, flags, and the seconds of each sweep.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

import hpcsweep
from benchmarks.markdown import print_head, print_row

AGAIN: Final = 2
RUN: Final = (sys.executable, "-c", "from hpcsweep.cli import run; run()")
LOAD: Final = """
import random, time
while True:
    until = time.monotonic() + random.uniform(10, 30)
    while time.monotonic() < until:
        pass
    time.sleep(random.uniform(10, 30))
"""
SWEEP: Final = """
workload: inference
axes:
  model: [{models}]
  input_size: {{start: 48, stop: 160, num: {sizes}}}
  algorithm: [auto, {other}]
  num_threads: [1]
measure: {{repeats: {visits}, warmup: 3, iterations: 60, layers: false, numerics: false}}
"""
NETWORKS: Final = ("squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5")


class Planted(nn.Module):
    """Five products of matrices, or six where the convolution is assigned an algorithm."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.small = nn.Conv2d(3, 4, 1)
        self.work = nn.Linear(width, width, bias=False)
        self.register_buffer("start", torch.randn(512, width))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply as often as is planted."""
        assigned = getattr(self.small, "assigned", None)
        y = self.start
        for _ in range(6 if assigned is not None and assigned.algorithm == "gemm" else 5):
            y = torch.tanh(self.work(y))
        return self.small(x[..., :8, :8]).mean((2, 3)) + y.mean()


def main() -> None:
    """Measure both sweeps and print what their reports say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--only", default="once,equal,planted")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, _load_that_comes_and_goes():
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        print_head("sweep | rows | stars for auto | for the other | not repeated | flags | seconds")
        sizes = -(-options.rows // len(NETWORKS))
        equal = {"models": ", ".join(NETWORKS), "sizes": sizes, "other": "{default: auto}"}
        model = f"benchmarks.visits:{Planted.__name__}"
        planted = {"models": model, "sizes": options.rows, "other": "gemm"}
        sweeps = ("once", equal, 1), ("equal", equal, options.visits)
        for sweep, values, visits in (*sweeps, ("planted", planted, options.visits)):
            if sweep not in options.only.split(","):
                continue
            text = SWEEP.format(**values, visits=visits)
            print_row(sweep, *_measured(folder, sweep, text))


def _measured(folder: Path, sweep: str, text: str) -> list[Any]:
    """Measure a sweep and return what its report says."""
    (folder / f"{sweep}.yaml").write_text(text)
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    again = ["retry", sweep, "--invalid"]
    for command in (["submit", f"{sweep}.yaml", "--cluster", "local"], *[again] * AGAIN):
        done = subprocess.run(
            [*RUN, *command], cwd=folder, env=environment, capture_output=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()}")
    seconds = time.monotonic() - begin
    results = hpcsweep.load(sweep, results=folder / "results")
    flags = Counter(flag for cell in results.overall["flags"].dropna() for flag in cell.split(";"))
    rows = _report(folder, environment, sweep)
    auto = sum(row["fastest"] == "auto" for row in rows)
    other = sum(bool(row["fastest"]) for row in rows) - auto
    once = sum(bool(row["fastest_here"]) for row in rows)
    told = ", ".join(f"{flag} {number}" for flag, number in flags.most_common())
    return [len(rows), auto, other, once, told, f"{seconds:.0f}"]


def _report(folder: Path, environment: dict[str, str], sweep: str) -> list[dict[str, Any]]:
    command = [*RUN, "report", sweep, "--json"]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)["rows"]


@contextmanager
def _load_that_comes_and_goes() -> Iterator[None]:
    load = subprocess.Popen([sys.executable, "-c", LOAD])
    try:
        yield
    finally:
        load.kill()
        load.wait()


if __name__ == "__main__":
    main()
