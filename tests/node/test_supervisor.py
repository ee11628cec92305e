"""One attempt on the node: a poisoned point costs its own row, and nothing is measured twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hpcsweep.catalog import INJECTIONS
from hpcsweep.errors import EXIT_REQUEUE, Incomplete, Refused
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import chunk_file, shards
from hpcsweep.store.rundir import ShardPath, SubmissionDir
from hpcsweep.submit import prepare, request

if TYPE_CHECKING:
    from localruns import Desk

STATUS = {
    "error": ("error", "RuntimeError: injected error"),
    "crash": ("crashed", "SIGSEGV: Fatal Python error: Segmentation fault"),
    "kill": ("crashed", "SIGKILL"),
    "exit": ("crashed", "exit code 1"),
    "hang": ("timeout", "no result within 1 s"),
    "oom": ("oom", "peak 5.00 GiB, limit 4.00 GiB"),
    "unsupported": ("unsupported", "injected: cannot be done here"),
}


def prepared(desk: Desk, text: str) -> SubmissionDir:
    """Return a submission of one chunk, recorded as `submit` does and not launched."""
    asked = request.make(sweep_file.load(desk.spec(text)), profile.load("local"))
    return prepare.prepare(desk.sweep(), asked).submission


def attempt(submission: SubmissionDir, **env: str) -> subprocess.Popen[str]:
    """Start an attempt as a job script does."""
    return subprocess.Popen(
        [sys.executable, "-m", "hpcsweep.node.supervisor", str(submission.path), "0"],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ids(submission: SubmissionDir) -> list[str]:
    """Return the point of every row, over all attempts."""
    return [
        key.point_id for shard in submission.attempts(0) for key in shards.read_keys(shard.overall)
    ]


def wait_for_rows(submission: SubmissionDir, count: int) -> None:
    """Wait until some rows are there."""
    until = time.monotonic() + 30
    while len(ids(submission)) < count:
        assert time.monotonic() < until, f"only {len(ids(submission))} rows"
        time.sleep(0.01)


SLOW = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 20, num: 20}}
measure: {sleep_ms: 50}
"""


def test_every_kind_of_failure_costs_its_own_point_alone(desk):
    """The row says what happened; the other points are measured."""
    rules = "\n".join(
        f"    - {{when: {{model: {how}, input_size: 2}}, how: {how}}}" for how in INJECTIONS
    )
    file = desk.spec(
        "workload: noop\n"
        f"axes: {{model: [{', '.join(INJECTIONS)}], input_size: [1, 2, 3]}}\n"
        f"point_timeout: 1\nmeasure:\n  fail:\n{rules}\n"
    )
    done = desk.run("submit", file, "--cluster", "local")
    assert done.returncode == 3, done.stderr
    rows = {(row["model"], row["input_size"]): row for row in desk.rows()}
    assert len(rows) == 3 * len(INJECTIONS)
    for how in INJECTIONS:
        status, reason = STATUS[how]
        bad = rows[how, "2"]
        assert (bad["status"], reason in bad["status_reason"]) == (status, True), bad
        assert rows[how, "1"]["status"] == rows[how, "3"]["status"] == "ok"
    assert rows["oom", "2"]["mem_peak_bytes"] == str(5 << 30)
    assert rows["oom", "2"]["mem_limit_bytes"] == str(4 << 30)


def test_a_training_has_the_time_limit_for_each_epoch(desk):
    """A point of three epochs may take three times as long; any point with that axis does."""
    rule = "{when: {model: slow}, how: hang}"
    text = "workload: noop\naxes: {model: [slow]}\npoint_timeout: 0.4\n"
    submission = prepared(desk, f"{text}measure: {{fail: [{rule}]}}\n")
    chunk = chunk_file.read_chunk(submission.chunks, 0)
    points = [replace(p, axes={**p.axes, "epochs": 3}) for p in chunk.points]
    chunk_file.write_chunks(submission.chunks, [replace(chunk, points=points)])
    attempt(submission).communicate(timeout=60)
    (row,) = shards.read(submission.attempts(0)[0]).rows
    assert (row["status"], row["status_reason"]) == ("timeout", "no result within 1.2 s")


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


def test_a_newer_attempt_fences_an_older_one_off(desk):
    """A node that was declared dead but lives on writes nothing more, and asks for no requeue."""
    submission = prepared(desk, SLOW)
    old = attempt(submission)
    wait_for_rows(submission, 2)
    newer = ShardPath(submission.shards, 0, 1)
    newer.overall.write_text("")
    rows = len(shards.read_keys(ShardPath(submission.shards, 0, 0).overall))
    old.communicate(timeout=30)
    assert old.returncode == 0
    assert len(shards.read_keys(ShardPath(submission.shards, 0, 0).overall)) <= rows + 1


def test_an_attempt_fences_the_older_ones_off_before_it_reads_them(desk):
    """So a row that an older attempt writes at that moment is not measured again."""
    submission = prepared(desk, SLOW)
    os.mkfifo(ShardPath(submission.shards, 0, 0).overall)  # whoever reads it waits for a writer
    young = attempt(submission)
    with ShardPath(submission.shards, 0, 0).overall.open("w") as older:
        assert ShardPath(submission.shards, 0, 1).overall.exists()
        first = chunk_file.read_chunk(submission.chunks, 0).points[0].point_id
        older.write(f"{first},ok,\n")
    young.communicate(timeout=60)
    keys = shards.read_keys(ShardPath(submission.shards, 0, 1).overall)
    assert (len(keys), first in {key.point_id for key in keys}) == (19, False)


def test_an_attempt_leaves_alone_what_was_sent_again(desk):
    """Its job came back after its points went into a newer submission; it ends well at once."""
    older, newer = prepared(desk, SLOW), prepared(desk, SLOW)
    back = attempt(older)
    out, _ = back.communicate(timeout=60)
    assert (back.returncode, ids(older)) == (0, [])
    assert "20 points sent again in a newer submission" in out
    attempt(newer).communicate(timeout=60)
    assert len(ids(newer)) == 20


def test_points_that_are_to_be_profiled_are_still_measured(desk):
    """A newer submission under a profiler holds no times, so it takes nothing over."""
    older, newer = prepared(desk, SLOW), prepared(desk, SLOW)
    newer.write_manifest(replace(newer.read_manifest(), profile_fields={"wrapper": "nsys"}))
    attempt(older).communicate(timeout=60)
    assert len(ids(older)) == 20


def test_a_worker_that_cannot_start_charges_no_point(desk):
    """An environment that is broken is the machine's fault; nothing is written."""
    submission = prepared(desk, SLOW)
    submission.write_manifest(replace(submission.read_manifest(), workload="baking"))
    refused = attempt(submission)
    _, errors = refused.communicate(timeout=60)
    assert refused.returncode == Refused.exit_code
    assert "baking" in errors
    assert ids(submission) == []


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
