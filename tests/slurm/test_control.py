"""What a person does to a sweep in Slurm's hands: cancel parts of it, read its logs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from hpcsweep import shards, slurm
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
    desk = Desk(tmp_path)
    desk.spec(SLOW, "s.yaml")
    return desk


def _rows(desk: Desk) -> list[str]:
    keys = (shards.read_keys(shard.overall) for shard in desk.sweep("s").shards())
    return [key.point_id for found in keys for key in found]


def _env(desk: Desk) -> str:
    return "".join(path.read_text() for path in desk.sweep("s").shards_dir.glob("*/*.env.json"))


def test_scancel_by_hand_ends_a_running_chunk_after_its_current_point(cluster: Lab, desk: Desk):
    """The job's own requeue must not bring it back to life; the point under way is kept."""
    assert desk.run("submit", "s.yaml", "--cluster", "l40").returncode == 0
    cluster.wait_for("a worker", lambda: '"device_name"' in _env(desk))
    cluster.run("scancel", "--user=root")
    cluster.wait_for("the end", lambda: all(job.state.over for job in slurm.queue()))
    (submission,) = desk.sweep("s").submissions()
    (out,) = submission.logs.glob("slurm-*_0.out")
    after = out.read_text().partition("CANCELLED AT")[2]
    assert (after.count(" ok "), after.count("stopped: ")) == (1, 1), out.read_text()
    assert {job.state.name for job in slurm.queue()} == {"CANCELLED"}
    assert 0 < len(_rows(desk)) < 6
