"""What tests on a real Slurm ask of its queue and of the journal."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsweep.cluster import slurm
from hpcsweep.store.jobs_file import Queued
from lab import PATH, Lab
from localruns import Desk

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


def job_numbers() -> set[int]:
    """Return the number of every job that the queue knows.

    Slurm forgets a job some time after its end, so "nothing went in" is `job_numbers() <= before`.
    """
    return {job.id.job for job in slurm.queue()}


def queue_is_over() -> bool:
    """Say whether no job waits or runs."""
    return all(job.state.over for job in slurm.queue())


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
