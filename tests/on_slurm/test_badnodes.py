"""Nodes that broke: what Slurm or CUDA blames is avoided by the next submission, and told."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from hpcsweep.cluster.slurm import bad_nodes, journal
from labtools import running, wait_for_the_end
from localruns import Desk

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab

LONG = "name: s\nworkload: noop\naxes: {model: [a], input_size: [64, 65]}\n"
LONG += "measure: {sleep_ms: 600000}\n"
SITE = "gpu: any\npartition: gpu\ngres: 'gpu:1'\npython: {python}\n"
SITE += "max_points_per_chunk: 1\ntime: 30\nmem: 4G\n"
SITE += "kill_wait: 1\n"  # nobody waits for the end of a point of ten minutes


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep, and profiles for every node and for one node."""
    profiles = tmp_path / "cluster_profiles"
    profiles.mkdir()
    (profiles / "any.yaml").write_text(SITE.format(python=sys.executable))
    (profiles / "l40.yaml").write_text("extends: any\nconstraint: gpul40s\n")
    desk = Desk(tmp_path)
    desk.spec(LONG, "s.yaml")
    return desk


def _break_a_node(lab: Lab, desk: Desk, profile: str) -> str:
    """Submit, take a node down under a running chunk, end the rest; return the node."""
    assert desk.run("submit", "s.yaml", "--cluster", profile).returncode == 0
    run = desk.sweep("s")
    node = lab.wait_for("start", running)[0].nodes
    lab.run("scontrol", "update", f"nodename={node}", "state=down", "reason=a test")
    # kept at once: the accounts of a requeued job change once more when it is cancelled
    lab.wait_for("failed node", lambda: bad_nodes.learn(run, journal.ask_slurm(run.submissions())))
    lab.run("scancel", "--user=root")
    wait_for_the_end(lab)
    return node


def test_a_node_that_died_is_avoided_for_a_day(cluster: Lab, desk: Desk):
    """Its points go to other nodes, it is named with the reason, and memory outlives sacct."""
    node = _break_a_node(cluster, desk, "any")
    sent = desk.run("submit", "s.yaml", "--cluster", "any")
    assert sent.returncode == 0, sent.stderr
    assert f"excludes {node} (NODE_FAIL" in sent.stderr
    (_, second) = desk.sweep("s").submissions()
    assert f"#SBATCH --exclude={node}\n" in second.script.read_text()
    cluster.kill("slurmdbd")
    assert [bad.name for bad in bad_nodes.current(desk.sweep("s"), journal.SlurmAnswer())] == [node]
    cluster.spawn("slurmdbd")


def test_the_last_node_is_used_again_and_that_is_told(cluster: Lab, desk: Desk):
    """An exclusion that leaves no node is given up aloud; a dry run showed it before."""
    node = _break_a_node(cluster, desk, "l40")
    assert node == "l40sn1"
    shown = desk.run("submit", "s.yaml", "--cluster", "l40", "--dry-run").stdout
    assert "#SBATCH --exclude=l40sn1" in shown
    sent = desk.run("submit", "s.yaml", "--cluster", "l40")
    assert sent.returncode == 0, sent.stderr
    assert "only excluded nodes are left" in sent.stderr
    assert "l40sn1 (NODE_FAIL" in sent.stderr


def test_a_gpu_that_does_not_initialise_costs_no_point_and_its_node_is_avoided(
    cluster: Lab, desk: Desk
):
    """The fake GPU of the node is one that CUDA cannot find: no row, and the next node is tried."""
    desk.spec("name: s\nworkload: inference\naxes: {model: [resnet18]}\n", "s.yaml")
    assert desk.run("submit", "s.yaml", "--cluster", "any").returncode == 0
    run = desk.sweep("s")
    wait_for_the_end(cluster)
    (env,) = (json.loads(shard.env.read_text()) for shard in run.shards())
    assert (env["state"], "torch finds no GPU" in env["reason"]) == ("refused", True)
    (bad,) = bad_nodes.current(run, journal.SlurmAnswer())
    assert (bad.name, "failed to initialise" in bad.why) == (env["node"], True)
    assert desk.rows("s") == []
    sent = desk.run("submit", "s.yaml", "--cluster", "any")
    assert f"excludes {bad.name} (its GPU failed" in sent.stderr
    cluster.run("scancel", "--user=root")
