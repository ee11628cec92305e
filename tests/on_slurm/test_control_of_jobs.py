"""What a person does to a sweep in Slurm's hands: cancel parts of it, read its logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gate import Gate
from hpcsweep.errors import Incomplete
from labtools import SIX, arrays, one_at_a_time, queue, running, wait_for_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from localruns import Desk

pytestmark = pytest.mark.no_second_try


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep of two chunks, of which one can run at a time."""
    return one_at_a_time(tmp_path)


def _rows(desk: Desk) -> list[str]:
    return [row["point_id"] for row in desk.rows("s")]


def test_scancel_by_hand_ends_a_running_chunk_after_its_current_point(cluster: Lab, desk: Desk):
    """The job's own requeue must not bring it back to life; the point under way is kept."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=1, name="s")
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    cluster.wait_for("point at the gate", gate.waiting)
    cluster.run("scancel", "--user=root")
    cluster.wait_for("SIGTERM", gate.was_told)
    gate.open()
    wait_for_the_end(cluster)
    (submission,) = desk.sweep("s").submissions()
    (out,) = submission.logs.glob("slurm-*_0.out")
    after = out.read_text().partition("CANCELLED AT")[2]
    assert (after.count(" ok "), after.count("stopped: ")) == (1, 1), out.read_text()
    own = [entry.job_id for entry in arrays(submission)]
    # the cluster is shared, and remembers the jobs of other tests for a while
    assert {job.state.name for job in queue(own)} == {"CANCELLED"}
    assert len(_rows(desk)) == 2


def test_no_row_holds_the_time_in_which_its_job_was_suspended(cluster: Lab, desk: Desk):
    """Suspended by `scontrol`, as a preemption does it: the point is measured again."""
    spec = SIX.replace("[64, 65, 66, 67, 68, 69]", "[64, 65, 66]")
    desk.spec(f"{spec}measure: {{sleep_ms: 1500}}\n", "s.yaml")
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    cluster.wait_for("row", lambda: _rows(desk))
    (job,) = running()
    cluster.run("scontrol", "suspend", str(job.id))
    time.sleep(5)  # several times a point: a pause has to last, whatever else goes on
    cluster.run("scontrol", "resume", str(job.id))
    wait_for_the_end(cluster)
    rows = desk.rows("s")
    assert [row["valid"] for row in rows] == ["true"] * 3
    assert max(float(row["median_ms"]) for row in rows) < 4000
    (submission,) = desk.sweep("s").submissions()
    logs = "".join(path.read_text() for path in submission.logs.glob("*.log"))
    assert "s: measured again" in logs


def test_cancelled_chunks_leave_a_trace_and_are_sent_again(cluster: Lab, desk: Desk):
    """One of them while it waits; the other keeps what it measured."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=1, name="s")
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    run = desk.sweep("s")
    (submission,) = run.submissions()
    cluster.wait_for("point at the gate", gate.waiting)
    done = desk.run("cancel", "s", submission.id)
    assert f"{submission.id}: cancelled chunks 0-1;" in done.stdout, done.stderr
    cluster.wait_for("SIGTERM", gate.was_told)
    gate.open()
    wait_for_the_end(cluster)
    assert "nothing is queued or running" in desk.run("cancel", "s", submission.id).stdout
    told = desk.run("status", "s").stdout
    assert f"{submission.id}:0-1 cancelled: by `hpcsweep cancel`" in told
    again = desk.run("submit", "s.yaml", "--cluster", "l40")
    assert "4 points on l40" in again.stdout
    wait_for_the_end(cluster)
    outputs = [path.read_text() for path in run.submissions_dir.glob("*/logs/*")]
    assert len(_rows(desk)) == len(set(_rows(desk))) == 6, (queue(), outputs)
    assert "cancelled" not in desk.run("status", "s").stdout


def test_the_log_of_a_job_that_never_got_to_a_worker_is_its_own_output(cluster: Lab, desk: Desk):
    """A set-up line that fails is named; following ends with the job."""
    bad = "extends: l40\nsetup: ['sleep 2; echo so far', 'no_such_program']\n"
    (desk.folder / "cluster_profiles/bad.yaml").write_text(bad)
    assert desk.run("submit", "s.yaml", "--cluster", "bad").returncode == 0
    followed = desk.run("logs", "s", "0", "-f")
    assert "so far" in followed.stdout, followed.stderr
    wait_for_the_end(cluster)
    told = desk.run("logs", "s", "1").stdout
    assert "_1.out <==" in told
    assert "this setup line failed: no_such_program" in told
    cluster.wait_for(
        "accounts",
        lambda: desk.run("status").stdout,
        enough=lambda said: "0-1 failed: FAILED" in said,
    )


def test_what_is_queued_is_not_measured_here(cluster: Lab, desk: Desk):
    """Of a sweep with jobs in the queue, this machine measures the other points alone."""
    held = "extends: l40\nsbatch_options: [--hold]\n"
    (desk.folder / "cluster_profiles/held.yaml").write_text(held)
    (desk.folder / "here.yaml").write_text("launcher: local\ngpu: l40\n")
    desk.spec(SIX, "s.yaml")
    assert desk.run("submit", "s.yaml", "--cluster", "held").returncode == 0
    done = desk.run("submit", "s.yaml", "--cluster", "here.yaml")
    assert done.returncode == Incomplete.exit_code
    assert "6 points are already queued or running in" in done.stdout
    desk.spec(SIX.replace("69]", "69, 70]"), "s.yaml")
    done = desk.run("submit", "s.yaml", "--cluster", "here.yaml")
    assert "measured 1 ok" in done.stdout, done.stderr
    desk.run("cancel", "s")
    wait_for_the_end(cluster)
    done = desk.run("submit", "s.yaml", "--cluster", "here.yaml")
    assert "measured 6 ok" in done.stdout, done.stderr
