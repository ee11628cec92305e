"""Nothing measured is lost: disasters strike running sweeps, and the same command ends them well.

All stories happen at the same time, each in a thread of its own, since most of what they cost is
waiting for Slurm; every test then looks at one of them.
"""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

import pytest

import surviving
from hpcsweep.cluster.slurm import bad_nodes, journal
from lab import processes
from labtools import point_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lab import Lab
    from surviving import Sweep

    Story = Callable[[Lab, Path], dict[str, Sweep]]

pytestmark = pytest.mark.no_second_try

POINT_MS = 1500  # a chunk takes 12 s: a disaster strikes in the middle, also on a busy machine
L40S = Lock()  # two stories want this node for themselves


def _states(one: Sweep) -> set[str]:
    return {job.state.name for job in one.jobs()}


def a_node_is_killed(lab: Lab, folder: Path) -> dict[str, Sweep]:
    """Cut the power: slurmd, steps and jobs die at once; the node boots when it was missed."""
    one = surviving.sweep(lab, folder / "killed", "partition: v100\n", sleep_ms=POINT_MS)
    one.begin(rows=4)
    lab.kill("v100n1")
    # on a busy machine some chunks were done before the power went
    one.wait("the requeue", lambda: _states(one) - {"COMPLETED"} == {"PENDING"})
    lab.spawn("v100n1")
    one.finish()
    return {"killed": one}


def a_node_is_declared_dead_but_lives(lab: Lab, folder: Path) -> dict[str, Sweep]:
    """Lose a node while the jobs on it go on.

    Slurm begins one again on another node; the other is cancelled, and its sweep submitted again.
    """
    long = {"points": 45, "chunk": 45, "sleep_ms": 600}
    pair = {
        name: surviving.sweep(lab, folder / name, "partition: l40s\n", **long)
        for name in ("lives", "given up")
    }
    lives, given_up = pair.values()
    with L40S:
        for one in pair.values():
            one.submit()
        for one in pair.values():
            one.wait("rows", one.row_count)
        (job,), (other,) = lives.running(), given_up.running()
        lab.kill("l40sn1", steps=False)
        lab.run("scontrol", "update", "nodename=l40sn1", "state=down", "reason=a test")
        lives.wait("the requeues", lambda: not lives.running() + given_up.running())
        lab.run("scontrol", "update", f"jobid={job.id}", "partition=mi250")
        lab.run("scancel", str(other.id))
        given_up.profile("any", "partition: mi250\nmax_points_per_chunk: 15\n")
        given_up.submit()
        lives.wait("two attempts", lambda: len(lives.sweep_dir.shards()) > 1)
        lives.wait("the end of the older ones", lambda: not processes(lab.directory, "l40sn1"))
        lab.spawn("l40sn1")
    for one in pair.values():
        one.finish()
    return pair


def a_running_task_is_requeued(lab: Lab, folder: Path) -> dict[str, Sweep]:
    """Send a running task back to the queue, as an administrator does."""
    one = surviving.sweep(lab, folder / "requeued", "partition: mi250\n", sleep_ms=POINT_MS)
    one.begin(rows=4)
    lab.run("scontrol", "requeue", str(one.running()[0].id))
    one.finish()
    return {"requeued": one}


def tasks_are_cancelled(lab: Lab, folder: Path) -> dict[str, Sweep]:
    """Cancel an array of which one task runs and two wait behind the throttle."""
    site = "partition: mi250\narray_throttle: 1\n"
    one = surviving.sweep(lab, folder / "cancelled", site, sleep_ms=POINT_MS)
    one.begin(rows=2)
    assert {job.state.name for job in one.jobs()} == {"RUNNING", "PENDING"}, one.jobs()
    lab.run("scancel", *{str(job.id.job) for job in one.jobs()})
    one.finish()
    return {"cancelled": one}


def time_runs_out(lab: Lab, folder: Path) -> dict[str, Sweep]:
    """Let the time limit expire; Slurm looks every 30 s, so the points are slow."""
    site = "partition: mi250\n"
    one = surviving.sweep(lab, folder / "expired", site, points=90, chunk=90, sleep_ms=1000)
    one.begin()
    (job,) = one.running()
    lab.run("scontrol", "update", f"jobid={job.id}", f"EndTime={surviving.after(5)}")
    one.wait("TIMEOUT", lambda: {j.state.name for j in one.jobs()} == {"TIMEOUT"})
    one.profile("any", f"{site}max_points_per_chunk: 8\n")  # the rest in parallel
    one.finish()
    return {"expired": one}


