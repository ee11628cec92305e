"""Asking for the states of jobs, cancelling them, and job ids in every form that Slurm prints."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import STATES, JobId, parse_id
from hpcsweep.errors import SchedulerError
from hpcsweep.store.state import ChunkState
from waiting import given_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("name", [state.name for state in STATES])
def test_every_state_is_known_whatever_slurm_puts_around_it(name: str):
    """And has a meaning and words for people."""
    for printed in (name, f"{name} by 1000", f"{name}+", f" {name},UPDATE_DB", name.lower()):
        state = slurm.state_of(printed)
        assert state.name == name
        assert state.meaning is not ChunkState.UNKNOWN
        assert state.says


@pytest.mark.parametrize(
    ("meaning", "names"),
    [
        (ChunkState.DONE, "COMPLETED"),
        (ChunkState.FAILED, "FAILED OUT_OF_MEMORY"),
        (ChunkState.TIMEOUT, "TIMEOUT DEADLINE"),
        (ChunkState.CANCELLED, "CANCELLED"),
        (
            ChunkState.INFRASTRUCTURE,
            "BOOT_FAIL LAUNCH_FAILED NODE_FAIL PREEMPTED RECONFIG_FAIL REVOKED",
        ),
        (ChunkState.REQUEUED, "EXPEDITING REQUEUED REQUEUE_FED"),
        (ChunkState.HELD, "REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT"),
    ],
)
def test_who_is_charged_for_an_end(meaning: ChunkState, names: str):
    """Only FAILED and OUT_OF_MEMORY are the job's own fault; the cluster's faults are free."""
    assert sorted(s.name for s in STATES if s.meaning is meaning) == sorted(names.split())


def test_only_broken_nodes_are_excluded():
    """Preemption and federation are not the node's fault."""
    at_fault = {state.name for state in STATES if state.node_at_fault}
    assert at_fault == {"BOOT_FAIL", "LAUNCH_FAILED", "NODE_FAIL", "RECONFIG_FAIL"}


def test_an_unknown_state_is_shown_as_itself_and_is_not_over():
    """A word of a later release must not make a chunk run twice."""
    state = slurm.state_of("QUANTUM_LEAP by 7")
    assert (state.name, state.meaning) == ("QUANTUM_LEAP by 7", ChunkState.UNKNOWN)
    assert not state.over
    assert slurm.state_of("").meaning is ChunkState.UNKNOWN


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("PartitionTimeLimit", "above the partition's limit"),
        ("(DependencyNeverSatisfied)", "waits for failed"),
        ("launch_failed_requeued_held", "scontrol release"),
        ("JobHoldMaxRequeue", "scontrol release"),
        ("job_requeued_in_held_state", "scontrol release"),
        ("(job requeued in special exit state)", "scontrol release"),
        ("user env retrieval failed requeued held", "scontrol release"),
        ("JobHeldUser", "scontrol release"),
        ("JobHeldAdmin", "ask the site"),
        ("AccountNotAllowed", "does not take this account"),
        ("QOSNotAllowed", "does not take this QOS"),
        ("PartitionConfig", "more than a node"),
        ("ReservationDeleted", "reservation is gone"),
        ("Priority", ""),
        ("Resources", ""),
        ("JobArrayTaskLimit", ""),
        ("QOSUsageThreshold", ""),
        ("ReqNodeNotAvail, UnavailableNodes:l40sn[1-3]", ""),
        ("MaxMemPerLimit", "memory"),
        (
            "Job's account not permitted to use this partition (small allows small not lab)",
            "does not take its account",
        ),
    ],
)
def test_reasons_for_which_waiting_is_in_vain_are_told(reason: str, told: str):
    """A job that can never start is told apart from one that has to wait."""
    assert told in slurm.in_vain(reason)
    assert bool(slurm.in_vain(reason)) == bool(told)


# What limits of a QOS or an association are on, in all releases.
LIMITED = (
    *("Cpu", "CPU", "GRES", "Mem", "Memory", "Node", "Energy", "License", "BB", "Billing"),
    *("Unknown", "WallDuration", "Wall", "Jobs", "SubmitJob", "SubmitJobs"),
)


