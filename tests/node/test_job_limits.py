"""What an attempt has to measure, and what bounds it: signals, its launcher, time, suspensions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
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
from hpcsweep.errors import EXIT_REQUEUE, Incomplete
from hpcsweep.importing import importer
from hpcsweep.node import job_limits
from hpcsweep.node.job_limits import OutOfMemoryPoints
from hpcsweep.store import attempt as record
from hpcsweep.store import chunk_file
from localruns import Desk
from processmarks import marked
from waiting import has_heard, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.store.folders import SubmissionDir


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_the_point_of_a_job_whose_every_process_is_told_to_stop_has_its_row(desk, number):
    """As `scancel --signal=INT` tells them; the worker leaves it to the supervisor."""
    submission = prepared(desk, SLOW.replace("50", "2000"))
    mark = f"every process {os.getpid()} {number}"
    stopped = attempt(submission, LEAVES=mark)
    wait_for_a_worker(submission)
    for pid in marked(f"LEAVES={mark}"):
        os.kill(int(pid), number)
    stopped.communicate(timeout=60)
    assert stopped.returncode == EXIT_REQUEUE
    assert statuses(submission) == [["ok"]]


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
    (row,) = resultsfolder.read_shard(submission.attempts(0)[0]).rows
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


def shortened(submission: SubmissionDir, **times: float) -> None:
    """Let the jobs of a submission have asked for less than the profile's time."""
    in_short_jobs(submission, **times)
    manifest = submission.read_manifest()
    run = replace(manifest.run, shortened=True)
    submission.write_manifest(replace(manifest, run=run))


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [1, 2])
def test_a_point_that_a_shortened_job_does_not_hold_is_no_timeout(desk, hangs):
    """Its job ends for good, so that the next submission asks for more; before, rows are kept."""
    text = HANGS_FIRST.replace("input_size: 1}", f"input_size: {hangs}}}")
    submission = in_order_of_sizes(prepared(desk, text))
    shortened(submission, kill_wait=0.5)
    codes = []
    for _ in range(hangs):
        job = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 5))
        _, errors = job.communicate(timeout=30)
        codes.append(job.returncode)
    assert codes == [EXIT_REQUEUE] * (hangs - 1) + [Incomplete.exit_code]
    assert statuses(submission) == [["ok"] * (hangs - 1), []][-hangs:]
    last = record.read_record(submission.attempts(0)[-1])
    assert last is not None
    assert last.reason.endswith(record.TOO_SHORT)
    assert "which is all that a shortened job of profile 'local' has for it; submit again" in errors


def test_a_shortened_job_without_time_for_a_point_is_not_requeued(desk):
    """It would have the same time again."""
    submission = prepared(desk, SLOW)
    shortened(submission, kill_wait=0)
    job = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() - 1))
    _, errors = job.communicate(timeout=30)
    assert (job.returncode, record.TOO_SHORT in errors) == (Incomplete.exit_code, True)


def test_no_point_is_given_up_where_two_shortened_jobs_did_not_finish_it(desk):
    """Slurm's limit was shorter than the deadline says, as after `scontrol update`."""
    submission = in_order_of_sizes(prepared(desk, HANGS_FIRST))
    shortened(submission, kill_wait=0.1)
    codes = []
    for job in range(3):
        stopped = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 1800))
        if job < 2:
            wait_for_a_worker(submission, job)
            stopped.send_signal(signal.SIGUSR1)
        stopped.communicate(timeout=30)
        codes.append(stopped.returncode)
    assert codes == [EXIT_REQUEUE, EXIT_REQUEUE, Incomplete.exit_code]
    assert ids(submission) == []


@pytest.mark.parametrize("text", ["abc", "nan"])
def test_a_deadline_that_is_no_time_is_told(desk, monkeypatch, text):
    """One line says which variable to unset."""
    monkeypatch.setenv("HPCSWEEP_DEADLINE", text)
    _, errors = attempt(prepared(desk, SLOW)).communicate(timeout=300)
    told = f"hpcsweep: HPCSWEEP_DEADLINE='{text}': needs seconds since the epoch."
    assert errors.startswith(told)
    assert "Traceback" not in errors


FREEZER = Path("/sys/fs/cgroup/freezer")
TELLS = """\
import sys, time
from hpcsweep.node.job_limits import SuspensionWatch
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
    points = job_limits.sorted_by_worker(chunk_file.read_chunk(submission.chunks, 0).points)
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
    brought = prepared(there, gate.sweep(points=8, passes=3))
    stopped = attempt(brought)
    wait_for("point at the gate", gate.waiting)
    stopped.terminate()
    wait_for("heard SIGTERM", lambda: has_heard(stopped.pid, signal.SIGTERM))
    gate.open()
    stopped.communicate(timeout=120)
    time.sleep(1.1)  # a name has its second
    queued = prepared(desk, Gate(desk).sweep(points=8, passes=8))
    importer.bring(desk.results, there.sweep().path)
    known = {*ids(brought)}
    assert len(known) == 4
    if not readable:
        (shard,) = (s for s in desk.sweep().shards() if s.folder != queued.shards)
        shard.overall.unlink()
        os.mkfifo(shard.overall)
        known = set()
    attempt(queued).communicate(timeout=300)
    assert len(ids(queued)) == 8 - len(known)
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


def test_short_points_that_travel_together_have_one_row_each(desk):
    """A crash costs its own point; those of its message are measured again, each alone."""
    submission = in_order_of_sizes(prepared(desk, SHORT))
    attempt(submission).communicate(timeout=300)
    rows = resultsfolder.read_shard(submission.attempts(0)[0]).rows
    assert [int(row["input_size"]) for row in rows] == [*range(1, 121)]
    found = {int(row["input_size"]): row["status"] for row in rows if row["status"] != "ok"}
    assert found == FAILS
    assert [int(row["place"]) for row in rows] == [*range(120)]
    began = [row["started_at"] for row in rows]
    assert began == sorted(began)
