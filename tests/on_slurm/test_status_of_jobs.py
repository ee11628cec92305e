"""What `status` says of a sweep in a real queue, and when Slurm says nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gate import Gate
from hpcsweep.cluster import slurm
from labtools import one_at_a_time, requeue, running, wait_for_the_end

if TYPE_CHECKING:
    from lab import Lab
    from localruns import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep of two chunks, of which one can run at a time."""
    desk = one_at_a_time(tmp_path)
    (tmp_path / "cluster_profiles/vain.yaml").write_text("extends: l40\npartition: closed\n")
    return desk


def _status(desk: Desk) -> dict[str, Any]:
    (sweep,) = json.loads(desk.run("status", "--json").stdout)["sweeps"]
    return sweep


def test_a_sweep_in_the_queue_is_told_chunk_by_chunk(cluster: Lab, desk: Desk):
    """One runs, one waits for a reason; a requeued one is told apart."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=1, name="s")
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    cluster.wait_for("point at the gate", gate.waiting)
    found = cluster.wait_for(
        "reason",
        lambda: _status(desk),
        enough=lambda said: said["profiles"][0]["waits_for"] == {"Resources": 1},
    )
    (profile,) = found["profiles"]
    assert profile["chunks"] == {"pending": 1, "running": 1}
    assert (profile["running"]["done"], profile["running"]["points"]) == (1, 3)
    assert profile["points_per_second"] == 0  # the end of one point tells no pace
    assert (profile["live"], found["not_asked"]) == (5, [])
    _tells_when_it_starts(cluster, desk)
    requeue(cluster, [job.id for job in running()])
    cluster.wait_for("SIGTERM", gate.was_told)
    gate.let_pass()  # the point that was under way: the other chunk, which begins now, waits
    cluster.wait_for(
        "requeued chunk",
        lambda: _status(desk)["profiles"][0]["chunks"],
        enough=lambda chunks: "requeued" in chunks,
    )
    gate.open()
    wait_for_the_end(cluster)
    (profile,) = _status(desk)["profiles"]
    assert (profile["chunks"], profile["live"]) == ({"done": 2}, 0)


def _tells_when_it_starts(lab: Lab, desk: Desk) -> None:
    """Compare with Slurm's own word: when the other's time is up."""
    guess = lab.wait_for(
        "guess", lambda: _status(desk)["profiles"][0]["expected_start"], enough=bool
    )
    by_slurm = lab.run("squeue", "--start", "-h", "-r", "-o", "%S").stdout.strip()
    assert guess["first"] == guess["last"] == slurm.moment(by_slurm).isoformat()
    when = f"at (20.* )?{by_slurm[11:16]}, in (29|30) min"
    words = rf"s: l40: waiting chunks: the first is expected to start {when} \(Slurm's guess\)"
    assert re.search(words, " ".join(desk.run("status").stdout.split()))


def test_waiting_in_vain_is_said_plainly(cluster: Lab, desk: Desk):
    """A closed partition takes jobs that never start."""
    sent = desk.run("submit", "s.yaml", "--cluster", "vain", "--no-doctor")
    assert sent.returncode == 0, sent.stderr
    (submission,) = desk.sweep("s").submissions()
    words = "will not start by waiting: the partition is closed (PartitionDown)"
    cluster.wait_for(
        "reason",
        lambda: desk.run("status").stdout,
        enough=lambda said: f"{submission.id}:0-1 pending: {words}" in said,
    )
    assert "expected to start" not in desk.run("status").stdout


def _files(desk: Desk) -> set[Path]:
    """Return the files below the results, but for those that an attempt is about to replace."""
    return {path for path in desk.results.rglob("*") if not path.name.startswith(".")}


def _let_pass(minutes: int) -> None:
    """Make what status remembers older."""
    (kept,) = Path(os.environ["XDG_CACHE_HOME"]).rglob("*.json")
    record = json.loads(kept.read_text())
    for told in record["told"]:
        told["at"] = (slurm.moment(told["at"]) - timedelta(minutes=minutes)).isoformat()
    kept.write_text(json.dumps(record))


@pytest.mark.no_second_try
def test_a_job_on_hold_is_told_with_the_command_that_lets_it_go(cluster: Lab, desk: Desk):
    """Before and after its start, though this Slurm calls both pending."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=1, name="s")
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    cluster.wait_for("point at the gate", gate.waiting)
    job = running()[0].id.job
    cluster.run("scontrol", "uhold", f"{job}_1")
    cluster.run("scontrol", "requeuehold", f"{job}_0")
    cluster.wait_for("SIGTERM", gate.was_told)
    gate.open()
    cluster.wait_for(
        "both on hold",
        lambda: _status(desk)["profiles"][0]["chunks"],
        enough=lambda chunks: chunks == {"held": 2},
    )
    said = desk.run("status").stdout
    for chunk in (0, 1):
        words = f":{chunk} held: will not start by waiting: held by a person; "
        assert f"{words}`scontrol release {job}_{chunk}`" in said
    for command in re.findall("`(scontrol [^`]+)`", said):
        cluster.run(*shlex.split(command))
    wait_for_the_end(cluster)
    assert _status(desk)["profiles"][0]["chunks"] == {"done": 2}


@pytest.mark.no_second_try
def test_silence_is_told_and_nothing_is_sent_twice(
    bare_cluster: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """Without slurmctld status answers from rows; submit counts everything as live, aloud.

    After our own patience, since a client of Slurm itself waits for 19 s. What status last saw of
    each chunk is told with its age, and is no reason to send one again that was cancelled then.
    """
    gate = Gate(desk)
    gate.sweep(points=6, passes=0, name="s")
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    bare_cluster.wait_for("point at the gate", gate.waiting)
    (job,) = running()
    (submission,) = desk.sweep("s").submissions()
    bare_cluster.run("scancel", f"{job.id.job}_1")
    before = _files(desk)
    bare_cluster.wait_for(
        "cancellation",
        lambda: _status(desk)["profiles"][0]["chunks"],
        enough=lambda chunks: chunks == {"running": 1, "cancelled": 1},
    )
    assert _files(desk) == before  # status writes nothing there
    bare_cluster.kill("slurmctld")
    monkeypatch.setattr(slurm.call, "TIMEOUT", 0.5)
    _let_pass(minutes=14)
    shown = desk.run("status")
    assert shown.returncode == 0, shown.stderr
    assert "2 unknown" in shown.stdout
    assert f"s: {submission.id}:0 was running, as of 14 min ago" in shown.stdout
    why = "CANCELLED: cancelled; submit again to continue"
    was = f"s: {submission.id}:1 was cancelled ({why}), as of 14 min ago"
    assert was in shown.stdout
    assert "not asked: squeue: no answer within 0.5 s" in shown.stdout
    sent = desk.run("submit", "s.yaml", "--cluster", "l40")
    assert sent.returncode == 0, sent.stderr
    assert "counts as queued or running" in sent.stderr
    assert "nothing to measure" in sent.stdout
    assert len(desk.sweep("s").submissions()) == 1
    gone = desk.run("status", PATH="/nonexistent")
    assert "not asked: squeue: not found" in gone.stdout
    assert was in gone.stdout
    gate.open()
