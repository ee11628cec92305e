"""One attempt on the node: nothing is measured twice, whatever other attempts do."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attempts import SLOW, attempt, ids, in_order_of_sizes, prepared, wait_for_rows
from gate import Gate
from hpcsweep.errors import ResultsError
from hpcsweep.importing import importer
from hpcsweep.store import attempt as record
from hpcsweep.store import shards
from hpcsweep.store.folders import ShardPath
from localruns import Desk
from waiting import has_heard, wait_for


def test_a_newer_attempt_fences_an_older_one_off(desk):
    """A node that was declared dead but lives on writes nothing more, and asks for no requeue."""
    submission = prepared(desk, SLOW)
    old = attempt(submission)
    wait_for_rows(submission, 2)
    newer = ShardPath(submission.shards, 0, 1)
    newer.overall.write_text("")
    rows = len(shards.read_keys(ShardPath(submission.shards, 0, 0).overall))
    old.communicate(timeout=120)
    assert old.returncode == 0
    assert len(shards.read_keys(ShardPath(submission.shards, 0, 0).overall)) <= rows + 1


def test_an_attempt_fences_the_older_ones_off_before_it_reads_them(desk):
    """So a row that an older attempt writes at that moment is not measured again."""
    submission = prepared(desk, SLOW)
    os.mkfifo(ShardPath(submission.shards, 0, 0).overall)  # it cannot be read
    young = attempt(submission)
    young.communicate(timeout=300)
    assert young.returncode == ResultsError.exit_code
    assert ShardPath(submission.shards, 0, 1).overall.exists()
    assert not shards.read_keys(ShardPath(submission.shards, 0, 1).overall)


def test_an_attempt_leaves_alone_what_was_sent_again(desk):
    """Its job came back after its points went into a newer submission; it ends well at once."""
    older, newer = prepared(desk, SLOW), prepared(desk, SLOW)
    back = attempt(older)
    out, _ = back.communicate(timeout=300)
    assert (back.returncode, ids(older)) == (0, [])
    assert "20 points left to another submission" in out
    assert record.read_record(older.attempts(0)[0]).reason == record.LEFT_TO_OTHERS
    attempt(newer).communicate(timeout=300)
    assert len(ids(newer)) == 20


@pytest.mark.parametrize("readable", [True, False])
def test_an_attempt_measures_what_an_imported_submission_lacks(desk, tmp_path, *, readable):
    """No job of that will; what it has a row of, and can be read, is not measured again."""
    there = Desk(tmp_path / "there")
    there.folder.mkdir()
    gate = Gate(there)
    brought = prepared(there, gate.sweep(points=20, passes=3))
    stopped = attempt(brought)
    wait_for("point at the gate", gate.waiting)
    stopped.terminate()
    wait_for("heard SIGTERM", lambda: has_heard(stopped.pid, signal.SIGTERM))
    gate.open()
    stopped.communicate(timeout=120)
    time.sleep(1.1)  # a name has its second
    queued = prepared(desk, Gate(desk).sweep(points=20, passes=20))
    importer.bring(desk.results, there.sweep().path)
    known = {*ids(brought)}
    assert len(known) == 4
    if not readable:
        (shard,) = (s for s in desk.sweep().shards() if s.folder != queued.shards)
        shard.overall.unlink()
        os.mkfifo(shard.overall)
        known = set()
    attempt(queued).communicate(timeout=300)
    assert len(ids(queued)) == 20 - len(known)
    assert not {*ids(queued)} & known


@pytest.mark.parametrize("late_first", [False, True])
def test_of_two_submissions_that_do_not_know_of_each_other_the_first_measures(desk, *, late_first):
    """Two hosts saw old listings of the folder, so both sent all points, in the same round."""
    first, late = prepared(desk, SLOW), prepared(desk, SLOW)
    late.write_manifest(replace(late.read_manifest(), round=first.read_manifest().round))
    for submission in (late, first) if late_first else (first, late):
        attempt(submission).communicate(timeout=300)
    assert (len(ids(first)), len(ids(late))) == (20, 0)


def test_points_that_are_to_be_profiled_are_still_measured(desk):
    """A newer submission under a profiler holds no times, so it takes nothing over."""
    older, newer = prepared(desk, SLOW), prepared(desk, SLOW)
    newer.write_manifest(replace(newer.read_manifest(), profile_fields={"wrapper": "nsys"}))
    attempt(older).communicate(timeout=300)
    assert len(ids(older)) == 20


def test_output_that_cannot_be_written_costs_no_point(desk):
    """The disk of the logs is full, and so is that of the job's own output."""
    submission = prepared(desk, SLOW)
    submission.log(0, 0).symlink_to("/dev/full")
    with Path("/dev/full").open("w") as full:
        running = attempt(submission, stdout=full)
        running.communicate(timeout=300)
    assert (running.returncode, len(ids(submission))) == (0, 20)


def test_a_full_disk_has_its_exit_code_even_if_nobody_can_be_told(desk):
    """The file of rows cannot grow, and neither can the job's own output."""
    submission = prepared(desk, SLOW)
    words = shlex.join(
        [sys.executable, "-m", "hpcsweep.node.supervisor", str(submission.path), "0"]
    )
    limited = f"ulimit -f 4; exec {words} </dev/null >/dev/full 2>&1"
    done = subprocess.run(["bash", "-c", limited], timeout=60, check=False)
    assert done.returncode == ResultsError.exit_code
    assert 0 < len(ids(submission)) < 20


def test_a_profiler_of_another_job_makes_no_row_profiled(desk, monkeypatch):
    """Its variable is left over; the manifest says whether this job is profiled."""
    monkeypatch.setenv("HPCSWEEP_WRAPPER", "nsys")
    submission = prepared(desk, SLOW)
    attempt(submission).communicate(timeout=300)
    keys = shards.read_keys(ShardPath(submission.shards, 0, 0).overall)
    assert {key.status for key in keys} == {"ok"}


@pytest.mark.parametrize("text", ["abc", "nan"])
def test_a_deadline_that_is_no_time_is_told(desk, monkeypatch, text):
    """One line says which variable to unset."""
    monkeypatch.setenv("HPCSWEEP_DEADLINE", text)
    _, errors = attempt(prepared(desk, SLOW)).communicate(timeout=300)
    told = f"hpcsweep: HPCSWEEP_DEADLINE='{text}': needs seconds since the epoch."
    assert errors.startswith(told)
    assert "Traceback" not in errors


SHORT = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 300, num: 300}}
point_timeout: 5
measure:
  fail:
    - {when: {input_size: 100}, how: crash}
    - {when: {input_size: 170}, how: hang}
    - {when: {input_size: 230}, how: kill}
    - {when: {input_size: 290}, how: error}
"""
FAILS = {100: "crashed", 170: "timeout", 230: "crashed", 290: "error"}


def test_short_points_that_travel_together_have_one_row_each(desk):
    """A crash costs its own point; those of its message are measured again, each alone."""
    submission = in_order_of_sizes(prepared(desk, SHORT))
    attempt(submission).communicate(timeout=300)
    rows = shards.read_shard(submission.attempts(0)[0]).rows
    assert [int(row["input_size"]) for row in rows] == [*range(1, 301)]
    found = {int(row["input_size"]): row["status"] for row in rows if row["status"] != "ok"}
    assert found == FAILS
    assert [int(row["place"]) for row in rows] == [*range(300)]
    began = [row["started_at"] for row in rows]
    assert began == sorted(began)
