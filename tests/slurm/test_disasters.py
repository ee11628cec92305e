"""Nothing measured is lost: disasters strike running sweeps, and the same command ends them well.

All of them happen at the same time, each in a thread of its own, since most of what they cost is
waiting for Slurm. Every test then looks at one of them. slurmctld dies last and alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import disasters
from conftest import _point_at
from hpcsweep import badnodes, queues
from lab import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from disasters import Sweep
    from lab import Lab

    Story = Callable[[Lab, Path], list["Sweep"]]


def a_node_is_killed(lab: Lab, folder: Path) -> list[Sweep]:
    """Power is cut: slurmd, its steps and the jobs die at once; the node boots when it was missed.

    Then the sweep grows: its new points go elsewhere.
    """
    one = disasters.sweep(lab, folder / "killed", "partition: v100\n")
    one.begin(rows=4)
    lab.kill("v100n1")
    one.wait("NODE_FAIL", lambda: {job.state.name for job in one.jobs()} == {"PENDING"})
    lab.spawn("v100n1")
    one.finish()
    return [one]


def a_running_task_is_requeued(lab: Lab, folder: Path) -> list[Sweep]:
    """An administrator sends a running task back to the queue."""
    one = disasters.sweep(lab, folder / "requeued", "partition: mi250\n")
    one.begin(rows=4)
    lab.run("scontrol", "requeue", str(one.running()[0].id))
    one.finish()
    return [one]


def tasks_are_cancelled(lab: Lab, folder: Path) -> list[Sweep]:
    """A person cancels the array: one task runs, two wait behind the throttle."""
    one = disasters.sweep(lab, folder / "cancelled", "partition: mi250\narray_throttle: 1\n")
    one.begin(rows=2)
    assert {job.state.name for job in one.jobs()} == {"RUNNING", "PENDING"}, one.jobs()
    lab.run("scancel", *{str(job.id.job) for job in one.jobs()})
    one.finish()
    return [one]


def time_runs_out(lab: Lab, folder: Path) -> list[Sweep]:
    """The time limit expires; Slurm looks every 30 s, so the points are slow."""
    site = "partition: mi250\n"
    one = disasters.sweep(lab, folder / "expired", site, points=40, chunk=40, sleep_ms=1000)
    one.begin()
    (job,) = one.running()
    lab.run("scontrol", "update", f"jobid={job.id}", f"EndTime={disasters.after(0)}")
    one.wait("TIMEOUT", lambda: {j.state.name for j in one.jobs()} == {"TIMEOUT"})
    one.profile("any", "partition: mi250\nmax_points_per_chunk: 8\n")  # faster to the end
    one.finish()
    return [one]


def tasks_are_preempted(lab: Lab, folder: Path) -> list[Sweep]:
    """A job of higher priority takes the node from two sweeps: requeued, and cancelled for good."""
    node = "constraint: gpul40s\n"
    pair = [
        disasters.sweep(lab, folder / "back", f"partition: low\n{node}"),
        disasters.sweep(lab, folder / "out", f"partition: lowcancel\n{node}"),
    ]
    for one in pair:
        one.begin()
    script = ("--output=/dev/null", "--exclusive", "--wrap", "sleep 1")
    lab.run("sbatch", "--partition=l40s", *script)
    for one in pair:
        one.wait("preemption", lambda one=one: not one.running())
        one.finish()
    return pair


def a_node_is_declared_dead_but_lives(lab: Lab, folder: Path) -> list[Sweep]:
    """Slurm loses a node, the job on it goes on; the next attempt begins on another node."""
    site = "partition: v100\n"
    one = disasters.sweep(lab, folder / "lives", site, points=60, chunk=60, sleep_ms=300)
    one.begin(rows=2)
    (job,) = one.running()
    lab.kill("v100n1", steps=False)
    lab.run("scontrol", "update", "nodename=v100n1", "state=down", "reason=a test")
    one.wait("the requeue", lambda: not one.running())
    lab.run("scontrol", "update", f"jobid={job.id}", "partition=mi250")
    one.wait("two attempts", lambda: len(one.run.shards()) == 2)
    one.wait("the end of the older one", lambda: not processes(lab.directory, "v100n1"))
    lab.spawn("v100n1")
    one.finish()
    return [a_node_is_killed(lab, folder), one]  # on the same node, so one after the other


def slurmctld_dies(lab: Lab, folder: Path) -> list[Sweep]:
    """Two tasks run and one waits; a sweep is asked for again, another one is asked for at last."""
    site = "partition: mi250\narray_throttle: 2\n"
    one = disasters.sweep(lab, folder / "outage", site)
    late = disasters.sweep(lab, folder / "late", site)
    one.begin(rows=2)
    lab.kill("slurmctld")
    again = one.submit()
    assert "slurmctld cannot be reached" in again, again
    assert "nothing to send" in again, again
    refused = late.desk.run("submit", "s.yaml", "--cluster", "any")
    assert (refused.returncode, len(refused.stderr.splitlines()) < 3) == (7, True), refused
    assert late.run.submissions() == []
    assert one.desk.run("status").returncode == 0
    one.wait("the rows of two chunks", lambda: one.row_count() == 16)
    lab.spawn("slurmctld")
    one.finish()
    late.finish()
    return [one, late]


STORIES: dict[str, Story] = {
    "lives": a_node_is_declared_dead_but_lives,
    "requeued": a_running_task_is_requeued,
    "cancelled": tasks_are_cancelled,
    "expired": time_runs_out,
    "preempted": tasks_are_preempted,
}


@pytest.fixture(scope="module")
def series(_shared: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Let every story happen; give each one's future by its name."""
    folder = tmp_path_factory.mktemp("disasters")
    with pytest.MonkeyPatch.context() as monkeypatch, ThreadPoolExecutor(len(STORIES)) as pool:
        _point_at(_shared, monkeypatch)
        yield {name: pool.submit(story, _shared, folder) for name, story in STORIES.items()}
    _shared.clear()


Series = dict[str, "Future[list[Sweep]]"]


@pytest.mark.parametrize("name", STORIES)
def test_nothing_is_lost_and_at_most_one_point_per_chunk_is_measured_twice(
    series: Series, name: str
):
    """Every point is in the merged table exactly once, ok; no attempt wrote past a newer one."""
    for one in series[name].result():
        left = one.left()
        print(one.desk.folder.name, left)
        assert left.interrupted, f"nothing was interrupted: {left}"
        assert left.nothing_lost, f"{left}\n{one.logs()}"
