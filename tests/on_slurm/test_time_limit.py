"""Time limits that jobs ask for: by measured points, and by the profile after a limit was hit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import resultsfolder
import surviving
import timedrows
from hpcsweep.cluster import slurm
from localruns import Desk
from timedrows import Law

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.store.folders import SubmissionDir
    from lab import Lab

SITE = f"""\
gpu: v100
partition: mi250
time: 30
kill_wait: 1
signal_lead: 20
python: {sys.executable}
setup: ['for _ in {{1..600}}; do sleep 0.5; done']
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep of which two sizes were measured, and a profile of slow jobs."""
    folder = resultsfolder.make(tmp_path)
    points = resultsfolder.points_of(tmp_path, gpu="v100")
    measured = [point for point in points if point.axes["input_size"] in {64, 224}]
    before = folder.submit("20260101-000000-v100", measured, gpu="v100", profile="v100")
    timedrows.measure(folder, before.id, measured, Law())
    (tmp_path / "cluster_profiles").mkdir()
    return Desk(tmp_path)


def submitted(
    cluster: Lab, desk: Desk, more: str = ""
) -> tuple[SubmissionDir, slurm.JobState, str]:
    """Submit what is left; return the submission, its job when it runs, and what was said."""
    (desk.folder / "cluster_profiles/v100.yaml").write_text(SITE + more)
    done = desk.run("submit", "demo.yaml", "--cluster", "v100")
    assert done.returncode == 0, done.stderr
    cluster.wait_for("the job", running)
    (job,) = running()
    return desk.sweep("demo").submissions()[-1], job, done.stdout


def running() -> list[slurm.JobState]:
    """Return the jobs that run."""
    return [job for job in slurm.queue() if job.state.name == "RUNNING"]


def limit_of(cluster: Lab, job: slurm.JobState) -> str:
    """Return the limit of a job as Slurm knows it."""
    told = cluster.run("scontrol", "show", "job", "--oneliner", str(job.id)).stdout
    return told.split("TimeLimit=")[1].split()[0]


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_jobs_ask_for_what_measured_points_say(cluster: Lab, desk: Desk, launcher: str):
    """Instead of the profile's half hour, which a line of the profile keeps."""
    _, job, told = submitted(cluster, desk, f"launcher: {launcher}\n")
    assert limit_of(cluster, job) == "00:17:00"
    assert "jobs ask for 00:17:00 instead of 30: points 4 from measured points" in told
    cluster.run("scancel", str(job.id))


@pytest.mark.slow
def test_after_a_shorter_limit_was_hit_the_profiles_holds(cluster: Lab, desk: Desk):
    """The points that Slurm cut off are sent again, with all the time that there is."""
    submission, job, _ = submitted(cluster, desk)
    assert submission.read_manifest().time_limit == limit_of(cluster, job) == "00:17:00"
    cluster.run("scontrol", "update", f"jobid={job.id}", f"EndTime={surviving.after(5)}")
    cluster.wait_for("the time limit", lambda: not running(), timeout=90)
    again, job, told = submitted(cluster, desk)
    assert again.read_manifest().points == 4
    assert limit_of(cluster, job) == "00:30:00"
    assert "jobs ask for" not in told
