"""How far estimates are off on this machine: ``python benchmarks/estimate.py [FOLDER]``.

Measures three sweeps of its CPU, each in a results folder of its own: first a sample, then the
rest. Estimates are made before anything was measured, and after the sample, for all points that the
sample leaves. What the machine did meanwhile is in these errors; without it (`same run`), every
other amount of work of what was left tells the ones between. The time that jobs would ask for is
that of a profile with 24 hours. Killed anywhere, it goes on; `--no-measure` takes what is there.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsweep.catalog.sharing import worker_key
from hpcsweep.forecast import estimate, passes, past_rows
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import shards
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import request
from hpcsweep.submit.request import Options
from hpcsweep.submit.time_limit import limit_of
from hpcsweep.text import aligned, duration
from hpcsweep.units import seconds as seconds_in

if TYPE_CHECKING:
    from collections.abc import Iterable

SWEEPS = {
    "sizes": """\
axes:
  model: [resnet18, mobilenet_v2]
  input_size: {start: 64, stop: 224, step: 8}
  num_threads: [1]
measure: {warmup: 2, iterations: 5}
""",
    "algorithms": """\
axes:
  model: [squeezenet1_1, alexnet]
  input_size: [64, 96, 128, 160, 192, 224]
  algorithm: [auto, gemm, fft, winograd]
  num_threads: [1]
measure: {warmup: 1, iterations: 3}
""",
    "batches": """\
axes:
  model: [shufflenet_v2_x1_0, mnasnet1_0, resnet18]
  input_size: [96, 160]
  batch_size: [1, 2, 3, 4, 6, 8]
  num_threads: [1]
measure: {warmup: 2, iterations: 5, numerics: false}
""",
}
SAMPLE = "3"
_TOLD = {
    "host": ("system", "cpu_model", "cpu_count", "memory_limit_bytes", "load_average"),
    "software": ("torch", "torchvision", "mkldnn"),
}
JOBS = 'launcher: sbatch\ngpu: cpu\npartition: any\ntime: "24:00:00"\n'
HEADS = ("sweep", "sampled", "left", "took", "before", "after", "same run", "a point before",
         "after", "same run", "jobs ask for")  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """The points that a sample left: what they took, and what was said of them before."""

    name: str
    sampled: int
    took: dict[str, float]
    before: dict[str, float]
    after: dict[str, float]
    start: tuple[float, float]  # of a job: said before, said after
    limit: str
    same_run: dict[str, float]  # what every other point of the rest says of those between

    def row(self) -> list[str]:
        """Return the cells of the table."""
        total = sum(self.took.values())
        return [
            self.name, str(self.sampled), str(len(self.took)), duration(total),
            *(f"{100 * (said / total - 1):+.0f} %" for said in self.totals()),
            f"{100 * (sum(self.same_run.values()) / self.took_of(self.same_run) - 1):+.0f} %",
            *(f"{100 * self.off(said):.0f} %"
              for said in (self.before, self.after, self.same_run)),
            self.limit,
        ]  # fmt: skip

    def totals(self) -> list[float]:
        """Return the seconds of the whole rest, said before and after."""
        both = zip(self.start, (self.before, self.after), strict=True)
        return [start + sum(said.values()) for start, said in both]

    def off(self, said: dict[str, float]) -> float:
        """Return the median error of a point, without the one that waited for the worker."""
        first, *_ = self.took
        points = [one for one in said if one != first]
        return statistics.median(abs(said[one] / self.took[one] - 1) for one in points)

    def took_of(self, points: Iterable[str]) -> float:
        """Return what some points took."""
        return sum(self.took[point] for point in points)


def main() -> None:
    """Measure what is missing, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results/estimate"))
    parser.add_argument("--no-measure", action="store_true", help="take what is there")
    parser.add_argument("--keep", type=Path, help="write the points and the environment here")
    chosen = parser.parse_args()
    found = []
    for name, text in SWEEPS.items():
        folder = chosen.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(f"name: {name}\nworkload: inference\n{text}")
        (folder / "cpujobs.yaml").write_text(JOBS)
        for more in ([["--sample", SAMPLE], []]) if not chosen.no_measure else ():
            submit(folder, name, *more)
        found.append(seen(folder, name))
    print("\n".join(aligned([HEADS, *(one.row() for one in found)], left=1)))
    if chosen.keep:
        first = SweepDir(chosen.folder / found[0].name / found[0].name).shards()[0]
        keep(chosen.keep, found, first.env)