def tasks_are_preempted(lab: Lab, folder: Path) -> dict[str, Sweep]:
    """Take the node from two sweeps by a job of higher priority: requeued, cancelled for good."""
    node, slow = "constraint: gpul40s\n", {"points": 40, "chunk": 20, "sleep_ms": 1000}
    pair = {
        "back": surviving.sweep(lab, folder / "back", f"partition: low\n{node}", **slow),
        "out": surviving.sweep(lab, folder / "out", f"partition: lowcancel\n{node}", **slow),
    }
    with L40S:
        for one in pair.values():
            one.submit()
        for one in pair.values():
            one.wait("rows", one.row_count)
        script = ("--output=/dev/null", "--exclusive", "--wrap", "sleep 1")
        lab.run("sbatch", "--partition=l40s", *script)
        for one in pair.values():
            one.wait("preemption", lambda one=one: not one.running())
        for one in pair.values():
            one.finish()
    return pair


STORIES: dict[str, Story] = {
    "expired": time_runs_out,
    "killed": a_node_is_killed,
    "preempted": tasks_are_preempted,
    "lives": a_node_is_declared_dead_but_lives,
    "requeued": a_running_task_is_requeued,
    "cancelled": tasks_are_cancelled,
}


@dataclass(frozen=True)
class Series:
    """The stories as they go on."""

    stories: dict[str, Future[dict[str, Sweep]]]

    def sweeps(self, story: str) -> dict[str, Sweep]:
        """Return the sweeps of a story, when it is over."""
        return self.stories[story].result()


@pytest.fixture(scope="module")
def series(_shared: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Series]:
    """Let all stories happen."""
    folder = tmp_path_factory.mktemp("disasters")
    with pytest.MonkeyPatch.context() as monkeypatch, ThreadPoolExecutor(len(STORIES)) as pool:
        point_at(_shared, monkeypatch)
        futures = {name: pool.submit(story, _shared, folder) for name, story in STORIES.items()}
        yield Series(futures)
        wait(futures.values())
        _shared.clear()


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_lost_and_at_most_one_point_of_a_chunk_is_measured_twice(
    series: Series, story: str
):
    """Every point is in the merged table once, ok; no attempt writes when a newer one has begun."""
    for one in series.sweeps(story).values():
        assert surviving.checked(one).interrupted, one.logs()


def test_an_attempt_that_was_fenced_off_leaves_the_newer_one_alone(series: Series):
    """It does not put the job back into the queue, which would end the attempt that replaced it."""
    one = series.sweeps("lives")["lives"]
    left = surviving.checked(one)
    assert (left.attempts, left.interrupted) == (2, 1), one.logs()
    assert "a newer attempt of this chunk has begun" in one.logs()


def test_a_node_that_was_killed_is_avoided_from_now_on(series: Series):
    """The sweep grows: its new point goes to another node."""
    one = series.sweeps("killed")["killed"]
    grown = replace(one, points=one.points + 1)
    grown.desk.spec(surviving.SPEC.format(points=grown.points, sleep_ms=POINT_MS), "s.yaml")
    grown.profile("any", "partition: gpu\nconstraint: 'gpu2v100|mi250'\n")
    assert "excludes v100n1 (NODE_FAIL" in "".join(grown.finish())
    (_, second) = grown.sweep_dir.submissions()
    assert "#SBATCH --exclude=v100n1\n" in second.script.read_text()
    surviving.checked(grown)


def test_a_node_from_which_tasks_were_preempted_is_used_again(series: Series):
    """Making room is not the node's fault, whether the tasks were requeued or cancelled."""
    pair = series.sweeps("preempted")
    for one in pair.values():
        assert (
            bad_nodes.current(one.sweep_dir, journal.ask_slurm(one.sweep_dir.submissions())) == []
        )
    (_, second) = pair["out"].sweep_dir.submissions()
    assert not re.search("exclude", second.script.read_text())
