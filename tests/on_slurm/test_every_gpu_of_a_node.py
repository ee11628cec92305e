"""Jobs that have all GPUs of a node, on a real Slurm whose nodes have eight fake ones."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from gate import Gate
from hpcsweep.errors import Refused
from hpcsweep.store import attempt
from hpcsweep.store.folders import ShardPath
from lab import PATIENCE_S
from labtools import arrays, running, wait_for_the_end
from localruns import Desk
from waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.store.folders import SweepDir
    from labtools import StartCluster

PROFILE = f"""\
gpu: {{gpu}}
partition: {{gpu}}
gres: gpu:{{gpu}}:8
gpus_per_job: 8
launcher: {{launcher}}
python: {json.dumps(sys.executable)}
max_points_per_chunk: 2
kill_wait: 5
time: 30
mem: 4G
cpus_per_task: 8
"""
BOTH = pytest.mark.parametrize(("gpu", "launcher"), [("v100", "sbatch"), ("mi250", "submitit")])


def _at_eight_gates(tmp_path: Path, gpu: str, launcher: str) -> Gate:
    """Submit 18 points to jobs of eight GPUs; return when the first job's eight wait."""
    gate = Gate(Desk(tmp_path))
    gate.sweep(points=18, passes=0)
    (tmp_path / "cluster_profiles").mkdir()
    text = PROFILE.format(gpu=gpu, launcher=launcher)
    (tmp_path / "cluster_profiles/node.yaml").write_text(text)
    done = gate.desk.run("submit", "sweep.yaml", "--cluster", "node")
    assert done.returncode == 0, done.stderr
    wait_for("eight points", gate.gpus, enough=lambda gpus: len(gpus) == 8, seconds=PATIENCE_S)
    return gate


def _assert_each_once(sweep: SweepDir, desk: Desk) -> None:
    rows = Counter(row["point_id"] for row in desk.rows("sweep"))
    assert rows.total() == len(rows) == 18
    assert len({row["slurm_job_id"] for row in desk.rows("sweep")}) == 1
    (submission,) = sweep.submissions()
    (array,) = arrays(submission)
    assert (array.tasks, array.per_task) == (submission.read_manifest().chunks, 8)


@BOTH
@pytest.mark.no_second_try
def test_a_job_uses_every_gpu_of_its_node_and_a_kill_of_one_leaves_the_others_going(
    special_cluster: StartCluster, tmp_path: Path, gpu: str, launcher: str
):
    """Each of eight supervisors has a GPU of its own; the points of a killed one come next."""
    lab = special_cluster(accounting=False, gpus_per_node=8)
    gate = _at_eight_gates(tmp_path, gpu, launcher)
    assert gate.gpus() == list("01234567")
    assert len(running()) == 1

    sweep = gate.desk.sweep("sweep")
    killed = next(shard for shard in sweep.shards() if shard.chunk == 3)
    record = attempt.read_record(killed)
    assert record
    os.kill(record.pid, signal.SIGKILL)
    gate.open()
    wait_for_the_end(lab)

    _assert_each_once(sweep, gate.desk)
    attempts = Counter(shard.chunk for shard in sweep.shards())
    assert attempts[3] == 2
    first = [shard for shard in sweep.shards() if shard.attempt == 0 and shard.chunk < 8]
    ended = {shard.chunk: attempt.read_record(shard).state for shard in first}
    assert Counter(map(str, ended.values())) == {"done": 7, "running": 1}
    status = gate.desk.run("status", "sweep").stdout
    assert "18" in status


@pytest.mark.parametrize(
    ("gpu", "launcher", "words"),
    [
        ("v100", "sbatch", ["--batch", "--signal=USR1"]),
        ("mi250", "submitit", ["--signal=USR2"]),
    ],
)
@pytest.mark.no_second_try
def test_a_job_that_is_told_to_finish_requeues_itself_for_what_is_left(
    special_cluster: StartCluster, tmp_path: Path, gpu: str, launcher: str, words: list[str]
):
    """As ahead of the time limit: each supervisor gives its point `kill_wait`, and is told why."""
    lab = special_cluster(accounting=False, gpus_per_node=8)
    gate = _at_eight_gates(tmp_path, gpu, launcher)
    (job,) = running()
    lab.run("scancel", *words, str(job.id))
    first = [ShardPath(shard.folder, shard.chunk, 0) for shard in gate.desk.sweep("sweep").shards()]
    wait_for(
        "stop of all",
        lambda: {attempt.read_record(shard).state for shard in first},
        enough=lambda states: states == {"stopped"},
        seconds=PATIENCE_S,
    )
    gate.open()
    wait_for_the_end(lab)
    _assert_each_once(gate.desk.sweep("sweep"), gate.desk)
    attempts = Counter(shard.chunk for shard in gate.desk.sweep("sweep").shards())
    assert [attempts[chunk] for chunk in range(8)] == [2] * 8


