"""A poisoned point costs its own row and has a limit on its time; who shares a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import groupby

import pytest

import leaving
from attempts import SLOW, attempt, ids, in_order_of_sizes, prepared, wait_for_rows
from caring import caring
from hpcsweep import processes
from hpcsweep.catalog import INJECTIONS
from hpcsweep.catalog.sharing import worker_key
from hpcsweep.errors import EXIT_REQUEUE, Incomplete
from hpcsweep.node import todo
from hpcsweep.store import attempt as record
from hpcsweep.store import chunk_file, shards
from hpcsweep.store.folders import ShardPath
from localruns import COMMAND
from waiting import wait_for


def _in_short_jobs(submission, kill_wait: float, signal_lead: float = 0) -> None:
    manifest = submission.read_manifest()
    run = replace(manifest.run, kill_wait=kill_wait, signal_lead=signal_lead)
    submission.write_manifest(replace(manifest, run=run))


def _wait_for_a_worker(shard: ShardPath) -> None:
    wait_for("worker", lambda: record.read_record(shard), enough=lambda said: said and said.row)


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


@pytest.mark.slow
def test_no_point_starts_that_does_not_fit_the_time_left(desk):
    """The deadline leaves room for the scheduler's kill, then the rest is left for a requeue."""
    submission = prepared(desk, SLOW.replace("50", "200"))
    _in_short_jobs(submission, kill_wait=0.2)
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
    _in_short_jobs(submission, kill_wait=2)
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


def test_the_lifeline_ends_everything(desk):
    """When whoever started it is gone, supervisor and worker leave at once."""
    submission = prepared(desk, SLOW.replace("50", "60000"))
    held = subprocess.Popen(
        [sys.executable, "-m", "hpcsweep.node.supervisor", str(submission.path), "0"],
        env={**os.environ, "HPCSWEEP_LIFELINE": "stdin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    _wait_for_a_worker(ShardPath(submission.shards, 0, 0))
    held.stdin.close()
    assert held.wait(30) == EXIT_REQUEUE  # far less than the point's minute
    held.stdout.close()


HANGS_FIRST = """\
workload: noop
axes: {model: [a], input_size: [1, 2, 3, 4, 5, 6]}
measure: {fail: [{when: {input_size: 1}, how: hang}]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("told", [None, signal.SIGUSR1])
def test_a_point_that_hangs_until_the_job_ends_is_a_timeout_and_the_chunk_goes_on(desk, told):
    """Whether its time is up by the deadline, or by the scheduler's signal ahead of it."""
    submission = in_order_of_sizes(prepared(desk, HANGS_FIRST))
    _in_short_jobs(submission, kill_wait=0.5, signal_lead=0 if told is None else 60)
    first = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + (5 if told is None else 60)))
    if told:
        _wait_for_a_worker(ShardPath(submission.shards, 0, 0))
        first.send_signal(told)
    first.communicate(timeout=30)
    assert first.returncode == EXIT_REQUEUE
    attempt(submission).communicate(timeout=30)
    first, second = map(shards.read_shard, submission.attempts(0))
    (row,) = first.rows
    assert (row["status"], row["input_size"]) == ("timeout", "1")
    assert (
        "is all that a job of profile 'local' has for it; give the profile more"
        in (row["status_reason"])
    )
    assert [row["status"] for row in second.rows] == ["ok"] * 5


@pytest.mark.slow
def test_a_point_that_is_cut_short_by_the_deadline_gets_a_job_of_its_own(desk):
    """It is measured again as the first one there."""
    submission = in_order_of_sizes(
        prepared(desk, HANGS_FIRST.replace("input_size: 1}", "input_size: 3}"))
    )
    _in_short_jobs(submission, kill_wait=0.5)
    codes = []
    for _job in range(3):
        job = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 5))
        job.communicate(timeout=30)
        codes.append(job.returncode)
    assert codes == [EXIT_REQUEUE, EXIT_REQUEUE, 0]
    found = [
        [row["status"] for row in shards.read_shard(one).rows] for one in submission.attempts(0)
    ]
    assert found == [["ok", "ok"], ["timeout"], ["ok"] * 3]


def test_a_point_that_took_two_attempts_down_is_not_tried_again(desk):
    """The supervisors were killed before they could write anything."""
    submission = in_order_of_sizes(
        prepared(desk, HANGS_FIRST.replace("input_size: 1}", "input_size: 2}"))
    )
    for number in range(2):
        shard = ShardPath(submission.shards, 0, number)
        deadly = attempt(submission)
        until = time.monotonic() + 30
        while not (said := record.read_record(shard)) or not said.row or len(ids(submission)) < 1:
            assert time.monotonic() < until
        deadly.kill()
        deadly.communicate(timeout=30)
    attempt(submission).communicate(timeout=30)
    found = [
        [row["status"] for row in shards.read_shard(one).rows] for one in submission.attempts(0)
    ]
    assert found == [["ok"], [], ["timeout", "ok", "ok", "ok", "ok"]]
    (row, *_) = shards.read_shard(submission.attempts(0)[2]).rows
    assert "two attempts in a row died or were stopped while they" in row["status_reason"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGUSR1, "timeout"), (signal.SIGTERM, "")])
