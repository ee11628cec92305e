"""Two clusters, or two users, with one results folder: what one cannot see it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gate import Gate
from labtools import point_at, wait_for_the_end
from localruns import COMMAND, Desk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Lab

pytestmark = pytest.mark.no_second_try

SITE = f"partition: gpu\nmax_points_per_chunk: 6\ntime: 30\npython: {json.dumps(sys.executable)}\n"
NOBODY = 65_534


@pytest.fixture
def desk() -> Iterator[Desk]:
    """Give a folder that everybody may read, with a sweep and a profile for each of two GPUs."""
    folder = Path(tempfile.mkdtemp(prefix="shared-"))
    folder.chmod(0o755)  # profiles where others may write are not taken
    (folder / "cluster_profiles").mkdir()
    for gpu in ("v100", "l40"):
        (folder / f"cluster_profiles/{gpu}.yaml").write_text(f"gpu: {gpu}\n{SITE}")
    yield Desk(folder)
    shutil.rmtree(folder)


@pytest.fixture
def gate(desk: Desk) -> Gate:
    """Give the gate at which all points of the sweep but one wait."""
    gate = Gate(desk)
    gate.sweep(points=12, passes=1, name="s")
    return gate


def _two(chunks: list[str]) -> bool:
    return len(chunks) == 2


def _queue(lab: Lab) -> str:
    return lab.run("squeue", "-h", "-o", "%A %j %T").stdout


def test_two_clusters_leave_each_others_jobs_alone(
    special_cluster, desk: Desk, gate: Gate, monkeypatch
):
    """Their jobs have equal numbers; both sweeps come to their end, each point measured once."""
    a = special_cluster(name="a", accounting=False)
    b = special_cluster(name="b", accounting=False)
    b.run("sbatch", "--test-only", "--wrap", "true")  # it takes a number, as before each submission
    assert b.run("sbatch", "--parsable", "-o/dev/null", "--wrap", "sleep 600").stdout == "2\n"
    point_at(a, monkeypatch)
    sent = desk.run("submit", "s.yaml", "--cluster", "v100")
    assert "queued as 2;" in sent.stdout, sent.stderr
    (first,) = desk.sweep("s").submissions()
    a.wait_for("points at the gate", gate.waiting, enough=_two)

    point_at(b, monkeypatch)
    told = desk.run("submit", "s.yaml", "--cluster", "v100")
    assert "points are already queued or running in" in told.stdout, told.stderr
    other = desk.run("submit", "s.yaml", "--cluster", "l40")
    assert "12 points on l40" in other.stdout, other.stderr
    shown = desk.run("status", "s").stdout
    assert f"{first.id}:0-1 running: runs on cluster a as root: ask there" in shown
    refused = desk.run("cancel", "s", first.id)
    assert refused.returncode == 7
    assert "did not cancel chunks 0-1 (jobs 2_[0-1]): on cluster a" in refused.stderr
    assert _queue(b).startswith("2 wrap RUNNING")

    point_at(a, monkeypatch)
    shown = desk.run("status", "s").stdout
    assert "on cluster b as root: ask there" in shown
    assert not {"failed", "lost", "stopped"} & {*shown.replace(":", " ").split()}
    gate.open()
    wait_for_the_end(a)
    b.run("scancel", "2")
    point_at(b, monkeypatch)
    wait_for_the_end(b)
    rows = [row["point_id"] for row in desk.rows("s")]
    assert len(rows) == len(set(rows)) == 24
    assert {shard.attempt for shard in desk.sweep("s").shards()} == {0}
    assert "nothing to measure (12 ok)" in desk.run("submit", "s.yaml", "--cluster", "v100").stdout


def _as_nobody(desk: Desk, *words: str) -> subprocess.CompletedProcess[str]:
    subprocess.run(["chmod", "-R", "a+rwX", desk.results], check=True)
    # unlike `user=`, this finds a Python that only root may read
    somebody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    env = {**os.environ, "HOME": str(desk.folder)}
    return subprocess.run(
        [*somebody, *COMMAND, *words],
        cwd=desk.folder, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_jobs_that_another_user_may_not_see_are_left_alone(special_cluster, desk: Desk, gate: Gate):
    """With PrivateData=jobs squeue says to him that there is no such job."""
    lab = special_cluster(accounting=False, lines=("PrivateData=jobs",))
    (lab.directory / "slurm.conf").chmod(0o644)
    (lab.directory / "job_ids.conf").chmod(0o644)
    assert desk.run("submit", "s.yaml", "--cluster", "v100").returncode == 0
    (first,) = desk.sweep("s").submissions()
    lab.wait_for("points at the gate", gate.waiting, enough=_two)
    told = _as_nobody(desk, "submit", "s.yaml", "--cluster", "v100")
    why = "on cluster lab as root: ask there"
    assert "points are already queued or running" in told.stdout
    shown = _as_nobody(desk, "status", "s").stdout
    assert f"{first.id}:0-1 running: runs {why}" in shown
    refused = _as_nobody(desk, "cancel", "s")
    assert (refused.returncode, why in refused.stderr) == (7, True), refused
    assert "R" in lab.run("squeue", "-h", "-o", "%t").stdout
    assert "cancelled chunks 0-1" in desk.run("cancel", "s").stdout
    lab.wait_for("SIGTERM", gate.was_told)
    gate.open()
    wait_for_the_end(lab)
    assert {shard.attempt for shard in desk.sweep("s").shards()} == {0}
