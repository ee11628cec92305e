"""`submit --each-node` on a real Slurm: each node has each point once, whatever becomes of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.errors import Refused, UsageError
from labtools import queue, wait_for_the_end
from localruns import Desk

if TYPE_CHECKING:
    from lab import Lab

pytestmark = pytest.mark.no_second_try

PROFILE = f"gpu: l40\npartition: gpu\ntime: 30\npython: {json.dumps(sys.executable)}\n"
SPEC = """\
name: s
workload: command
axes: {size: [1, 2, 3, 4]}
run: python one.py {size} {out}
results: {csv: "{out}/end.csv"}
"""
# one node takes a tenth longer; by some thousandths no two runs are alike
SCRIPT = """\
import os, sys
size, out = sys.argv[1:]
node = os.environ.get("SLURMD_NODENAME", "here")
ms = float(size) * (1.1 if node == "l40sn1" else 1.0) * (1 + 0.001 * (len(node) % 3) * float(size))
open(out + "/end.csv", "w").write(f"step_ms\\n{ms}\\n")
"""


def desk_in(folder: Path, launcher: str) -> Desk:
    """Return a folder with a program whose time depends on its node, and a profile of all nodes."""
    (folder / "cluster_profiles").mkdir(parents=True)
    (folder / "one.py").write_text(SCRIPT)
    desk = Desk(folder)
    desk.spec(SPEC, "s.yaml")
    profile(desk, f"launcher: {launcher}\n")
    return desk


def profile(desk: Desk, more: str) -> None:
    """Write the profile `all`, which every node of the cluster matches."""
    (desk.folder / "cluster_profiles/all.yaml").write_text(PROFILE + more)


def submitted(desk: Desk, *more: str) -> str:
    """Submit to each node; return what was said."""
    done = desk.run("submit", "s.yaml", "--cluster", "all", "--each-node", *more)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def record(desk: Desk, *command: str) -> dict[str, Any]:
    """Return what a command says to programs."""
    done = desk.run(*command, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def places(desk: Desk) -> Counter[str]:
    """Return how many points were measured on each node; each ran where it was sent."""
    rows = desk.rows("s")
    assert len({row["point_id"] for row in rows}) == len(rows)
    assert all(row["node"] == row["on_node"] for row in rows)
    return Counter(row["node"] for row in rows)


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_each_node_gets_each_point_once_also_one_that_was_out_of_service(
    cluster: Lab, tmp_path: Path, launcher: str
):
    """What is drained is told; when it is back it gets its points, others get none twice."""
    desk = desk_in(tmp_path, launcher)
    cluster.run("scontrol", "update", "nodename=v100n1", "state=drain", "reason=broken fan")
    told = submitted(desk, "--dry-run")
    assert "8 points in 2 chunks on 2 nodes" in told
    assert "nodelist=l40sn1" in told
    told = submitted(desk)
    assert "left out v100n1 (drained: broken fan)" in told
    assert "8 points on l40 (2 nodes)" in told
    wait_for_the_end(cluster)
    assert places(desk) == {"l40sn1": 4, "mi250n1": 4}

    cluster.run("scontrol", "update", "nodename=v100n1", "state=resume")
    sinfo = ("sinfo", "-h", "-n", "v100n1", "-p", "all", "-o", "%T")
    cluster.wait_for(
        "node", lambda: cluster.run(*sinfo).stdout, enough=lambda said: said == "idle\n"
    )
    profile(desk, f"launcher: {launcher}\nsbatch_options: [--hold]\n")
    (estimate,) = record(desk, "estimate", "s.yaml", "--cluster", "all", "--each-node")["estimates"]
    assert (estimate["nodes"], estimate["points"]) == (["v100n1"], 4)
    assert estimate["already_measured"] == 8
    assert "4 points on l40 (1 node)" in submitted(desk)
    cluster.run("scontrol", "update", "nodename=v100n1", "state=drain", "reason=new driver")
    cluster.run("scontrol", "release", *{str(job.id.job) for job in queue() if not job.state.over})
    status = cluster.wait_for(
        "reason", lambda: desk.run("status", "s").stdout, enough=lambda said: "v100n1" in said
    )
    assert "12" in status
    cluster.run("scontrol", "update", "nodename=v100n1", "state=resume")
    wait_for_the_end(cluster)
    assert places(desk) == {"l40sn1": 4, "mi250n1": 4, "v100n1": 4}
    assert "nothing to measure (12 ok" in submitted(desk)

    profile(desk, f"launcher: {launcher}\n")
    row = next(row for row in desk.rows("s") if row["node"] == "v100n1")
    again = desk.run("retry", "s", "--point", row["point_id"])
    assert again.returncode == 0, again.stderr
    wait_for_the_end(cluster)
    newest = [each for each in desk.rows("s") if each["point_id"] == row["point_id"]]
    assert {each["node"] for each in newest} == {"v100n1"}
    assert len(newest) == 2
    found = record(desk, "report", "s", "--metric", "step_ms")["nodes"]
    assert {each["node"]: each["verdict"] for each in found} == {
        "l40sn1": "slower", "mi250n1": "", "v100n1": "",
    }  # fmt: skip
    ordinary = desk.run("submit", "s.yaml", "--cluster", "all")
    assert "4 points on l40" in ordinary.stdout + ordinary.stderr
    wait_for_the_end(cluster)
    status = record(desk, "status", "s")["sweeps"][0]["profiles"][0]
    assert (status["points"], status["pending"], status["orphans"]) == (16, 0, 0)


def test_a_place_without_nodes_to_choose_from_is_refused(cluster: Lab, tmp_path: Path):
    """This machine is one node; of several that are all out of service none can be measured."""
    desk = desk_in(tmp_path, "sbatch")
    local = desk.run("submit", "s.yaml", "--cluster", "local", "--each-node")
    assert local.returncode == UsageError.exit_code
    assert "which is one node" in local.stderr
    profile(desk, "nodelist: l40sn1\n")
    cluster.run("scontrol", "update", "nodename=l40sn1", "state=drain", "reason=broken fan")
    refused = desk.run("submit", "s.yaml", "--cluster", "all", "--each-node")
    assert refused.returncode == Refused.exit_code
    assert "none of 1 node is in service: l40sn1 (drained: broken fan)" in refused.stderr


def test_a_node_that_slurm_refuses_leaves_the_others_theirs(cluster: Lab, tmp_path: Path):
    """Only sbatch knows each expression of features; what it says of one node is told."""
    desk = desk_in(tmp_path, "sbatch")
    profile(desk, "constraint: (gpul40s&gpu2v100)|mi250\n")
    told = submitted(desk, "--no-doctor")
    assert "v100n1 got no points: " in told
    assert "node configuration is not available" in told
    assert "1 chunk queued" in told
    wait_for_the_end(cluster)
    assert places(desk) == {"mi250n1": 4}
