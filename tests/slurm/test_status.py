"""What `status` says of a sweep in a real queue, and when Slurm says nothing."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep import slurm
from localruns import Desk

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab

SPEC = "name: s\nworkload: noop\naxes: {model: [a], input_size: [64, 65, 66, 67]}\n"
SLOW = SPEC + "measure: {sleep_ms: 3000}\n"
SITE = "gpu: l40\npartition: gpu\nconstraint: gpul40s\ngres: 'gpu:2'\npython: {python}\n"
SITE += "max_points_per_chunk: 2\ntime: 30\n"


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
    return any(job.state.meaning is slurm.Meaning.RUNNING for job in slurm.queue())


def _over() -> bool:
    return all(job.state.over for job in slurm.queue())


def test_waiting_in_vain_is_said_plainly(cluster: Lab, desk: Desk):
    """A closed partition takes jobs that never start."""
    sent = desk.run("submit", "s.yaml", "--cluster", "vain", "--no-check")
    assert sent.returncode == 0, sent.stderr
    (submission,) = desk.sweep("s").submissions()
    cluster.wait_for("the reason", lambda: "will not start" in desk.run("status").stdout)
    words = "will not start by waiting: the partition is closed (PartitionDown)"
    assert f"{submission.id}:0-1 pending: {words}" in desk.run("status").stdout


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
    assert "counts as live" in sent.stdout
    assert "nothing to send" in sent.stdout
    assert len(desk.sweep("s").submissions()) == 1
    gone = desk.run("status", PATH="/nonexistent")
    assert "not asked: squeue: not found" in gone.stdout
