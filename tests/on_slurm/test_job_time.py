"""What jobs ask Slurm for: a time by measured rows, and what options of a command say."""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import resultsfolder
import surviving
import timedrows
from hpcsweep.cluster.slurm import journal
from hpcsweep.errors import Refused
from labtools import arrays, furnished, job_numbers, running, wait_for_the_end
from localruns import Desk
from timedrows import Law

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.store.folders import SubmissionDir
    from lab import Lab

SWEEP = """\
name: demo
workload: inference
axes: {model: ["heldnet:Held"], input_size: [16, 24, 32], algorithm: [gemm]}
measure: {layers: false, evidence: false, numerics: false}
"""
# the largest one waits until the gate is open
NETWORK = """\
import time
from pathlib import Path
from torch import nn

class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        while x.shape[-1] == 32 and not x.is_meta and not Path(__file__).with_name("open").exists():
            time.sleep(0.05)
        return self.conv(x)
"""
SITE = f"""\
gpu: cpu
partition: mi250
time: "20:00:00"
mem: 4G
kill_wait: 1
python: {json.dumps(sys.executable)}
env: {{OMP_NUM_THREADS: 1}}
"""
# what a job has of a time limit that would take minutes; what asks for all has more
CUT = 'test "$(squeue -h -j $SLURM_JOB_ID -o %l | head -1)" = 20:00:00 || '
CUT += "HPCSWEEP_DEADLINE=$(( $(date +%s) + 25 ))"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep of which the smallest size was measured."""
    (tmp_path / "heldnet.py").write_text(NETWORK)
    folder = resultsfolder.make(tmp_path, SWEEP)
    first = [point for point in folder.points if point.axes["input_size"] == 16]
    before = folder.submit("20260101-000000-cpunode", first, text=SWEEP, rehearsal=False)
    timedrows.measure(folder, before.id, first, Law())
    (tmp_path / "cluster_profiles").mkdir()
    return Desk(tmp_path)


def submitted(desk: Desk) -> tuple[SubmissionDir, str]:
    """Submit what is left; return the submission, and what was said."""
    done = desk.run("submit", "demo.yaml", "--cluster", "cpunode")
    assert done.returncode == 0, done.stderr
    return desk.sweep("demo").submissions()[-1], done.stdout


def limit_of(cluster: Lab, submission: SubmissionDir, what: str = "TimeLimit") -> str:
    """Return the limit of the jobs of a submission, as Slurm knows it."""
    (sent,) = arrays(submission)
    told = cluster.run("scontrol", "show", "job", "--oneliner", sent.job_id).stdout
    return told.split(f" {what}=")[1].split()[0]


@pytest.mark.no_second_try
# two minutes each, of which most is a job that waits for its limit
@pytest.mark.parametrize("launcher", ["sbatch", pytest.param("submitit", marks=pytest.mark.slow)])
def test_jobs_ask_for_what_rows_tell_and_after_a_cut_for_all(
    cluster: Lab, desk: Desk, launcher: str
):
    """A point that the short limit does not hold is no timeout; in the end each has one row."""
    profile = desk.folder / "cluster_profiles/cpunode.yaml"
    profile.write_text(f"{SITE}launcher: {launcher}\nsetup: [{json.dumps(CUT)}]\n")
    told = desk.run("submit", "demo.yaml", "--cluster", "cpunode", "--dry-run")
    short = "jobs ask for 00:18:00: "
    assert short in told.stdout, told.stderr
    submission, said = submitted(desk)
    assert short in said
    assert said.count("the profile allows 20:00:00") == 1
    assert limit_of(cluster, submission) == "00:18:00"
    wait_for_the_end(cluster)
    statuses = Counter(row["status"] for row in desk.rows("demo"))
    assert statuses.keys() == {"ok"}, [log.read_text() for log in submission.logs.iterdir()]
    assert statuses["ok"] < 3
    assert "the next job asks for the profile's whole `time`" in desk.run("status", "demo").stdout
    (desk.folder / "open").touch()
    submission, said = submitted(desk)
    assert "jobs ask for all of the profile's time, 20:00:00: " in said
    assert limit_of(cluster, submission) == "20:00:00"
    wait_for_the_end(cluster)
    rows = desk.rows("demo")
    assert Counter(row["status"] for row in rows) == {"ok": 3}
    assert len({row["point_id"] for row in rows}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("trap", ["", "trap '' USR1, "])
def test_after_slurm_ended_a_job_at_its_short_limit_the_next_asks_for_all(
    cluster: Lab, desk: Desk, trap: str
):
    """Also where no attempt began, as while lines of the profile copy data."""
    profile = desk.folder / "cluster_profiles/cpunode.yaml"
    profile.write_text(f"{SITE}signal_lead: 20\nsetup: [{trap}sleep 600]\n")
    submission, _ = submitted(desk)
    cluster.wait_for("the job", running)
    (job,) = running()
    cluster.run("scontrol", "update", f"jobid={job.id}", f"EndTime={surviving.after(5)}")
    wait_for_the_end(cluster)
    submission, said = submitted(desk)
    assert "jobs ask for all of the profile's time, 20:00:00: 2 points did not end" in said
    assert limit_of(cluster, submission) == "20:00:00"
    desk.run("cancel", "demo")
    wait_for_the_end(cluster)


CRASHES_ONCE = """\
name: s
workload: noop
axes: {model: [a, b], input_size: [1, 2]}
measure: {fail: [{when: {model: b}, how: crash, attempts: 1}]}
"""


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_a_retry_asks_for_more_than_the_profile_and_the_next_submission_does_not(
    cluster: Lab, tmp_path: Path, launcher: str
):
    """The submission keeps what it asked for; options of sbatch do not stand over it."""
    more = f"launcher: {launcher}\nmem: 500M\nsbatch_options: [--time=20]\n"
    desk = furnished(tmp_path / "desk", CRASHES_ONCE, more)
    assert desk.run("submit", "s.yaml", "--cluster", "v100").returncode == 0
    wait_for_the_end(cluster)
    done = desk.run("retry", "s", "--mem", "1G", "--time", "1h30m")
    assert done.returncode == 0, done.stderr
    assert "; jobs ask for --time 01:30:00 --mem 1G" in done.stdout
    submission = desk.sweep("s").submissions()[-1]
    assert limit_of(cluster, submission) == "01:30:00"
    assert limit_of(cluster, submission, "MinMemoryNode") == "1G"
    kept = submission.read_manifest().profile_fields
    assert (kept["time"], kept["mem"]) == ("01:30:00", "1G")
    assert journal.read_journal(submission).time_limit == timedelta(minutes=90)
    wait_for_the_end(cluster)
    assert Counter(row["status"] for row in desk.rows("s")) == {"ok": 4, "crashed": 2}
    desk.spec(CRASHES_ONCE.replace("[1, 2]", "[1, 2, 3]"), "s.yaml")
    assert desk.run("submit", "s.yaml", "--cluster", "v100").returncode == 0
    submission = desk.sweep("s").submissions()[-1]
    assert limit_of(cluster, submission) == "00:20:00"
    assert limit_of(cluster, submission, "MinMemoryNode") == "500M"
    wait_for_the_end(cluster)


def test_more_than_the_partition_allows_is_told_before_anything_is_sent(
    cluster: Lab, tmp_path: Path
):
    """With the option in place of the profile's line."""
    desk = furnished(tmp_path / "desk", CRASHES_ONCE)
    profile = desk.folder / "cluster_profiles/v100.yaml"
    profile.write_text(profile.read_text().replace("partition: gpu", "partition: short"))
    assert desk.run("submit", "s.yaml", "--cluster", "v100").returncode == 0
    wait_for_the_end(cluster)
    before = job_numbers()
    told = "--time 4h: time: 04:00:00 is over the limit of partition short, 00:30:00"
    for command in (("retry", "s"), ("submit", "s.yaml", "--cluster", "v100", "--again")):
        done = desk.run(*command, "--time", "4h")
        assert (done.returncode, told in done.stderr) == (Refused.exit_code, True), done.stderr
    done = desk.run("retry", "s", "--mem", "900G")
    assert (done.returncode, "--mem=900G" in done.stderr) == (Refused.exit_code, True), done.stderr
    assert job_numbers() <= before


EATS = """\
name: s
workload: command
axes: {x: [1]}
run: python3 -c "import time; held = bytearray(500_000_000); time.sleep(6)"
"""


def test_after_a_job_that_was_killed_for_its_memory_the_next_may_have_more(
    cluster: Lab, tmp_path: Path
):
    """Slurm kills the whole job where its memory runs out, so its point has no row to retry."""
    desk = furnished(tmp_path / "desk", EATS, "mem: 200M\n")
    assert desk.run("submit", "s.yaml", "--cluster", "v100").returncode == 0
    wait_for_the_end(cluster)
    assert desk.rows("s") == []
    assert "Exceeded job memory limit" in desk.run("logs", "s").stdout
    told = desk.run("retry", "s", "--mem", "1G").stdout
    assert "`hpcsweep submit s` takes both, for points without a row" in told
    done = desk.run("submit", "s.yaml", "--cluster", "v100", "--mem", "1G")
    assert "; jobs ask for --mem 1G" in done.stdout, done.stderr
    wait_for_the_end(cluster)
    assert [row["status"] for row in desk.rows("s")] == ["ok"]
