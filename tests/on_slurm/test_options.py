"""What jobs are sent with: the profile's words over ours, the user's variables below it."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from gate import Gate
from hpcsweep.cluster.slurm.sbatch import NOT_REQUEUED
from hpcsweep.errors import Refused
from labtools import SIX, arrays, furnished, queue, running, wait_for_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.store.folders import SubmissionDir
    from lab import Lab
    from localruns import Desk

pytestmark = pytest.mark.no_second_try

LAUNCHERS = ("sbatch", "submitit")
SLOW = """\
name: s
workload: noop
axes: {model: [resnet18], input_size: {start: 1, stop: 20, num: 20}}
measure: {sleep_ms: 100}
"""  # two seconds
SETTING = re.compile(r"([\w/]+)=(\S*)")
# What differs between two calls of sbatch.
CALL = {
    "JobId",
    "ArrayJobId",
    "SubmitTime",
    "AccrueTime",
    "EligibleTime",
    "Priority",
    "StdOut",
    "Sid",
}
CALL |= {"AllocNode:Sid", "StdErr"}


def submitted(desk: Desk, **env: str) -> SubmissionDir:
    """Submit the sweep; return the newest submission."""
    done = desk.run("submit", "s.yaml", "--cluster", "v100", **env)
    assert done.returncode == 0, done.stderr
    return desk.sweep("s").submissions()[-1]


def settings(cluster: Lab, job: str) -> dict[str, str]:
    """Return what Slurm knows of a job."""
    return dict(SETTING.findall(cluster.run("scontrol", "show", "job", job).stdout))


def log(submission: SubmissionDir) -> str:
    """Return what the submission's jobs printed."""
    files = [path for path in submission.path.rglob("*") if path.suffix in {".out", ".err"}]
    return "".join(path.read_text() for path in files)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("options", "requeues"),
    [("--no-requeue", "0"), ("--no-req", "0"), ("--no-requeue, '--hold --requeue'", "1")],
)
def test_a_profile_says_whether_jobs_go_back_to_the_queue(
    cluster: Lab, tmp_path: Path, launcher: str, options: str, requeues: str
):
    """Its last word counts, in every spelling that sbatch takes; as of names, signals and CPUs."""
    more = f"launcher: {launcher}\ncpus_per_task: 2\nsbatch_options: ["
    more += f"-H, '-Jown -c 3', --open-mode=truncate, '--signal=USR2@33', {options}]\n"
    (sent,) = arrays(submitted(furnished(tmp_path, SIX, more)))
    found = settings(cluster, sent.job_id)
    assert (found["Requeue"], found["JobName"], found["CPUs/Task"]) == (requeues, "own", "3")
    assert found["Reason"] == "JobHeldUser"


