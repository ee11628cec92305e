"""What sending a sweep to Slurm costs, on a real Slurm on this machine (as root).

    python benchmarks/launchers.py [--chunks 10000] [--points 100] [--runs 3] [--only scale|table]

scale: many chunks are sent to a cluster with Slurm's own MaxArraySize of 1001; calls of sbatch are
counted where they happen. Then `hpcsweep status`, and the same submit again, which finds nothing to
send: while all wait, and when half of the chunks have their rows. Budgets: 12 calls for 10,000
chunks, 1 s of CPU for status, its children included. The lab's MaxJobCount is raised, since Slurm's
own (10,000) counts every task.

table: no-op points, from the command to the last row, by every way to send them; wall seconds, the
median of interleaved runs. Every task asks for one of the lab's six GPUs, and the lab schedules at
once: what is compared is the work per task, not a site's waiting times.
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
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import chunk_file, folders, shards
from hpcsweep.submit import prepare, request
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
PLAIN = """\
#!/bin/bash
#SBATCH --partition=all --gres=gpu:1 --time=30 --output=/dev/null
{python} -m hpcsweep.node.supervisor "{submission}" "$SLURM_ARRAY_TASK_ID"
"""
# One job per point, as submitit's own examples do it.
BY_HAND = """\
import csv, sys
import submitit

def measure(size):
    return [size, "ok", 0.0]

executor = submitit.AutoExecutor(folder="log")
executor.update_parameters(timeout_min=30, slurm_partition="all", slurm_gres="gpu:1")
jobs = executor.map_array(measure, range(int(sys.argv[1])))
with open("rows.csv", "w", newline="") as file:
    csv.writer(file).writerows(job.result() for job in jobs)
"""


def main() -> None:
    """Start a cluster, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=("scale", "table"))
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    os.environ["PATH"] = PATH
    with tempfile.TemporaryDirectory() as name:
        if options.only != "table":
            _on_a_lab(lambda: _scale(Path(name), options.chunks, options.runs))
        if options.only != "scale":
            _on_a_lab(lambda: _table(Path(name), options.points, options.runs))


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


# ---- scale


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


# ---- table


def _table(folder: Path, points: int, runs: int) -> None:
    os.environ["PATH"] = PATH
    ways: dict[str, Callable[[Path], Callable[[], None]]] = {
        "plain sbatch array, a task per point": lambda desk: _plain(desk, points),
        "hpcsweep, sbatch, packed": lambda desk: _hpcsweep(desk, points, "sbatch", ""),
        "hpcsweep, sbatch, a chunk per point": lambda desk: _hpcsweep(
            desk, points, "sbatch", ONE_EACH
        ),
        "hpcsweep, submitit, packed": lambda desk: _hpcsweep(desk, points, "submitit", ""),
        "hpcsweep, submitit, a chunk per point": lambda desk: _hpcsweep(
            desk, points, "submitit", ONE_EACH
        ),
        "submitit by hand, a job per point": lambda desk: _by_hand(desk, points),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(runs):
        for way, make in ways.items():
            desk = _desk(folder / f"{number}-{len(times[way])}-{uuid4().hex[:6]}", points)
            measure = make(desk)
            begin = time.perf_counter()
            measure()
            times[way].append(time.perf_counter() - begin)
    print(
        f"{points} no-op points, {runs} interleaved runs{'':14} median s      min      max  s/point"
    )
    for way, values in times.items():
        middle = statistics.median(values)
        figures = f"{middle:8.2f} {min(values):8.2f} {max(values):8.2f} {middle / points:8.4f}"
        print(f"{way:45} {figures}")


def _hpcsweep(desk: Path, points: int, launcher: str, more: str) -> Callable[[], None]:
    _site(desk, launcher, more)

    def measure() -> None:
        command = [*RUN, "submit", "noop.yaml", "--cluster", launcher]
        subprocess.run(command, cwd=desk, check=True, stdout=subprocess.DEVNULL)
        _wait_for_rows(desk, points)

    return measure


def _plain(desk: Path, points: int) -> Callable[[], None]:
    """Return what sends the same command as a script of four lines; the folder is made before."""
    _site(desk, "sbatch", ONE_EACH)
    asked = request.make(
        sweep_file.load(desk / "noop.yaml"), profile.load(desk / "cluster_profiles" / "sbatch.yaml")
    )
    submission = prepare.prepare(folders.SweepDir(desk / "results" / "noop"), asked).submission
    assert submission
    script = desk / "plain.sh"
    script.write_text(PLAIN.format(python=sys.executable, submission=submission.path))

    def measure() -> None:
        command = ["sbatch", f"--array=0-{points - 1}", str(script)]
        subprocess.run(command, cwd=desk, check=True, stdout=subprocess.DEVNULL)
        _wait_for_rows(desk, points)

    return measure


def _by_hand(desk: Path, points: int) -> Callable[[], None]:
    (desk / "by_hand.py").write_text(BY_HAND)

    def measure() -> None:
        command = [sys.executable, "by_hand.py", str(points)]
        subprocess.run(command, cwd=desk, check=True, stdout=subprocess.DEVNULL)
        rows = (desk / "rows.csv").read_text().count(",ok,")
        if rows != points:
            raise SystemExit(f"{rows} rows instead of {points}")

    return measure


def _wait_for_rows(desk: Path, points: int) -> None:
    run = folders.SweepDir(desk / "results" / "noop")
    until = time.monotonic() + 300
    while sum(len(shards.read_keys(shard.overall)) for shard in run.shards()) < points:
        if time.monotonic() > until:
            raise SystemExit(f"{desk}: not all rows within 300 s")
        time.sleep(0.1)


def _desk(folder: Path, points: int) -> Path:
    (folder / "cluster_profiles").mkdir(parents=True)
    (folder / "noop.yaml").write_text(SPEC.format(n=points))
    return folder


def _site(desk: Path, launcher: str, more: str) -> None:
    text = SITE.format(launcher=launcher) + more
    (desk / "cluster_profiles" / f"{launcher}.yaml").write_text(text)


if __name__ == "__main__":
    main()
