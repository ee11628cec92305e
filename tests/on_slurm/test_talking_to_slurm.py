"""hpcsweep.cluster.slurm against a real Slurm: what is sent arrives, what is asked is answered."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import (
    CouldNotAsk,
    JobId,
    Rejected,
)
from hpcsweep.store.state import ChunkState
from labtools import lab_here, requeue, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from conftest import StartCluster

    from hpcsweep.cluster.slurm import JobState
    from lab import Lab

    Send = Callable[..., JobId]


@pytest.fixture
def since() -> datetime:
    """Give the time before everything that a test submits."""
    return datetime.now(timezone.utc)


@pytest.fixture
def send(tmp_path: Path) -> Send:
    """Give a function that submits shell text, without an output file."""

    def submit(text: str, *options: str) -> JobId:
        script = tmp_path / "job.sh"
        script.write_text(f"#!/bin/sh\n#SBATCH --output=/dev/null\n{text}\n")
        return slurm.submit(script, options=options)

    return submit


def _poll(ask: Callable[[], list[JobState] | CouldNotAsk], until: Callable[..., bool]):
    """Ask again until the answer is as awaited; if it never is, tell the last one and the logs."""
    deadline = time.monotonic() + 60
    while True:
        answer = ask()
        if not isinstance(answer, CouldNotAsk) and until(answer):
            return answer
        if time.monotonic() > deadline:
            told = [answer] if isinstance(answer, CouldNotAsk) else answer
            pytest.fail("\n".join([*map(str, told), lab_here().last_words()]), pytrace=False)
        time.sleep(0.1)


def _queued(ids: Sequence[JobId], meaning: ChunkState, count: int = 1) -> list[JobState]:
    """Wait until the queue shows so many tasks with this meaning, and return them."""

    def of(answer: list[JobState]) -> list[JobState]:
        return [job for job in answer if job.state.meaning is meaning]

    return of(_poll(lambda: slurm.queue(ids), lambda answer: len(of(answer)) == count))


def _tasks(answer: list[JobState]) -> list[int | None]:
    return [job.id.task for job in answer]


def _all_over(ids: Sequence[JobId], since: datetime, count: int) -> list[JobState]:
    """Wait for the accounts, which lag, to say that so many tasks are over."""
    return _poll(
        lambda: slurm.attempts(ids, since),
        lambda answer: len(answer) == count and all(job.state.over for job in answer),
    )


def test_an_array_that_waits_and_runs_is_listed_task_by_task(cluster: Lab, send: Send):
    """Twenty tasks, two at a time: 18 wait for the throttle, 2 run on the right node."""
    array = send("exec sleep 600", "--array=0-19%2", "-p", "gpu", "-C", "gpul40s", "-J", "a|b, c")
    states = {("RUNNING", ""): 2, ("PENDING", "JobArrayTaskLimit"): 18}  # at first, other reasons
    listed = _poll(
        lambda: slurm.queue([array]),
        lambda answer: Counter((job.state.name, job.reason) for job in answer) == states,
    )
    running = [job for job in listed if job.state.name == "RUNNING"]
    waiting = [job for job in listed if job.state.name == "PENDING"]
    assert sorted(job.id.task for job in listed) == list(range(20))
    assert {job.nodes for job in running} == {"l40sn1"}
    assert all(job.started and job.ended is None for job in running)
    assert all(job.started is None and job.nodes == "" for job in waiting)


def test_the_accounts_tell_how_each_task_ended(cluster: Lab, send: Send, since: datetime):
    """Exit codes, node and times of an array whose tasks end differently."""
    array = send("exit $((SLURM_ARRAY_TASK_ID % 3))", "--array=0-5", "-p", "v100")
    ended = {job.id.task: job for job in _all_over([array], since, 6)}
    assert {task: job.exit_code for task, job in ended.items()} == {t: t % 3 for t in range(6)}
    assert {job.state.meaning for t, job in ended.items() if t % 3} == {ChunkState.FAILED}
    assert {job.state.meaning for t, job in ended.items() if not t % 3} == {ChunkState.DONE}
    assert {job.nodes for job in ended.values()} == {"v100n1"}
    assert all(since - timedelta(seconds=2) < job.ended for job in ended.values())
    assert all(job.submitted <= job.started <= job.ended for job in ended.values())


def test_waiting_tasks_are_told_one_by_one_by_the_accounts_too(
    cluster: Lab, send: Send, since: datetime
):
    """Sacct lists them as one long range, which Slurm would cut short at 64 characters."""
    tasks = list(range(0, 300, 3))
    array = send("true", f"--array={slurm.task_list(tasks)}", "--hold")
    told = _poll(lambda: slurm.attempts([array], since), lambda answer: _tasks(answer) == tasks)
    assert {(job.state.name, job.nodes, job.started) for job in told} == {("PENDING", "", None)}


def test_jobs_that_slurm_does_not_know_are_simply_missing(
    cluster: Lab, send: Send, since: datetime
):
    """Unknown ids are no error, alone or among known ones."""
    known = send("exec sleep 600")
    for unknown in (["999999"], ["999998", "999999_3"]):
        assert slurm.queue(unknown) == []
        assert slurm.attempts(unknown, since) == []
    assert [job.id.job for job in slurm.queue(["999999", known])] == [known.job]
    slurm.cancel(["999999"])


def test_a_survey_keeps_the_better_word_on_each_task(cluster: Lab, send: Send, since: datetime):
    """The queue for what lives, the accounts for what is over."""
    over, alive = send("exit 7"), send("exec sleep 600")
    _all_over([over], since, 1)
    _queued([alive], ChunkState.RUNNING)
    survey = slurm.survey([over, alive, "999999"], since)
    assert survey.unanswered == ()
    told = {key: (job.state.name, job.source, job.exit_code) for key, job in survey.jobs.items()}
    assert told == {over.key: ("FAILED", "sacct", 7), alive.key: ("RUNNING", "squeue", None)}


def test_a_requeued_job_waits_again_and_its_first_attempt_is_remembered(
    cluster: Lab, send: Send, since: datetime
):
    """The survey says that it waits, although an attempt of it is over."""
    job = send("exec sleep 600", "-p", "mi250")
    _queued([job], ChunkState.RUNNING)
    # it would start again after some seconds
    cluster.run("scontrol", "update", "nodename=mi250n1", "state=drain", "reason=a test")
    requeue(cluster, [job])
    _queued([job], ChunkState.PENDING)
    told = _poll(lambda: slurm.attempts([job], since), lambda answer: len(answer) == 2)
    assert [attempt.state.meaning for attempt in told] == [ChunkState.REQUEUED, ChunkState.PENDING]
    assert told[0].nodes == "mi250n1"
    assert not slurm.survey([job], since).jobs[job.key].state.over


def test_single_tasks_of_an_array_are_cancelled(cluster: Lab, send: Send):
    """A task, a range of tasks, or all: the others go on."""
    array = send("exec sleep 600", "--array=0-5", "-p", "v100")
    _queued([array], ChunkState.RUNNING, 6)
    slurm.cancel([JobId.numbered(array.job, 5), f"{array}_[0,2-3]"])
    gone = _queued([array], ChunkState.CANCELLED, 4)
    assert sorted(job.id.task for job in gone) == [0, 2, 3, 5]
    slurm.cancel([array])
    _queued([array], ChunkState.CANCELLED, 6)


def test_tasks_that_are_cancelled_while_they_wait_leave_no_trace(
    cluster: Lab, send: Send, since: datetime
):
    """Neither the queue nor the accounts know them afterwards: absence is not a state."""
    array = send("true", "--array=0-9", "--hold")
    slurm.cancel([f"{array}_[2,5-7]"])
    left = [0, 1, 3, 4, 8, 9]
    _poll(lambda: slurm.queue([array]), lambda answer: sorted(_tasks(answer)) == left)
    _poll(lambda: slurm.attempts([array], since), lambda answer: _tasks(answer) == left)


def test_a_cluster_that_is_named_is_the_one_that_is_asked(
    cluster: Lab, send: Send, since: datetime, monkeypatch: pytest.MonkeyPatch
):
    """`sbatch --parsable` says `12;lab` then; every question goes there."""
    monkeypatch.setenv("SLURM_CLUSTERS", "lab")
    assert slurm.this_client().cluster == "lab"
    job = send("exec sleep 600")
    assert str(job).endswith(";lab")
    _queued([job], ChunkState.RUNNING)
    assert _poll(lambda: slurm.attempts([job], since), len)[0].id.job == job.job
    slurm.cancel([job])
    _queued([job], ChunkState.CANCELLED)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["-p", "nosuch"], "partition"),
        (["-C", "nosuch"], "constraint"),
        (["--gres=foo:1"], "gres"),
        (["--gres=gpu:a100:1"], ""),
        (["-p", "mi250", "-C", "gpu2v100"], ""),
        (["-q", "nosuch"], "qos"),
        (["-A", "nosuch"], "account"),
        (["--mem=900G"], "mem"),
        (["-q", "brief", "-t", "1:00:00"], "time"),
        (["-t", "soon"], "time"),
        (["-w", "nosuch"], ""),
        (["--array=0-1001"], "array"),
        (["--array=5-2"], "array"),
        (["--nosuch=1"], "nosuch"),
        (["--dependency=bogus:1"], "dependency"),
    ],
)
def test_a_script_that_slurm_refuses_is_told_by_key(
    cluster: Lab, send: Send, options: list[str], option: str
):
    """The same key whether it is submitted or only tried, and nothing is in the queue."""
    with pytest.raises(Rejected) as caught:
        send("true", *options)
    assert f"refuses (`{option}`)" in str(caught.value) or not option
    assert unfinished() == []


def test_without_accounts_the_queue_still_answers(bare_cluster: Lab, send: Send, since: datetime):
    """The survey holds what squeue knows, and says that the accounts are disabled."""
    job = send("exec sleep 600")
    _queued([job], ChunkState.RUNNING)
    survey = slurm.survey([job], since)
    assert survey.jobs[job.key].state.name == "RUNNING"
    (unasked,) = survey.unanswered
    assert str(unasked) == "sacct: Slurm accounting storage is disabled"


# A limit of a QOS, a job that breaks it, and what this Slurm says of that.
VAIN = [
    ("MaxTRESPerJob=gres/gpu=1", "--gres=gpu:2", "QOSMaxGRESPerJob"),
    ("MaxTRESPerJob=cpu=1", "--ntasks=2", "QOSMaxCpuPerJobLimit"),
    ("MaxTRESPerJob=mem=100", "--mem=200M", "QOSMaxMemoryPerJob"),
    ("MaxTRESPerNode=cpu=1", "--ntasks=2", "QOSMaxCpuPerNode"),
    ("MaxTRESMins=cpu=1", "--time=10", "QOSMaxCpuMinutesPerJobLimit"),
    ("MaxWall=1", "--time=5", "QOSMaxWallDurationPerJobLimit"),
    ("MinTRES=mem=300", "--mem=100M", "QOSMinMemory"),
    ("MinTRES=gres/gpu=2", "--gres=gpu:1", "QOSMinGRES"),
]


def test_a_limit_of_a_qos_that_no_waiting_ends_is_told(special_cluster: StartCluster, send: Send):
    """Where sbatch takes such jobs, that is, without the flag DenyOnLimit."""
    cluster = special_cluster()
    reasons: dict[tuple[int | None, int | None], str] = {}
    for number, (limit, option, reason) in enumerate(VAIN):
        cluster.run("sacctmgr", "-i", "add", "qos", f"q{number}", limit)
        cluster.run("sacctmgr", "-i", "modify", "user", "root", "set", f"qos+=q{number}")
        reasons[send("true", "-p", "gpu", "-q", f"q{number}", option).key] = reason
    told = _poll(slurm.queue, lambda answer: {job.id.key: job.reason for job in answer} == reasons)
    assert {slurm.in_vain(job.reason) for job in told} == {
        "asks for more, or less, than its account or QOS allows for one job"
    }


def test_every_reason_of_this_slurm_is_in_vain_or_ends(cluster: Lab):
    """Slurm's own library has them all: what one job breaks never ends, what many fill does."""
    every = set(_of_library(cluster, "map(slurm.job_reason_string, range(300))"))
    in_vain = {reason for reason in every if slurm.in_vain(reason)}
    of_one = {r for r in every if re.search(r"PerJob|PerNode|Min(?!utes)|He?o?ld|Not?Allowed", r)}
    assert len(of_one) > 50
    assert of_one <= in_vain
    others = {
        "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
        "MaxMemPerLimit", "PartitionConfig", "PartitionDown", "PartitionInactive",
        "PartitionNodeLimit", "PartitionTimeLimit", "ReservationDeleted",
    }  # fmt: skip
    assert in_vain - of_one == others


