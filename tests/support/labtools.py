"""What tests on a real Slurm ask of its queue and of the journal."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsweep.cluster import slurm
from hpcsweep.store.jobs_file import Queued
from lab import PATH, PATIENCE_S, Lab
from localruns import Desk
from waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from hpcsweep.store.folders import SubmissionDir

V100 = "gpu: v100\npartition: gpu\nconstraint: gpu2v100\ngres: 'gpu:1'\ntime: 30\n"


def furnished(folder: Path, spec: str, more: str = "") -> Desk:
    """Return a folder with a sweep `s.yaml`, and a profile `v100` that has `more` lines, too."""
    (folder / "cluster_profiles").mkdir(parents=True)
    text = f"{V100}python: {json.dumps(sys.executable)}\n{more}"
    (folder / "cluster_profiles/v100.yaml").write_text(text)
    desk = Desk(folder)
    desk.spec(spec, "s.yaml")
    return desk


SIX = "name: s\nworkload: noop\naxes: {model: [a], input_size: [64, 65, 66, 67, 68, 69]}\n"


def one_at_a_time(folder: Path) -> Desk:
    """Return a folder with a sweep of two chunks, of which one can run at a time by `l40`."""
    text = "gpu: l40\npartition: gpu\nconstraint: gpul40s\ngres: 'gpu:2'\ntime: 30\n"
    text += f"max_points_per_chunk: 3\npython: {json.dumps(sys.executable)}\n"
    (folder / "cluster_profiles").mkdir()
    (folder / "cluster_profiles/l40.yaml").write_text(text)
    desk = Desk(folder)
    desk.spec(SIX, "s.yaml")
    return desk


def queue(jobs: Iterable[slurm.JobId | str] | None = None) -> list[slurm.JobState]:
    """Return what the queue lists, by default of all jobs.

    A squeue that was late is asked again: its machine is busy, and the test waits for its jobs.
    """
    asked = None if jobs is None else list(jobs)
    found = wait_for(
        "answer of squeue",
        lambda: slurm.queue(asked),
        enough=lambda answer: not isinstance(answer, slurm.CouldNotAsk),
        seconds=PATIENCE_S,
    )
    assert not isinstance(found, slurm.CouldNotAsk)
    return found


def unfinished() -> list[slurm.JobState]:
    """Return the jobs that wait, run, or are being cleaned up after their end."""
    return [job for job in queue() if not job.state.over]


def running() -> list[slurm.JobState]:
    """Return the jobs that run."""
    return [job for job in queue() if job.state.name == "RUNNING"]


def wait_for_the_end(lab: Lab) -> None:
    """Wait until no job waits or runs."""
    lab.wait_for("end of the jobs", unfinished, enough=lambda left: not left)


def job_numbers() -> set[int]:
    """Return the number of every job that the queue knows.

    Slurm forgets a job some time after its end, so "nothing went in" is `job_numbers() <= before`.
    """
    return {job.id.job for job in queue()}


def requeue(lab: Lab, jobs: Iterable[slurm.JobId | str]) -> None:
    """Send jobs back to the queue by hand."""
    for job in jobs:
        lab.run("scontrol", "requeue", str(job))


def arrays(submission: SubmissionDir) -> list[Queued]:
    """Return the journal's entries of arrays that are in the queue."""
    return [entry for entry in submission.read_jobs() if isinstance(entry, Queued)]


def point_at(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point every Slurm program that this process starts at a cluster."""
    monkeypatch.setenv("PATH", PATH)
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)


def lab_here() -> Lab:
    """Return the cluster that this process is pointed at, to run programs on and to read logs."""
    return Lab(Path(os.environ["SLURM_CONF"]).parent)
