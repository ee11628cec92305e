"""Which points an attempt measures, and which it skips."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

import resultsfolder
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
    wait_for_rows,
)
from gate import Gate
from hpcsweep.catalog import worker_key
from hpcsweep.errors import EXIT_REQUEUE
from hpcsweep.importing import importer
from hpcsweep.node import todo
from hpcsweep.node.todo import OutOfMemoryPoints
from hpcsweep.store import attempt as record
from hpcsweep.store import chunk_file
from localruns import Desk
from waiting import has_heard, wait_for


def test_a_point_that_took_two_attempts_down_is_not_tried_again(desk):
    """The supervisors were killed before they could write anything."""
    text = HANGS_FIRST.replace("input_size: 1}", "input_size: 2}")
    submission = in_order_of_sizes(prepared(desk, text))
    for number in range(2):
        deadly = attempt(submission)
        wait_for_a_worker(submission, number)
        wait_for_rows(submission, 1)
        deadly.kill()
        deadly.communicate(timeout=30)
    attempt(submission).communicate(timeout=30)
    assert statuses(submission) == [["ok"], [], ["timeout", *["ok"] * 4]]
    (row, *_) = resultsfolder.read_shard(submission.attempts(0)[2]).rows
    assert "two attempts in a row died or were stopped while they" in row["status_reason"]


@pytest.mark.parametrize(("number", "is_tried"), [(signal.SIGUSR1, False), (signal.SIGTERM, True)])
def test_a_point_that_two_whole_jobs_did_not_finish_is_not_tried_again(desk, number, is_tried):
    """Slurm's time limit is shorter than the deadline says; a preemption is not the point's."""
    submission = in_order_of_sizes(prepared(desk, HANGS_FIRST))
    in_short_jobs(submission, kill_wait=0.1)
    for job in range(3 if is_tried else 2):
        stopped = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 1800))
        wait_for_a_worker(submission, job)
        stopped.send_signal(number)
        stopped.communicate(timeout=30)
        assert stopped.returncode == EXIT_REQUEUE
    assert ids(submission) == []
    if not is_tried:
        attempt(submission).communicate(timeout=30)
        assert statuses(submission)[2] == ["timeout", *["ok"] * 5]


NETWORKS = "{model: [resnet18, resnet34], input_size: [32, 64], algorithm: [autotune, auto]}"
DETERMINISTIC = "{model: [resnet18], input_size: [32, 64], deterministic: [false, true]}"


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        (f"workload: inference\naxes: {NETWORKS}\nmeasure: {{repeats: 2}}\n", 8),
        # with the first product of a process, torch settles whether cuBLAS gives such
        (f"workload: training\naxes: {DETERMINISTIC}\n", 2),
        # no code runs but ours
        ("workload: noop\naxes: {model: [a, b], input_size: [1, 2]}\n", 1),
    ],
)
def test_points_of_a_chunk_are_ordered_so_that_each_network_costs_one_worker(desk, text, workers):
    """Those that tune come after the others of their visit and network."""
    submission = prepared(desk, text)
    points = todo.sorted_by_worker(chunk_file.read_chunk(submission.chunks, 0).points)
    keys = [key for key, _ in groupby(map(worker_key, points))]
    assert len(keys) == len(set(keys)) == workers
    visits = [visit or 1 for visit, *_ in keys]
    assert visits == sorted(visits)


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


sizes = st.integers(1, 8)


def _axes(batch, size, **more):
    return {
        "model": "resnet18",
        "dtype": "float32",
        "batch_size": batch,
        "input_size": size,
        **more,
    }


@given(sizes, sizes, sizes, sizes)
def test_larger_in_both_is_skipped_and_smaller_in_either_is_tried(batch, size, other, another):
    """The order is that of the product of the two axes."""
    known = OutOfMemoryPoints([_axes(batch, size)])
    skipped = known.why_skip(_axes(other, another)) is not None
    assert skipped == (other >= batch and another >= size)


def test_another_value_of_any_other_axis_is_another_question():
    """A dtype, an algorithm map or a network of its own needs memory of its own."""
    known = OutOfMemoryPoints([_axes(8, 8)])
    assert known.why_skip(_axes(8, 8))
    assert known.why_skip(_axes(8, 8, dtype="float16")) is None
    assert known.why_skip(_axes(8, 8, algorithm={"default": "gemm"})) is None


def test_a_workload_without_sizes_is_never_skipped_for_another_model():
    """Axes that a point lacks count as zero."""
    known = OutOfMemoryPoints([{"model": "a"}])
    assert known.why_skip({"model": "b"}) is None
    assert known.why_skip({"model": "a"})


SHORT = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 120, num: 120}}
point_timeout: 2
measure:
  fail:
    - {when: {input_size: 40}, how: crash}
    - {when: {input_size: 70}, how: hang}
    - {when: {input_size: 100}, how: kill}
    - {when: {input_size: 115}, how: error}
"""
FAILS = {40: "crashed", 70: "timeout", 100: "crashed", 115: "error"}


def test_a_crash_costs_its_own_point_and_none_beside_it(desk):
    """Of a hundred short ones each has one row, in their order."""
    submission = in_order_of_sizes(prepared(desk, SHORT))
    attempt(submission).communicate(timeout=300)
    rows = resultsfolder.read_shard(submission.attempts(0)[0]).rows
    assert [int(row["input_size"]) for row in rows] == [*range(1, 121)]
    found = {int(row["input_size"]): row["status"] for row in rows if row["status"] != "ok"}
    assert found == FAILS
    assert [int(row["place"]) for row in rows] == [*range(120)]
    began = [row["started_at"] for row in rows]
    assert began == sorted(began)