def test_a_point_that_two_whole_jobs_did_not_finish_is_not_tried_again(desk, number, status):
    """Slurm's time limit is shorter than the deadline says; a preemption is not the point's."""
    submission = in_order_of_sizes(prepared(desk, HANGS_FIRST))
    _in_short_jobs(submission, kill_wait=0.1)
    for _job in range(3 if not status else 2):
        shard = ShardPath(submission.shards, 0, len(submission.attempts(0)))
        stopped = attempt(submission, HPCSWEEP_DEADLINE=str(time.time() + 1800))
        _wait_for_a_worker(shard)
        stopped.send_signal(number)
        stopped.communicate(timeout=30)
        assert stopped.returncode == EXIT_REQUEUE
    assert ids(submission) == []
    if status:
        attempt(submission).communicate(timeout=30)
        rows = shards.read_shard(submission.attempts(0)[2]).rows
        assert [row["status"] for row in rows] == [status] + ["ok"] * 5


STATUS = {
    "error": ("error", "RuntimeError: injected error"),
    "crash": ("crashed", "SIGSEGV: Fatal Python error: Segmentation fault"),
    "kill": ("crashed", "SIGKILL"),
    "exit": ("crashed", "exit code 1"),
    "hang": ("timeout", "no result within 1 s"),
    "oom": ("oom", "peak 5.00 GiB, limit 4.00 GiB"),
    "unsupported": ("unsupported", "injected: cannot be done here"),
    "contended": ("ok", ""),
}


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
    (row,) = shards.read_shard(submission.attempts(0)[0]).rows
    assert (row["status"], row["status_reason"]) == ("timeout", "no result within 1.2 s")


MIXED = {"conv1": "autotune", "default": "auto"}


def test_networks_and_points_that_tune_share_no_worker(tmp_path, monkeypatch):
    """Torch would give one point the plan of another; a network's effects end with its worker."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    asked = ["auto", "gemm", "autotune", "autotune", MIXED, "autotune", "auto"]
    with caring(tmp_path) as measure:
        pids = [measure("nothing", algorithm=one).row["node"] for one in asked]
        pids += [measure(net).row["node"] for net in ("nothing", "waits", "nothing")]
    order = [[*dict.fromkeys(pids)].index(pid) for pid in pids]
    assert order == [0, 0, 1, 1, 2, 3, 4, 4, 5, 6]


def test_points_of_a_chunk_are_ordered_so_that_each_network_costs_one_worker(desk):
    """Those that tune come after the others of their visit and network."""
    axes = "{model: [resnet18, resnet34], input_size: [32, 64], algorithm: [autotune, auto]}"
    submission = prepared(desk, f"workload: inference\naxes: {axes}\nmeasure: {{repeats: 2}}\n")
    points = todo.by_worker(chunk_file.read_chunk(submission.chunks, 0).points)
    keys = [key for key, _ in groupby(map(worker_key, points))]
    assert len(points) == 16
    assert len(keys) == len(set(keys)) == 8
    assert [visit for visit, _ in groupby(key[0] for key in keys)] == [1, 2]


def test_what_asks_for_deterministic_products_has_a_worker_of_its_own(desk):
    """With the first product of a process, torch settles whether cuBLAS gives them."""
    axes = "{model: [resnet18], input_size: [32, 64], deterministic: [false, true]}"
    submission = prepared(desk, f"workload: training\naxes: {axes}\n")
    points = todo.by_worker(chunk_file.read_chunk(submission.chunks, 0).points)
    assert len(points) == 4
    assert len([*groupby(map(worker_key, points))]) == 2


def test_points_that_run_no_network_share_a_worker(desk):
    """No code runs but ours; only visits are apart."""
    submission = prepared(desk, "workload: noop\naxes: {model: [a, b], input_size: [1, 2]}\n")
    points = todo.by_worker(chunk_file.read_chunk(submission.chunks, 0).points)
    assert len(set(map(worker_key, points))) == 1


@pytest.mark.parametrize("act", ["hears_nothing", "reads_nothing", "ends_later"])
def test_a_point_is_not_blamed_for_what_an_earlier_one_did_to_the_worker(
    tmp_path, monkeypatch, act
):
    """A worker that had another point may die of that: the point has a try in a fresh one."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        assert measure("does_by_size", 1, act=act).status == "ok"
        assert measure("does_by_size", 2, act=act).status == "ok"
        assert measure("strike_here").status == "crashed"