def _of_library(lab: Lab, call: str) -> list[str]:
    """Return what an expression about Slurm's own library prints, by line."""
    library = next(Path("/usr/lib").glob("*/slurm*/libslurmfull.so"), None)
    if library is None:
        pytest.skip("libslurmfull.so is not where Debian has it")
    program = (
        "import ctypes\n"
        f"slurm = ctypes.CDLL({str(library)!r})\n"
        "slurm.job_state_string.restype = ctypes.c_char_p\n"
        "slurm.job_reason_string.restype = ctypes.c_char_p\n"
        "slurm.slurm_strerror.restype = ctypes.c_char_p\n"
        f"for each in {call}: print(each.decode())\n"
    )
    return lab.run(sys.executable, "-c", program).stdout.splitlines()


def test_every_state_that_this_slurm_can_print_is_in_the_table(cluster: Lab):
    """Slurm's own library names each base state and each flag; none of them is unknown here."""
    every = "[*range(32), *(1 << n for n in range(32))]"
    printed = _of_library(cluster, f"map(slurm.job_state_string, {every})")
    told = [slurm.state_of(word) for word in printed]
    assert {state.name for state in told if state.meaning is ChunkState.UNKNOWN} == {"?"}
    assert len({state.name for state in told}) > 20


def test_every_answer_of_this_slurm_refuses_but_those_of_a_broken_connection(cluster: Lab):
    """Slurm's own library has the text of each error; of a few nobody knows what became of it."""
    answers = _of_library(cluster, "map(slurm.slurm_strerror, range(1000, 10200))")
    known = [answer for answer in answers if not answer.startswith("Unknown error")]
    unsure = []
    for answer in known:
        error = slurm.refusal(f"sbatch: error: Batch job submission failed: {answer}", "job.sbatch")
        if not isinstance(error, Rejected):
            unsure.append(answer)
    assert len(known) > 200
    assert 20 < len(unsure) < 35
    words = "contact|connect|[Mm]essage|timed out|Zero Bytes|[Aa]uthentication|mode|version|address"
    others = "Header lengths|missing socket|in progress|create job record|Communication"
    assert [answer for answer in unsure if not re.search(f"{words}|{others}", answer)] == []