@BOTH
@pytest.mark.no_second_try
def test_a_cancelled_job_is_told_once_and_the_next_submit_measures_the_rest(
    special_cluster: StartCluster, tmp_path: Path, gpu: str, launcher: str
):
    """Every supervisor of the job gets the signal; chunks that share a task are cancelled by it."""
    lab = special_cluster(accounting=False, gpus_per_node=8)
    gate = _at_eight_gates(tmp_path, gpu, launcher)
    told = gate.desk.run("cancel", "sweep").stdout
    assert "cancelled chunks 0-" in told
    wait_for_the_end(lab)
    states = {attempt.read_record(shard).state for shard in gate.desk.sweep("sweep").shards()}
    assert states == {"stopped"}
    gate.open()
    done = gate.desk.run("submit", "sweep.yaml", "--cluster", "node")
    assert done.returncode == 0, done.stderr
    wait_for_the_end(lab)
    assert len({row["point_id"] for row in gate.desk.rows("sweep")}) == 18


@BOTH
def test_a_control_tells_what_neighbours_cost(
    special_cluster: StartCluster, tmp_path: Path, gpu: str, launcher: str
):
    """Each of two jobs measures its first point alone, too; each point has one row.

    The site takes one task an array, so that the second job begins with chunk 8.
    """
    lab = special_cluster(accounting=False, gpus_per_node=8, max_array_size=1)
    desk = Desk(tmp_path)
    (tmp_path / "cluster_profiles").mkdir()
    text = PROFILE.format(gpu=gpu, launcher=launcher)
    (tmp_path / "cluster_profiles/node.yaml").write_text(text)
    desk.spec(
        "workload: noop\nmeasure: {sleep_ms: 300}\n"
        "axes: {model: [a], input_size: {start: 1, stop: 32, num: 32}}\n"
    )
    shown = desk.run("submit", "sweep.yaml", "--cluster", "node", "--dry-run").stdout
    assert "32 points in 16 chunks" in shown
    assert re.search(r"--array[= ]0-0\b", shown)
    done = desk.run("submit", "sweep.yaml", "--cluster", "node")
    assert done.returncode == 0, done.stderr
    (submission,) = desk.sweep("sweep").submissions()
    sent = [(array.first_chunk, array.tasks, array.per_task) for array in arrays(submission)]
    assert sent == [(0, 8, 8), (8, 8, 8)]
    wait_for_the_end(lab)
    assert desk.run("collect", "sweep").returncode == 0
    with desk.sweep("sweep").overall.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({row["point_id"] for row in rows}) == 32
    assert {row["neighbours"] for row in rows} <= set("01234567")
    assert "7" in {row["neighbours"] for row in rows}
    for command in ("report", "status"):
        told = desk.run(command, "sweep").stdout
        assert re.search(r"beside 7 neighbours \d+\.\d % \w+ than alone \(median of 2 jobs\)", told)


def test_a_site_that_gives_whole_nodes_is_discovered(special_cluster: StartCluster, tmp_path: Path):
    """By its partition, or by what its QOS demands; a profile that lags behind is refused."""
    whole = "PartitionName=a_whole Nodes=v100n1 OverSubscribe=EXCLUSIVE"
    several = "PartitionName=a_half Nodes=mi250n1 QOS=calm"
    lab = special_cluster(gpus_per_node=8, lines=(whole, several))
    lab.run("sacctmgr", "-i", "modify", "qos", "calm", "set", "MinTRESPerJob=gres/gpu=4")
    desk = Desk(tmp_path)
    done = desk.run("discover")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "cluster_profiles/v100.yaml").read_text()
    assert 'partition: "a_whole"' in written
    assert 'gres: "gpu:v100:8"\ngpus_per_job: 8\n' in written
    written = (tmp_path / "cluster_profiles/mi250.yaml").read_text()
    assert 'gres: "gpu:mi250:4"\ngpus_per_job: 4\n' in written
    for name in ("v100", "mi250"):
        done = desk.run("doctor", "--cluster", name)
        assert "would accept these jobs" in done.stdout
        assert "gpus_per_job" not in done.stdout
    (tmp_path / "cluster_profiles/one.yaml").write_text(
        "extends: mi250\ngres: gpu:mi250:1\ngpus_per_job: 1\n"
    )
    done = desk.run("doctor", "--cluster", "one")
    assert "your QOS lets no job start with less than 4 GPUs" in done.stdout
    assert done.returncode == Refused.exit_code
