"""What sending a sweep to Slurm costs, on a real Slurm on this machine (as root).

    python benchmarks/launchers.py [--chunks 10000] [--runs 3]

Many chunks are sent to a cluster with Slurm's own MaxArraySize of 1001; calls of sbatch are
counted where they happen. Then `hpcsweep status`, and the same submit again, which finds nothing to
send: while all wait, and when half of the chunks have their rows. Budgets: 12 calls for 10,000
chunks, 1 s of CPU for status, its children included. The lab's MaxJobCount is raised, since Slurm's
own (10,000) counts every task.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from hpcsweep.catalog.columns import axis_cells
from hpcsweep.store import chunk_file, folders, shards
from lab import PATH, Lab, Options, why_not

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = (sys.executable, "-c", "from hpcsweep.cli import run; run()")
SPEC = "workload: noop\naxes: {{model: [a], input_size: {{start: 1, stop: {n}, num: {n}}}}}\n"
SITE = f"""\
gpu: v100
partition: all
gres: gpu:1
time: 30
python: {sys.executable}
launcher: {{launcher}}
"""
ONE_EACH = "max_points_per_chunk: 1\n"
COUNTING = '#!/bin/sh\necho call >>"{count}"\nexec {sbatch} "$@"\n'


def main() -> None:
    """Start a cluster, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    os.environ["PATH"] = PATH
    with tempfile.TemporaryDirectory() as name:
        _on_a_lab(lambda: _scale(Path(name), options.chunks, options.runs))


def _on_a_lab(measure: Callable[[], None]) -> None:
    folder = Path(tempfile.gettempdir()) / f"hpcsweep-lab-{uuid4().hex[:12]}"
    lab = Lab(folder, Options(max_job_count=50_000)).start()
    os.environ.update(lab.environment)
    print(_where())
    try:
        measure()
    finally:
        lab.stop()


def _where() -> str:
    slurm = subprocess.run(["sbatch", "--version"], capture_output=True, text=True, check=True)
    names = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    model = names[0].partition(":")[2].strip() if names else platform.machine()
    return (
        f"{slurm.stdout.strip()}, Python {platform.python_version()}, {os.cpu_count()} CPUs "
        f"({model}), load {os.getloadavg()[0]:.1f}"
    )


def _scale(folder: Path, chunks: int, runs: int) -> None:
    for launcher in ("sbatch", "submitit"):
        desk = _desk(folder / f"scale-{launcher}", chunks)
        _site(desk, launcher, f"{ONE_EACH}sbatch_options: [--hold]\n")
        count = _count_calls(desk)
        cost = _cost(desk, "submit", "noop.yaml", "--cluster", launcher)
        calls = len(count.read_text().splitlines())
        print(
            f"{launcher}, {chunks:,} chunks: {calls} calls of sbatch (budget 12), "
            f"{cost.wall:.1f} s wall, {cost.cpu:.1f} s CPU"
        )
        _ask(desk, launcher, runs, "all wait")
        _measure_half(desk)
        _ask(desk, launcher, runs, "half have rows")
        subprocess.run(["scancel", "--user=root"], check=True)


def _ask(desk: Path, launcher: str, runs: int, when: str) -> None:
    """Time what is asked while the jobs are in the queue."""
    for command in (("status", "noop"), ("submit", "noop.yaml", "--cluster", launcher)):
        cpu = sorted(_cost(desk, *command).cpu for _ in range(runs))
        budget = ", budget 1" if command[0] == "status" else ""
        figures = f"{statistics.median(cpu):.2f} s CPU ({cpu[0]:.2f} to {cpu[-1]:.2f}{budget})"
        print(f"  {when}: {command[0]} {figures}")


def _measure_half(desk: Path) -> None:
    """Write the rows of every other chunk, as its job would."""
    (submission,) = folders.SweepDir(desk / "results" / "noop").submissions()
    for index in range(0, submission.read_manifest().chunks, 2):
        chunk = chunk_file.read_chunk(submission.chunks, index)
        shard = folders.ShardPath(submission.shards, chunk.index, 0)
        with shards.ShardWriter(shard) as writer:
            for point in chunk.points:
                row = {**axis_cells(point.axes), "point_id": point.point_id, "status": "ok"}
                writer.commit({**row, "median_ms": 1.5})
        shard.env.write_text('{"state": "done"}')


def _count_calls(desk: Path) -> Path:
    """Put an sbatch in front of the real one that counts its calls; return where."""
    count = desk / "calls"
    tools = desk / "bin"
    tools.mkdir()
    count.touch()
    real = shutil.which("sbatch", path=PATH)
    (tools / "sbatch").write_text(COUNTING.format(count=count, sbatch=real))
    (tools / "sbatch").chmod(0o755)
    os.environ["PATH"] = f"{tools}:{PATH}"
    return count


@dataclass(frozen=True)
class Cost:
    """Seconds of a whole process and of what it started."""

    wall: float
    cpu: float


def _cost(desk: Path, *arguments: str) -> Cost:
    begin = time.perf_counter()
    process = subprocess.Popen([*RUN, *arguments], cwd=desk, stdout=subprocess.DEVNULL)
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {process.returncode}")
    return Cost(time.perf_counter() - begin, used.ru_utime + used.ru_stime)


def _desk(folder: Path, points: int) -> Path:
    (folder / "cluster_profiles").mkdir(parents=True)
    (folder / "noop.yaml").write_text(SPEC.format(n=points))
    return folder


def _site(desk: Path, launcher: str, more: str) -> None:
    text = SITE.format(launcher=launcher) + more
    (desk / "cluster_profiles" / f"{launcher}.yaml").write_text(text)


if __name__ == "__main__":
    main()