def test_sbatch_by_hand_sends_the_same_job(cluster: Lab, tmp_path: Path):
    """All that hpcsweep asks for stands in the script."""
    more = "array_throttle: 2\nsbatch_options: [--hold]\nmax_points_per_chunk: 2\n"
    submission = submitted(furnished(tmp_path / "it's a #1 desk", SIX, more))
    (sent,) = arrays(submission)
    done = subprocess.run(
        ["sbatch", "--parsable", "job.sbatch"], cwd=submission.path, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    ours, theirs = (settings(cluster, job) for job in (sent.job_id, done.stdout.strip()))
    assert ours["ArrayTaskId"] == "0-2%2"
    different = {key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)}
    assert different <= CALL


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_chunk_that_may_not_be_requeued_ends_and_submit_sends_the_rest(
    cluster: Lab, tmp_path: Path, launcher: str
):
    """Its log says so, and `status`."""
    soon = f"test -e {tmp_path}/again || HPCSWEEP_DEADLINE=$(( $(date +%s) + 3 ))"
    more = f"launcher: {launcher}\nkill_wait: 1\nsignal_lead: 20\nsetup: [{json.dumps(soon)}]\n"
    desk = furnished(tmp_path / "desk", SLOW, f"{more}sbatch_options: [--no-requeue]\n")
    first = submitted(desk)
    wait_for_the_end(cluster)
    assert NOT_REQUEUED in log(first)
    assert len(first.attempts(0)) == 1
    assert len(desk.rows("s")) < 20
    cluster.wait_for(
        "state of the chunk",
        lambda: desk.run("status", "s").stdout,
        enough=lambda told: re.search("0 stopped: .*submit again to continue", told),
    )
    (tmp_path / "again").touch()
    submitted(desk)
    wait_for_the_end(cluster)
    assert len({row["point_id"] for row in desk.rows("s")}) == len(desk.rows("s")) == 20


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_variables_of_sbatch_are_defaults_below_the_profile(
    cluster: Lab, tmp_path: Path, launcher: str
):
    """They stand in the script; those on which hpcsweep relies stay out, and that is told."""
    desk = furnished(
        tmp_path, SIX, f"launcher: {launcher}\nsbatch_options: [-H, --mem-per-cpu=99]\n"
    )
    env = {
        "SBATCH_ACCOUNT": "small",
        "SBATCH_QOS": "few",
        "SBATCH_NO_REQUEUE": "",
        "SBATCH_EXCLUSIVE": "user",
        "SBATCH_NO_KILL": "no",
        "SBATCH_PARTITION": "nosuch",
        "SBATCH_TIMELIMIT": "7",
        "SBATCH_MEM_PER_NODE": "7",
        "SBATCH_ARRAY_INX": "0-99",
        "SBATCH_WAIT": "1",
        "SBATCH_OUTPUT": "/nowhere/x",
    }
    drafted = desk.run("submit", "s.yaml", "--cluster", "v100", "--dry-run", **env)
    assert "#SBATCH --account=small\n" in drafted.stdout, drafted.stderr
    for name in ("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_OUTPUT"):
        assert f"note: {name} is not taken: " in drafted.stderr
    (sent,) = arrays(submitted(desk, **env))
    found = settings(cluster, sent.job_id)
    wanted = {"Account": "small", "QOS": "few", "Requeue": "0", "Partition": "gpu"}
    wanted |= {"TimeLimit": "00:30:00", "MinMemoryCPU": "99M", "OverSubscribe": "USER"}
    assert {key: found[key] for key in wanted} == wanted
    assert found["JobName"] == "hpcsweep-s"


def test_a_variable_that_cannot_be_is_named_where_a_profile_would_be(cluster: Lab, tmp_path: Path):
    """By doctor and submit, as a line of a file; and a value that no option has, at once."""
    desk = furnished(tmp_path, SIX)
    wrong = {"SBATCH_ACCOUNT": "smal"}
    told = desk.run("doctor", "--cluster", "v100", **wrong).stdout
    assert "no account 'smal' on this cluster; did you mean 'small'?" in told
    assert "(environment: SBATCH_ACCOUNT)" in told
    done = desk.run("submit", "s.yaml", "--cluster", "v100", **wrong)
    assert done.returncode == Refused.exit_code
    assert "environment: SBATCH_ACCOUNT: account: " in done.stderr
    (tmp_path / "cluster_profiles/l40.yaml").write_text("gpu: l40\n")
    done = desk.run("submit", "s.yaml", "--cluster", "l40", SBATCH_TIMELIMIT="1h")
    assert "environment: SBATCH_TIMELIMIT: found '1h', needs a time limit" in done.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_throttle_is_of_the_submission_not_of_each_array(
    bare_cluster: Lab, tmp_path: Path, launcher: str
):
    """Seven chunks at five tasks an array; what is cancelled keeps nothing from running."""
    more = f"launcher: {launcher}\nmax_points_per_chunk: 1\narray_throttle: 1\n"
    desk = furnished(tmp_path, SIX, more)
    file = tmp_path / "cluster_profiles/v100.yaml"  # on all nodes, whose GPUs set no limit
    file.write_text(re.sub("(constraint|gres): .*", r"\1: null", file.read_text()))
    gate = Gate(desk)
    gate.sweep(points=7, passes=1, name="s")
    first, second = arrays(submitted(desk))
    bare_cluster.wait_for("point at the gate", gate.waiting)
    assert [job.id.job for job in running()] == [int(first.job_id)]
    assert {job.reason for job in queue([second.job_id])} == {"Dependency"}
    bare_cluster.run("scancel", first.job_id)
    bare_cluster.wait_for("second array", running, enough=lambda jobs: _are_of(jobs, second.job_id))
    gate.open()
    wait_for_the_end(bare_cluster)
    assert len(desk.rows("s")) >= 3


def _are_of(jobs, number: str) -> bool:
    assert len(jobs) <= 1
    return [job.id.job for job in jobs] == [int(number)]