@pytest.mark.parametrize("what", LIMITED)
@pytest.mark.parametrize("whose", ["QOS", "Assoc"])
def test_a_limit_on_one_job_is_in_vain_and_one_on_many_ends(whose: str, what: str):
    """When other jobs end, or what they used is forgotten; one job stays as it is."""
    for of_one in ("PerJob", "PerNode", "MinutesPerJob", "PerJobLimit", "MinutesPerJobLimit"):
        assert "allows for one job" in slurm.in_vain(f"{whose}Max{what}{of_one}")
    for least in ("", "NotSatisfied"):
        assert "allows for one job" in slurm.in_vain(f"{whose}Min{what}{least}")
    for of_many in ("PerUser", "PerUserLimit", "PerAccount", "Limit"):
        assert not slurm.in_vain(f"{whose}Max{what}{of_many}")
        assert not slurm.in_vain(f"Max{what}{of_many}")
    for of_all in ("", "Limit", "Minutes", "RunMinutes", "MinutesLimit", "RunMinutesLimit"):
        assert not slurm.in_vain(f"{whose}Grp{what}{of_all}")


SINCE = datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_an_order_without_an_answer_is_an_error(
    program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
):
    """Nobody may believe that a job was cancelled when Slurm did not say so."""
    monkeypatch.setattr(slurm.call, "TIMEOUT", 0.3)
    program("scancel", "exec sleep 60")
    with pytest.raises(SchedulerError, match="no answer within"):
        slurm.cancel(["1"])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Kill job error on job id 1: Invalid job id specified", ""),
        ("Kill job error on job id 1: Job/step already completing or completed", ""),
        ("Kill job error on job id 1: Access/permission denied", "denied; not everything was canc"),
        ("Unable to contact slurm controller (connect failure)", "cancelled, try again later"),
    ],
)
def test_an_order_to_cancel_that_fails_says_whether_to_try_again(
    program: Callable[[str, str], Path], said: str, told: str
):
    """Newer releases fail, too, for a job that has ended, where there is nothing to do."""
    program("scancel", f"echo 'scancel: error: {said}' >&2; exit 210")
    if not told:
        slurm.cancel(["1"])
        return
    with pytest.raises(SchedulerError, match=told) as caught:
        slurm.cancel(["1"])
    assert ("try again" in str(caught.value)) is ("try again" in told)


def test_nonsense_in_an_answer_is_left_out(program: Callable[[str, str], Path]):
    """Headings of clusters, torn lines, other encodings and unknown states do not stop us."""
    line = r"12_3\037GLIDING\037None\037n\377|,\037N/A\037N/A\037garbage"
    program("squeue", f"printf 'CLUSTER: far\\n\\n{line}\\n12_4\\037RUN'")
    (job,) = slurm.queue(["12"])
    assert (job.id.key, job.state.name) == ((12, 3), "GLIDING")
    assert job.state.meaning is ChunkState.UNKNOWN
    assert (job.nodes, job.ended) == ("n\N{REPLACEMENT CHARACTER}|,", None)


