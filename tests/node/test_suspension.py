"""A job that is suspended while it measures: the pause is noticed, and is no time of a point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from attempts import attempt, prepared
from gate import Gate
from waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.store.folders import SubmissionDir

FREEZER = Path("/sys/fs/cgroup/freezer")
TELLS = """\
import sys, time
from hpcsweep.node.suspension import SuspensionWatch
watch = SuspensionWatch()
print("begun", flush=True)
for line in sys.stdin:
    print(watch.seconds(), flush=True)
"""


@contextmanager
def watching() -> Iterator[subprocess.Popen[str]]:
    """Start a process that tells its pauses for each line that it reads."""
    command = [sys.executable, "-c", TELLS]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> float:
    """Return the seconds of pauses that a process tells now."""
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def is_stopped(pid: int) -> bool:
    """Say whether a signal stopped a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_without_a_pause_nothing_is_told():
    """However often it is asked."""
    with watching() as process:
        assert [told(process) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_a_process_that_was_stopped_knows_for_how_long():
    """By a signal, as Slurm's and a person's; asked the moment it goes on."""
    with watching() as process:
        os.kill(process.pid, signal.SIGSTOP)
        wait_for("stop", lambda: is_stopped(process.pid))
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(1.6)
        os.kill(process.pid, signal.SIGCONT)
        assert float(process.stdout.readline()) >= 1.0
        assert told(process) < 60


def test_a_process_that_was_frozen_knows_for_how_long():
    """By its cgroup: no signal says so."""
    group = FREEZER / f"hpcsweep-tests-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer here: {error}")
    try:
        with watching() as process:
            (group / "cgroup.procs").write_text(str(process.pid))
            (group / "freezer.state").write_text("FROZEN")
            wait_for("freeze", lambda: (group / "freezer.state").read_text() == "FROZEN\n")
            time.sleep(1.6)
            (group / "freezer.state").write_text("THAWED")
            assert told(process) >= 1.0
    finally:
        with suppress(OSError):
            group.rmdir()


SLEEPS = """\
workload: noop
axes: {model: [a]}
measure: {sleep_ms: 1500}
"""


@contextmanager
def paused(running: subprocess.Popen[str]) -> Iterator[None]:
    """Stop every process of an attempt, as Slurm does, for longer than its point takes."""
    process = psutil.Process(running.pid)
    tree = [process, *process.children(recursive=True)]
    for one in tree:
        one.suspend()
    for one in tree:
        wait_for("stop", lambda pid=one.pid: is_stopped(pid))
    time.sleep(3)  # more than the point, and the least pause
    for one in reversed(tree):
        one.resume()
    yield


def test_a_point_is_measured_again_if_its_job_was_suspended_meanwhile(desk):
    """Its row holds a time without the pause."""
    submission = prepared(desk, SLEEPS)
    running = attempt(submission)
    wait_for_log(submission, "begins")
    with paused(running):
        out, _ = running.communicate(timeout=60)
    assert "s: measured again" in out
    (row,) = desk.rows()
    assert (row["status"], row["valid"], row["flags"]) == ("ok", "true", "")
    assert 1500 <= float(row["median_ms"]) < 2900


def test_a_point_that_was_suspended_twice_says_so(desk):
    """Where a scheduler lets jobs take turns, no try is without a pause."""
    submission = prepared(desk, SLEEPS)
    running = attempt(submission)
    wait_for_log(submission, "begins")
    with paused(running):
        wait_for_log(submission, "measured again")
    with paused(running):
        running.communicate(timeout=60)
    (row,) = desk.rows()
    assert (row["status"], row["valid"], row["flags"]) == ("ok", "false", "suspended")
    assert float(row["suspended_s"]) >= 2
    assert "the job was suspended" in desk.run("collect", "sweep").stdout


def test_a_command_that_was_suspended_runs_once_and_says_so(desk):
    """To run it twice is for a person to decide."""
    gate = Gate(desk)
    submission = prepared(desk, gate.sweep(points=1, passes=0))
    running = attempt(submission)
    wait_for("command", gate.waiting)
    with paused(running):
        gate.open()
        out, _ = running.communicate(timeout=60)
    assert "measured again" not in out
    (row,) = desk.rows()
    assert (row["status"], row["valid"]) == ("ok", "false")
    assert "suspended" in row["flags"].split(";")
    assert float(row["suspended_s"]) >= 2


def wait_for_log(submission: SubmissionDir, words: str) -> None:
    """Wait until the log of the first attempt has some words."""
    log = submission.log(0, 0)
    wait_for(words, lambda: log.read_text() if log.exists() else "", enough=lambda t: words in t)
