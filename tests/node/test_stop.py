"""What ends an attempt from outside: signals, and the end of its launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from attempts import SLOW, attempt, ids, prepared, wait_for_a_worker, wait_for_rows
from hpcsweep.errors import EXIT_REQUEUE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
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


def test_the_lifeline_ends_everything(desk):
    """When whoever started it is gone, supervisor and worker leave at once."""
    submission = prepared(desk, SLOW.replace("50", "60000"))
    held = subprocess.Popen(
        [sys.executable, "-m", "hpcsweep.node.supervisor", str(submission.path), "0"],
        env={**os.environ, "HPCSWEEP_LIFELINE": "stdin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    wait_for_a_worker(submission)
    held.stdin.close()
    assert held.wait(30) == EXIT_REQUEUE  # far less than the point's minute
    held.stdout.close()
