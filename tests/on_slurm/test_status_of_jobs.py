"""What `status` says of a sweep in a real queue, and when Slurm says nothing."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.cluster import slurm
from hpcsweep.store.state import ChunkState
from labtools import queue_is_over, requeue
from localruns import Desk

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab

SPEC = "name: s\nworkload: noop\naxes: {model: [a], input_size: [64, 65, 66, 67, 68, 69]}\n"
SLOW = SPEC + "measure: {sleep_ms: 1500}\n"
SITE = "gpu: l40\npartition: gpu\nconstraint: gpul40s\ngres: 'gpu:2'\npython: {python}\n"
SITE += "max_points_per_chunk: 3\ntime: 30\n"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep of two chunks, of which one can run at a time."""
    profiles = tmp_path / "cluster_profiles"
    profiles.mkdir()
    (profiles / "l40.yaml").write_text(SITE.format(python=sys.executable))
    (profiles / "vain.yaml").write_text("extends: l40\npartition: closed\n")
    desk = Desk(tmp_path)
    desk.spec(SLOW, "s.yaml")
    return desk


def _status(desk: Desk) -> dict[str, Any]:
    (sweep,) = json.loads(desk.run("status", "--json").stdout)["sweeps"]
    return sweep


def _running() -> bool:
    return any(job.state.meaning is ChunkState.RUNNING for job in slurm.queue())


def test_a_sweep_in_the_queue_is_told_chunk_by_chunk(cluster: Lab, desk: Desk):
    """One runs with a pace, one waits for a reason; a requeued one is told apart."""
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    cluster.wait_for("a row", lambda: desk.rows("s"))
    cluster.wait_for("a reason", lambda: _status(desk)["profiles"][0]["waits_for"])
    found = _status(desk)
    (profile,) = found["profiles"]
    assert profile["chunks"] == {"pending": 1, "running": 1}
    assert profile["waits_for"] == {"Resources": 1}
    done = profile["running"]["done"]
    assert (1 <= done <= len(desk.rows("s")), profile["running"]["points"]) == (True, 3)
    assert profile["points_per_second"] > 0
    assert (profile["live"], found["not_asked"]) == (6 - done, [])
    requeue(cluster, [j.id for j in slurm.queue() if not j.state.over and j.started])
    cluster.wait_for("the requeue", lambda: "requeued" in _status(desk)["profiles"][0]["chunks"])
    cluster.wait_for("the end", queue_is_over, timeout=60)
    (profile,) = _status(desk)["profiles"]
    assert (profile["chunks"], profile["live"]) == ({"done": 2}, 0)


def test_waiting_in_vain_is_said_plainly(cluster: Lab, desk: Desk):
    """A closed partition takes jobs that never start."""
    sent = desk.run("submit", "s.yaml", "--cluster", "vain", "--no-doctor")
    assert sent.returncode == 0, sent.stderr
    (submission,) = desk.sweep("s").submissions()
    cluster.wait_for("the reason", lambda: "will not start" in desk.run("status").stdout)
    words = "will not start by waiting: the partition is closed (PartitionDown)"
    assert f"{submission.id}:0-1 pending: {words}" in desk.run("status").stdout


@pytest.mark.no_second_try
def test_silence_is_told_and_nothing_is_sent_twice(bare_cluster: Lab, desk: Desk):
    """Without slurmctld status answers from rows; submit counts everything as live, aloud."""
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    bare_cluster.wait_for("a start", _running)
    bare_cluster.kill("slurmctld")
    began = time.monotonic()
    shown = desk.run("status")
    assert time.monotonic() - began < 19, "slower than a client of Slurm itself"
    assert shown.returncode == 0, shown.stderr
    assert "2 unknown" in shown.stdout
    assert "not asked: squeue: " in shown.stdout
    sent = desk.run("submit", "s.yaml", "--cluster", "l40")
    assert sent.returncode == 0, sent.stderr
    assert "counts as queued or running" in sent.stderr
    assert "nothing to measure" in sent.stdout
    assert len(desk.sweep("s").submissions()) == 1
    gone = desk.run("status", PATH="/nonexistent")
    assert "not asked: squeue: not found" in gone.stdout