def submit(folder: Path, name: str, *more: str) -> None:
    """Measure a sweep here."""
    words = ["--results", str(folder), "submit", str(folder / f"{name}.yaml"), "--cluster", "local"]
    subprocess.run([sys.executable, "-m", "hpcsweep", *words, *more], check=True)


def seen(folder: Path, name: str) -> Seen:
    """Return what the points took that the sample left, and what estimates say of them.

    The estimate after the sample sees a folder in which nothing else was measured.
    """
    run = SweepDir(folder / name)
    asked = request.make(sweep_file.load(folder / f"{name}.yaml"),
                         profile.load(folder / "cpujobs.yaml"), Options())  # fmt: skip
    sample, *rest = run.submissions()
    sampled = {row["point_id"] for row in rows(run, [sample.id])}
    walls = {row["point_id"]: float(row["wall_s"]) for row in rows(run, [one.id for one in rest])
             if row["status"] == "ok"}  # fmt: skip
    left = [point for point in asked.points() if point.point_id in walls]
    alone = SweepDir(folder / "after" / name)
    link(alone, run, [sample.id])
    nothing = SweepDir(folder / "before" / name)
    said = [estimate.estimator(where, asked.sweep, asked.device) for where in (nothing, alone)]
    before, after = ({point.point_id: one(point) for point in left} for one in said)
    workers = len({worker_key(point) for point in left})
    starts = [one.start + one.worker * (workers - 1) for one in said]
    asked_for = limit_of(alone, asked, starts[1] + sum(after.values()), said[1])
    walls = {point.point_id: walls[point.point_id] for point in left}
    assert sum(walls.values()) < (seconds_in(asked_for or "24:00:00") or 0), "a job was cut off"
    return Seen(name, len(sampled), walls, before, after,
                (starts[0], starts[1]), asked_for or "24:00:00",
                same_run(folder, run, asked, walls))  # fmt: skip


def same_run(
    folder: Path, run: SweepDir, asked: request.Request, took_s: dict[str, float]
) -> dict[str, float]:
    """Return what every other amount of work says of those between, all of one run."""
    alone = SweepDir(folder / "rest" / run.name)
    link(alone, run, [one.id for one in run.submissions()[1:]])
    known = past_rows.measured(alone, "inference", asked.device)
    works = sorted({row.work for row in known})
    learnt_from = [row for row in known if works.index(row.work) % 2 == 0]
    said = estimate.Estimates("inference", asked.sweep.measure, estimate.learn(learnt_from))
    points = (point for point in asked.points() if point.point_id in took_s)
    return {point.point_id: said(point) for point in points
            if works.index(passes.work(point.axes)) % 2}  # fmt: skip


def link(alone: SweepDir, run: SweepDir, submissions: list[str]) -> None:
    """Make a results folder with the rows of some submissions of another."""
    alone.shards_dir.mkdir(parents=True, exist_ok=True)
    for name in submissions:
        if not (alone.shards_dir / name).exists():
            (alone.shards_dir / name).symlink_to((run.shards_dir / name).resolve())


def rows(run: SweepDir, submissions: list[str]) -> list[dict[str, Any]]:
    """Return the rows of some submissions."""
    return [row for name in submissions for shard in run.shards_of(name)
            for row in shards.read_shard(shard).rows]  # fmt: skip


def keep(folder: Path, found: list[Seen], env: Path) -> None:
    """Write what each point took and was said to take, and on what machine."""
    folder.mkdir(parents=True, exist_ok=True)
    told = json.loads(env.read_text())
    about = {"python": told["python"], **{part: {name: told[part].get(name) for name in names}
                                          for part, names in _TOLD.items()}}  # fmt: skip
    (folder / "environment.json").write_text(json.dumps(about, indent=1) + "\n")
    with (folder / "points.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["sweep", "point_id", "took_s", "before_s", "after_s", "same_run_s"])
        for one in found:
            for point in one.took:
                columns = (one.took, one.before, one.after, one.same_run)
                times = (f"{column[point]:.4g}" if point in column else "" for column in columns)
                writer.writerow([one.name, point, *times])


if __name__ == "__main__":
    main()