def test_very_many_jobs_are_asked_for_by_their_user(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """A command line has an end, so the answer is sifted here instead; it is still one call."""
    line = r"\037RUNNING\037\037n1\037N/A\037N/A\037N/A\n"
    program(
        "squeue", f"echo \"$@\" | head -c 400 >> {tmp_path}/calls\nprintf '5{line}999999{line}'"
    )
    found = slurm.queue(str(job) for job in range(5_000))
    assert [job.id.job for job in found] == [5]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert f"--user={os.getuid()}" in calls[0]


def test_nothing_to_ask_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No ids, or none that is one, is an empty answer, even where there is no Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.queue([]) == []
    assert slurm.queue(["not an id"]) == []
    assert slurm.attempts([], SINCE) == []
    assert slurm.survey([], SINCE) == slurm.Survey({}, ())
    assert slurm.hostnames("") == slurm.hostnames("None assigned") == ()
    assert slurm.hostnames("n1,n2") == ("n1", "n2")
    slurm.cancel([])


@pytest.mark.slow
def test_queue_and_accounts_are_asked_at_the_same_time(
    program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
):
    """A hang of both costs our patience once: each saw the other running before it was ended."""
    meet = 'until [ -e squeue.up ] && [ -e sacct.up ]; do sleep 0.02; done; touch "$0.seen"'
    text = f'cd "${{0%/*}}"; touch "$0.up"; {meet}; exec sleep 60'
    paths = [program(name, text) for name in ("squeue", "sacct")]

    def ask(seconds: float) -> slurm.Survey:
        monkeypatch.setattr(slurm.call, "TIMEOUT", seconds)
        for path in paths:  # of a try in which there was too little time
            path.with_suffix(".up").unlink(missing_ok=True)
        return slurm.survey(["1"], SINCE)

    _, survey = given_time(ask, lambda: all(path.with_suffix(".seen").exists() for path in paths))
    assert [answer.program for answer in survey.unanswered] == ["squeue", "sacct"]


def test_an_array_that_the_accounts_have_not_split_yet_is_not_a_job_of_its_own(
    program: Callable[[str, str], Path],
):
    """Sacct lists a new array as one job without a task; the queue's tasks are the truth."""
    queued = r"12_0\037RUNNING\037\037n1\037N/A\037N/A\037N/A\n"
    past = r"12\037PENDING\037None\037\037N/A\037N/A\037N/A\0370:0\n"
    program("squeue", f"printf '{queued}'")
    program("sacct", f"printf '{past}'")
    assert list(slurm.survey(["12"], SINCE).jobs) == [(12, 0)]


def test_a_list_of_tasks_that_nobody_has_costs_nothing(program: Callable[[str, str], Path]):
    """Slurm says which tasks wait in one line; a broken one may name more than fit into memory."""
    line = r"12_[0-99999999999]\037PENDING\037None\037\037N/A\037N/A\037N/A\0370:0\n"
    program("sacct", f"printf '{line}{line.replace('99999999999', '9999999')}'")
    found = slurm.attempts(["12"], SINCE)
    assert len(found) < 200_000


ID_FORMS = [
    ("12", JobId("12", 12)),
    ("12_3", JobId("12_3", 12, 3)),
    ("12_[3-9%2]", JobId("12_[3-9%2]", 12, tasks=(range(3, 10),))),
    ("12_[1,4-6]", JobId("12_[1,4-6]", 12, tasks=(range(1, 2), range(4, 7)))),
    ("12_[0-10:5]", JobId("12_[0-10:5]", 12, tasks=(range(0, 11, 5),))),
    ("12_[4%1]", JobId("12_[4%1]", 12, tasks=(range(4, 5),))),
    ("12+1", JobId("12+1", 12)),
    ("12+1.0", JobId("12+1.0", 12)),
    ("12.batch", JobId("12.batch", 12)),
    ("12_3.extern", JobId("12_3.extern", 12, 3)),
    ("12;cluster", JobId("12;cluster", 12)),
    ("12_3;a.b-c", JobId("12_3;a.b-c", 12, 3)),
    ("12_[0-99,...]", JobId("12_[0-99,...]", 12, tasks=(range(100),))),
    ("12_[0-9,11,1...", JobId("12_[0-9,11,1...", 12, None, (range(10), range(11, 12)))),
    ("12_[0-9,11%", JobId("12_[0-9,11%", 12, None, (range(10), range(11, 12)))),
    ("12_[0x3F]", JobId("12_[0x3F]", 12)),
    ("12_[0-99999999999]", JobId("12_[0-99999999999]", 12)),
    ("9" * 5000, JobId("9" * 5000)),
    ("12_[]", JobId("12_[]", 12)),
    ("  7 ", JobId("7", 7)),
    ("", JobId("")),
    ("JOBID", JobId("JOBID")),
    ("12_", JobId("12_")),
    ("12_[1-3]_4", JobId("12_[1-3]_4")),
    ("-5", JobId("-5")),
    ("١٢", JobId("١٢")),
]


@pytest.mark.parametrize(("text", "expected"), ID_FORMS)
def test_job_ids_are_read_in_every_form(text: str, expected: JobId):
    """One parser for all that squeue, sacct and sbatch print; the rest is kept verbatim."""
    assert parse_id(text) == expected


def test_a_huge_range_costs_nothing():
    """Four million waiting tasks are a range until somebody walks through it."""
    assert len(parse_id("12_[0-4000000]").tasks[0]) == 4_000_001
