"""Sweeps on a real Slurm: sent once, run on the right node, resumed."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from labtools import SIX, arrays, furnished, requeue, running, wait_for_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from labtools import StartCluster
    from localruns import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep and two profiles; its name is hostile."""
    desk = furnished(tmp_path / "it's a desk", SIX, "max_points_per_chunk: 1\n")
    profiles = desk.folder / "cluster_profiles"
    (profiles / "l40.yaml").write_text("extends: v100\ngpu: l40\nconstraint: gpul40s\n")
    small = "extends: v100\naccount: small\nsetup: ['sleep 600']\n"
    (profiles / "small.yaml").write_text(small)
    return desk


def _points(desk: Desk) -> int:
    """Return how many points have rows; each must have been measured once."""
    rows = [row["point_id"] for row in desk.rows("s")]
    assert len(rows) == len(set(rows))
    return len(rows)


@pytest.mark.no_second_try
def test_two_profiles_run_on_their_own_nodes_and_nothing_is_sent_twice(cluster: Lab, desk: Desk):
    """Rows name profile and job; the same command finds nothing to measure."""
    for gpu in ("v100", "l40"):
        done = desk.run("submit", "s.yaml", "--cluster", gpu)
        assert done.returncode == 0, done.stderr
    wait_for_the_end(cluster)
    assert _points(desk) == 12
    for shard in desk.sweep("s").shards():
        text = shard.env.read_text()
        assert ("v100n1" if "v100" in shard.submission else "l40sn1") in text
        assert "CUDA_VISIBLE_DEVICES" in text or "SLURM_JOB_GPUS" in text
        assert "SLURM_GET_USER_ENV" not in text  # a login shell of the node before each task
    assert "nothing to measure" in desk.run("submit", "s.yaml", "--cluster", "v100").stdout


@pytest.mark.no_second_try
def test_a_limit_half_way_is_told_and_the_same_command_sends_the_rest(cluster: Lab, desk: Desk):
    """Four of six go in, exit code 8; what waits is not sent again; cancelled chunks are."""
    done = desk.run("submit", "s.yaml", "--cluster", "small")
    assert done.returncode == 8, done.stderr
    assert "4 of 6 chunks went in" in done.stderr
    cluster.run("scancel", "--user=root")
    wait_for_the_end(cluster)
    done = desk.run("submit", "s.yaml", "--cluster", "v100")
    assert done.returncode == 0, done.stderr
    wait_for_the_end(cluster)
    assert _points(desk) == 6


@pytest.mark.no_second_try
def test_the_rows_of_jobs_that_have_just_ended_are_seen(bare_cluster: Lab, desk: Desk, nfs):
    """NFS may show their folder as it was before they began; nothing is sent again."""
    assert desk.run("submit", "s.yaml", "--cluster", "v100").returncode == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk.folder)
        nfs()
    wait_for_the_end(bare_cluster)
    told = desk.run("submit", "s.yaml", "--cluster", "v100").stdout
    assert "nothing to measure (6 ok)" in told


@pytest.mark.no_second_try
def test_a_requeued_job_measures_each_point_once(cluster: Lab, desk: Desk):
    """One chunk of six points, requeued after its start; while it lives nothing is sent again."""
    gate = desk.folder / "go"
    wait = json.dumps(f"until [ -e {shlex.quote(str(gate))} ]; do sleep 0.1; done")
    slow = f"extends: v100\nmax_points_per_chunk: 6\nsetup: [{wait}]\n"
    (desk.folder / "cluster_profiles/slow.yaml").write_text(slow)
    done = desk.run("submit", "s.yaml", "--cluster", "slow")
    assert done.returncode == 0, done.stderr
    cluster.wait_for("start", running)
    again = desk.run("submit", "s.yaml", "--cluster", "slow").stdout
    assert "6 points are already queued or running" in again
    requeue(cluster, [job.id for job in running()])
    gate.touch()
    wait_for_the_end(cluster)
    assert _points(desk) == 6


def test_arrays_are_split_where_the_cluster_caps_the_index(bare_cluster: Lab, desk: Desk):
    """Six chunks at five tasks an array: two arrays, the second with an offset."""
    done = desk.run("submit", "s.yaml", "--cluster", "v100")
    assert done.returncode == 0, done.stderr
    (submission,) = desk.sweep("s").submissions()
    sent = [(job.first_chunk, job.tasks) for job in arrays(submission)]
    assert sent == [(0, 5), (5, 1)]
    wait_for_the_end(bare_cluster)
    assert _points(desk) == 6


@pytest.mark.no_second_try
@pytest.mark.slow
def test_a_full_cluster_half_way_is_told_and_the_same_command_sends_the_rest(
    special_cluster: StartCluster, desk: Desk
):
    """At MaxJobCount, of all users together: four chunks are in, and two go in when they ended.

    Ended jobs count for longer than a submission waits.
    """
    lab = special_cluster(accounting=False, max_array_size=4, max_job_count=5, min_job_age=90)
    done = desk.run("submit", "s.yaml", "--cluster", "v100")
    assert done.returncode == 8, done.stderr
    assert "4 of 6 chunks went in" in done.stderr
    assert "MaxJobCount" in done.stderr
    wait_for_the_end(lab)

    lab.wait_for(
        "room",  # slurmctld counts those that ended for a while
        lambda: desk.run("submit", "s.yaml", "--cluster", "v100"),
        enough=lambda done: done.returncode == 0,
        seconds=400,
    )
    wait_for_the_end(lab)
    assert _points(desk) == 6
