"""Sweeps that go through a disaster on a lab, and the count of what is left of them.

A `Sweep` is a folder of its own with one sweep and its profiles. `begin` submits it and waits for
rows; something terrible is done; `finish` types the same command until nothing is missing; and
`left` counts. Used by `test_disasters.py`.
"""

from __future__ import annotations

import csv
import json
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import resultsfolder
from hpcsweep.cluster.slurm import journal
from hpcsweep.store import row_reader
from labtools import queue
from localruns import Desk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcsweep.cluster.slurm import JobState
    from hpcsweep.store.folders import SubmissionDir, SweepDir
    from lab import Lab

SPEC = """\
name: s
workload: noop
axes: {{model: [a], input_size: {{start: 1, stop: {points}, num: {points}}}}}
measure: {{sleep_ms: {sleep_ms}}}
"""
SITE = f"gpu: any\ntime: 30\nmem: 500M\npython: {json.dumps(sys.executable)}\n"
ROUNDS = 8  # of submitting and waiting before a sweep counts as stuck


@dataclass(frozen=True)
class Left:
    """What a disaster left of a sweep."""

    points: int
    merged: int  # rows of the merged table
    ok: int  # different points in it with status ok
    attempts: int
    interrupted: int  # attempts that ended before their chunk did
    twice: Counter[str]  # rows too many, by submission:chunk
    late: list[str]  # rows that an attempt wrote after a newer one began
    problems: list[str]

    @property
    def nothing_lost(self) -> bool:
        """Say whether every promise was kept."""
        whole = self.merged == self.ok == self.points and not self.problems
        return whole and not self.late and all(count <= 1 for count in self.twice.values())


@dataclass(frozen=True)
class Sweep:
    """One sweep on its way through a disaster."""

    lab: Lab
    desk: Desk
    points: int

    @property
    def sweep_dir(self) -> SweepDir:
        """Return its results."""
        return self.desk.sweep("s")

    def profile(self, name: str, text: str) -> None:
        """Write a profile: `text` is what it has of its own."""
        folder = self.desk.folder / "cluster_profiles"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(SITE + text)

    def submit(self, *more: str, profile: str = "any") -> str:
        """Type the command; return what it said."""
        done = self.desk.run_process("submit", "s.yaml", "--cluster", profile, *more)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def begin(self, rows: int = 1) -> None:
        """Submit and wait for the first rows."""
        self.submit()
        self.wait(f"{rows} rows", lambda: self.row_count() >= rows)

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for a condition; if it never comes, tell what the jobs said last."""
        try:
            self.lab.wait_for(f"{self.desk.folder.name}: {what}", condition)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.jobs()}\n{self.logs()}") from error

    def finish(self) -> list[str]:
        """Type the same command, with the queue run empty in between, until nothing is missing."""
        said: list[str] = []
        for _ in range(ROUNDS):
            said.append(self.submit())
            if f"({self.points} ok)" in said[-1]:
                return said
            self.wait("the end of its jobs", lambda: all(j.state.over for j in self.jobs()))
        raise AssertionError(f"never done: {said}\n{self.jobs()}\n{self.logs()}")

    def left(self) -> Left:
        """Collect, and count what there is."""
        done = self.desk.run_process("collect", "s", "--json")
        (report,) = json.loads(done.stdout)["sweeps"]
        with self.sweep_dir.overall.open(newline="") as file:
            merged = list(csv.DictReader(file))
        return Left(
            points=self.points,
            merged=len(merged),
            ok=len({row["point_id"] for row in merged if row["status"] == "ok"}),
            attempts=len(self.sweep_dir.shards()),
            interrupted=sum(_interrupted(s.env) for s in self.sweep_dir.shards()),
            twice=_twice(self.sweep_dir),
            late=[line for one in self.sweep_dir.submissions() for line in _late(one)],
            problems=[f"{key}: {report[key]}" for key in PROBLEMS if report.get(key)],
        )

    def jobs(self) -> list[JobState]:
        """Return what the queue says of its tasks."""
        ids = [
            array
            for one in self.sweep_dir.submissions()
            for array in journal.read_journal(one).arrays
        ]
        return queue(ids)

    def running(self) -> list[JobState]:
        """Return its tasks that run."""
        return [job for job in self.jobs() if job.state.name == "RUNNING"]

    def row_count(self) -> int:
        """Return how many rows its shards have."""
        return sum(len([*row_reader.read_rows([shard])]) for shard in self.sweep_dir.shards())

    def logs(self) -> str:
        """Return what its jobs printed."""
        files = [
            path for one in self.sweep_dir.submissions() for path in sorted(one.logs.glob("*.out"))
        ]
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in files)


def checked(one: Sweep) -> Left:
    """Return what is left of a sweep, all promises kept."""
    left = one.left()
    assert left.nothing_lost, f"{left}\n{one.logs()}"
    return left


PROBLEMS = ("left_out", "unreadable", "missing")


def sweep(
    lab: Lab, folder: Path, site: str, *, points: int = 24, chunk: int = 8, sleep_ms: int = 200
) -> Sweep:
    """Make a folder with a sweep, and the profile `any` for the site."""
    folder.mkdir()
    made = Sweep(lab, Desk(folder), points)
    made.desk.spec(SPEC.format(points=points, sleep_ms=sleep_ms), "s.yaml")
    made.profile("any", f"max_points_per_chunk: {chunk}\n{site}")
    return made


def _interrupted(env: Path) -> bool:
    try:
        return bool(json.loads(env.read_text())["state"] != "done")
    except (OSError, ValueError):
        return True


def _twice(run: SweepDir) -> Counter[str]:
    """Count the rows of points that had one before, by the chunk that they were in first."""
    home: dict[str, str] = {}
    twice: Counter[str] = Counter()
    for shard in run.shards():
        for key in row_reader.read_rows([shard]):
            if key["point_id"] in home:
                twice[home[key["point_id"]]] += 1
            home.setdefault(key["point_id"], f"{shard.submission}:{shard.chunk}")
    return twice


def _late(submission: SubmissionDir) -> list[str]:
    """Return the rows whose measuring ended after the next attempt's first word.

    An attempt speaks right after it has made its files, so a row before that is not told here.
    """
    found = []
    for shard in submission.sweep_dir.shards_of(submission.id):
        newer = submission.log(shard.chunk, shard.attempt + 1)
        if newer.exists():
            began = datetime.fromisoformat(newer.read_text().split()[0]).timestamp()
            for row in resultsfolder.read_shard(shard).rows:
                ended = datetime.fromisoformat(row["started_at"]).timestamp() + float(row["wall_s"])
                if ended > began + 0.001:  # the log has milliseconds
                    found.append(f"{shard.overall.name}: {row['point_id']} at {ended - began:.3f}")
    return found


def wait_for_saved_state(one: Sweep) -> None:
    """Wait until slurmctld has written down what is there now.

    What it has not written when it dies it forgets, and gives the ids of those jobs away again. It
    writes some seconds after a change, so there is one, which is looked for.
    """
    for number in {job.id.job for job in one.jobs()}:
        mark = f"saved by {uuid.uuid4().hex}"
        one.lab.run("scontrol", "update", f"jobid={number}", f"comment={mark}")
        one.wait("state on disk", partial(one.lab.has_saved, mark))


def after(seconds: float) -> str:
    """Return a moment as scontrol takes it."""
    return datetime.fromtimestamp(time.time() + seconds).strftime("%FT%T")  # noqa: DTZ006
