"""A poisoned point costs its own row and has a limit on its time; who shares a process."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import leaving
import resultsfolder
from attempts import attempt, prepared
from caring import caring
from hpcsweep import processes
from hpcsweep.catalog import INJECTIONS
from hpcsweep.store import chunk_file
from localruns import COMMAND

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
    (row,) = resultsfolder.read_shard(submission.attempts(0)[0]).rows
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


def test_what_kills_the_process_after_the_times_costs_no_time(pretend_gpu, desk):
    """The first point says what it died of; the others leave the check out, and have the rest."""
    desk.spec(DYING)
    command = (*COMMAND, "submit", "sweep.yaml", "--cluster", "local")
    done = pretend_gpu.run(*command, cwd=desk.folder, PRETEND_CUPTI="dies", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = sorted(desk.rows(), key=lambda row: row["started_at"])
    assert [row["status"] for row in rows] == ["ok"] * 2
    assert all(float(row["median_ms"]) > 0 and row["mem_peak_bytes"] for row in rows)
    missing = [row["checks_missing"] for row in rows]
    assert missing[0].startswith("algorithm: SIGSEGV: Fatal Python error: Segmentation fault")
    assert missing[0].endswith("numerics; control")
    assert missing[1] == "algorithm: an earlier point's process ended in it"
    assert all({"check_missing", "undecided"} <= {*row["flags"].split(";")} for row in rows)
    assert rows[0]["valid"] == "false"
    assert rows[1]["control_ms"]
    assert rows[1]["algorithm_used"]
    log = "".join(path.read_text() for path in desk.results.glob("*/submissions/*/logs/*"))
    assert "(without algorithm: SIGSEGV" in log
    shown = pretend_gpu.run(*COMMAND, "show", "sweep", cwd=desk.folder).stdout
    assert shown.count("without algorithm: an earlier point's process ended in it") == 1
