"""What ends an attempt early: signals, the deadline, whoever started it; the next one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from attempts import SLOW, attempt, ids, prepared, wait_for_rows
from hpcsweep.errors import EXIT_REQUEUE, Incomplete


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_ends_the_attempt_and_the_next_one_continues(desk, number):
    """Points remain, so the exit code asks for a requeue; nothing is measured twice."""
    submission = prepared(desk, SLOW)
    first = attempt(submission)
    wait_for_rows(submission, 3)
    first.send_signal(number)
    first.communicate(timeout=30)
    assert first.returncode == EXIT_REQUEUE
    assert 3 <= len(ids(submission)) < 20
    second = attempt(submission)
    second.communicate(timeout=60)
    assert second.returncode == 0
    assert len(ids(submission)) == len(set(ids(submission))) == 20
    assert [shard.attempt for shard in submission.attempts(0)] == [0, 1]


def test_no_point_starts_that_does_not_fit_the_time_left(desk):
    """The deadline leaves room for the scheduler's kill, then the rest is left for a requeue."""
    submission = prepared(desk, SLOW)
    manifest = submission.read_manifest()
    submission.write_manifest(replace(manifest, run=replace(manifest.run, kill_wait=0.2)))
    ending = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 1.2))
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


def test_the_lifeline_ends_everything(desk):
    """When whoever started it is gone, supervisor and worker leave at once."""
    submission = prepared(desk, SLOW.replace("50", "60000"))
    held = subprocess.Popen(
        [sys.executable, "-m", "hpcsweep.node.supervisor", str(submission.path), "0"],
        env={**os.environ, "HPCSWEEP_LIFELINE": "stdin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    time.sleep(0.5)
    held.stdin.close()
    assert held.wait(5) == EXIT_REQUEUE
    held.stdout.close()
