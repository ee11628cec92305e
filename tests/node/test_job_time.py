"""The time of a job: what starts, what is cut short, and what is told of it."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import pytest

from attempts import (
    HANGS_FIRST,
    SLOW,
    attempt,
    ids,
    in_order_of_sizes,
    in_short_jobs,
    prepared,
    statuses,
    wait_for_a_worker,
)
from hpcsweep.errors import EXIT_REQUEUE, Incomplete
from hpcsweep.store import chunk_file, shards


@pytest.mark.slow
def test_no_point_starts_that_does_not_fit_the_time_left(desk):
    """The deadline leaves room for the scheduler's kill, then the rest is left for a requeue."""
    submission = prepared(desk, SLOW.replace("50", "200"))
    in_short_jobs(submission, kill_wait=0.2)
    ending = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 3.5))
    ending.communicate(timeout=30)
    assert ending.returncode == EXIT_REQUEUE
    assert 0 < len(ids(submission)) < 20


def test_a_point_that_never_fits_is_told_instead_of_requeued_for_ever(desk):
    """A second attempt that could not even start its first point says so."""
    submission = prepared(desk, SLOW)
    past = {"HPCSWEEP_DEADLINE": str(time.time() - 1)}
    first = attempt(submission, **past)
    first.communicate(timeout=30)
    assert first.returncode == EXIT_REQUEUE
    second = attempt(submission, **past)
    _, errors = second.communicate(timeout=30)
    assert second.returncode == Incomplete.exit_code
    assert "give the profile more `time`" in errors


def test_the_first_point_of_a_job_starts_though_its_estimate_is_too_long(desk):
    """It may be a blind guess, as of a command that did not run yet."""
    submission = prepared(desk, "workload: noop\naxes: {model: [a]}\n")
    chunk = chunk_file.read_chunk(submission.chunks, 0)
    chunk_file.write_chunks(submission.chunks, [replace(chunk, seconds=60.0)])
    in_short_jobs(submission, kill_wait=2)
    soon = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 30))
    out, errors = soon.communicate(timeout=30)
    assert (soon.returncode, len(ids(submission))) == (0, 1), out + errors


def test_a_point_without_a_label_is_told_by_its_id(desk):
    """Of a command no axis is in each label, and of one point none varies."""
    submission = prepared(desk, "workload: command\naxes: {x: [1]}\nrun: sleep {x}\n")
    (point,) = chunk_file.read_chunk(submission.chunks, 0).points
    past = {"HPCSWEEP_DEADLINE": str(time.time() - 1)}
    attempt(submission, **past).communicate(timeout=30)
    _, errors = attempt(submission, **past).communicate(timeout=30)
    assert f"hpcsweep: {point.point_id}: needs about " in errors


@pytest.mark.slow
@pytest.mark.parametrize("told", [None, signal.SIGUSR1])
def test_a_point_that_hangs_until_the_job_ends_is_a_timeout_and_the_chunk_goes_on(desk, told):
    """Whether its time is up by the deadline, or by the scheduler's signal ahead of it."""
    submission = in_order_of_sizes(prepared(desk, HANGS_FIRST))
    in_short_jobs(submission, kill_wait=0.5, signal_lead=0 if told is None else 60)
    first = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + (5 if told is None else 60)))
    if told:
        wait_for_a_worker(submission)
        first.send_signal(told)
    first.communicate(timeout=30)
    assert first.returncode == EXIT_REQUEUE
    attempt(submission).communicate(timeout=30)
    assert statuses(submission) == [["timeout"], ["ok"] * 5]
    (row,) = shards.read_shard(submission.attempts(0)[0]).rows
    why = "is all that a job of profile 'local' has for it; give the profile more"
    assert (row["input_size"], why in row["status_reason"]) == ("1", True)


@pytest.mark.slow
def test_a_point_that_is_cut_short_by_the_deadline_gets_a_job_of_its_own(desk):
    """It is measured again as the first one there."""
    submission = in_order_of_sizes(
        prepared(desk, HANGS_FIRST.replace("input_size: 1}", "input_size: 3}"))
    )
    in_short_jobs(submission, kill_wait=0.5)
    codes = []
    for _job in range(3):
        job = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 5))
        job.communicate(timeout=30)
        codes.append(job.returncode)
    assert codes == [EXIT_REQUEUE, EXIT_REQUEUE, 0]
    assert statuses(submission) == [["ok", "ok"], ["timeout"], ["ok"] * 3]


@pytest.mark.parametrize("text", ["abc", "nan"])
def test_a_deadline_that_is_no_time_is_told(desk, monkeypatch, text):
    """One line says which variable to unset."""
    monkeypatch.setenv("HPCSWEEP_DEADLINE", text)
    _, errors = attempt(prepared(desk, SLOW)).communicate(timeout=300)
    told = f"hpcsweep: HPCSWEEP_DEADLINE='{text}': needs seconds since the epoch."
    assert errors.startswith(told)
    assert "Traceback" not in errors