def test_a_reason_that_is_no_text_is_a_reason(tmp_path, monkeypatch):
    """A name of a file may hold any bytes; rows and logs are UTF-8."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        found = measure("names_a_file")
        assert (found.status, found.reason) == ("error", "FileNotFoundError: no ?.pt")


@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("strike_here", "SIGSEGV: Fatal Python error: Segmentation fault"),
        ("says_much_and_ends", "exit code 7: the last words"),
        ("hangs", "no result within 2 s"),
        ("binary", "the worker's reply cannot be trusted: "),
        ("breaks_cuda", "RuntimeError: CUDA error: an illegal memory access"),
    ],
)
def test_a_point_whose_worker_ends_in_a_check_keeps_its_times(tmp_path, monkeypatch, act, why):
    """However it ends; the row says in which check, and which ones it did not come to."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        found = measure("nothing", 3, in_check=act, limit=2)
        assert (found.status, found.row["median_ms"], found.samples) == ("ok", 3.0, [3.0])
        missing = found.row["checks_missing"]
        assert missing.startswith(f"numerics: {why}")
        assert missing.endswith("; control")


def test_later_points_of_the_network_leave_out_the_check_that_ended_a_worker(tmp_path, monkeypatch):
    """Those of other networks do not; a hang would cost each of them its whole limit."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        assert measure("nothing", in_check="hangs", limit=1).killer == "numerics"
        assert [measure("nothing", in_check="hangs").killer for _ in range(3)] == [""] * 3
        assert measure("waits", in_check="hangs", limit=1).killer == "numerics"


def test_a_worker_that_had_another_point_may_end_in_a_check_once(tmp_path, monkeypatch):
    """The earlier point may have caused it, so the check is made again; then it is blamed."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        assert measure("does_by_size", 1, act="ends_later").status == "ok"
        again = measure("does_by_size", 2, in_check="waits")
        assert (again.status, again.killer) == ("ok", "")
        assert measure("does_by_size", 2, in_check="strike_here").killer == "numerics"
    log = (tmp_path / "log").read_text()
    assert log.count("Fatal Python error: Segmentation fault") == 2


def test_a_check_that_the_end_of_the_job_cuts_short_leaves_the_point_to_another(
    tmp_path, monkeypatch
):
    """It is measured with all of its checks there."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        assert measure("nothing", in_check="waits").status == "ok"
        cut = measure("nothing", in_check="hangs", until=time.time() + 1)
        assert (cut.status, cut.killer) == ("timeout", "")
        assert measure("nothing", in_check="waits").killer == ""


def test_short_points_of_which_one_ends_the_worker_in_a_check_are_measured_alone(
    tmp_path, monkeypatch
):
    """What was told of one of them is no outcome of the group, and none of another point."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        assert len(measure.together("nothing", "nothing", in_check="nothing")) == 2
        assert measure.together("nothing", "nothing", in_check="strike_here") == ()
        assert measure("nothing", in_check="nothing").row["median_ms"] == 1.0
        crashed = measure("strike_here")
        assert (crashed.status, crashed.row) == ("crashed", {})


DYING = """\
workload: inference
axes: {model: [resnet18], input_size: [64], launch: [eager, graph]}
measure: {warmup: 1, iterations: 3}
"""


@pytest.mark.parametrize(
    ("name", "measure", "decides"),
    [
        ("algorithm", "", True),
        pytest.param(
            *("profile", ", evidence: false, profile: [torch]", False), marks=pytest.mark.slow
        ),
    ],
)
def test_what_kills_the_process_after_the_times_costs_no_time(
    pretend_gpu, desk, name, measure, decides
):
    """The first point says what it died of; the others leave the check out, and have the rest."""
    desk.spec(DYING.replace("iterations: 3", f"iterations: 3{measure}"))
    command = (*COMMAND, "submit", "sweep.yaml", "--cluster", "local")
    done = pretend_gpu.run(*command, cwd=desk.folder, PRETEND_CUPTI="dies", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = sorted(desk.rows(), key=lambda row: row["started_at"])
    assert [row["status"] for row in rows] == ["ok"] * 2
    assert all(float(row["median_ms"]) > 0 and row["mem_peak_bytes"] for row in rows)
    missing = [row["checks_missing"] for row in rows]
    assert missing[0].startswith(f"{name}: SIGSEGV: Fatal Python error: Segmentation fault")
    assert missing[0].endswith("numerics; control")
    assert missing[1:] == [f"{name}: an earlier point's process ended in it"]
    for row in rows:
        assert "check_missing" in row["flags"].split(";")
    assert rows[0]["valid"] == "false"
    assert "undecided" in rows[0]["flags"].split(";")
    assert all(("undecided" in row["flags"].split(";")) is decides for row in rows[1:])
    assert all(row["control_ms"] and row["algorithm_used"] for row in rows[1:])
    log = "".join(path.read_text() for path in desk.results.glob("*/submissions/*/logs/*"))
    assert f"(without {name}: SIGSEGV" in log
    shown = pretend_gpu.run(*COMMAND, "show", "sweep", cwd=desk.folder).stdout
    assert shown.count(f"without {name}: an earlier point's process ended in it") == 1
