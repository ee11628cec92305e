"""A poisoned point costs its own row and has a limit on its time; who shares a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

import leaving
from attempts import attempt, prepared
from caring import caring
from hpcsweep import processes
from hpcsweep.catalog import INJECTIONS
from hpcsweep.node.stop import Stop
from hpcsweep.node.supervisor import Attempt
from hpcsweep.store import chunk_file, shards

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
    (row,) = shards.read(submission.attempts(0)[0]).rows
    assert (row["status"], row["status_reason"]) == ("timeout", "no result within 1.2 s")


MIXED = {"conv1": "autotune", "default": "auto"}


@pytest.mark.parametrize(
    ("tunes", "asked", "processes_of"),
    [
        ("1", ["auto", "autotune", "autotune", "auto"], [0, 1, 1, 2]),
        ("1", ["autotune", "gemm", "auto", {"default": "gemm"}], [0, 1, 1, 1]),
        ("1", [MIXED, MIXED, "autotune"], [0, 1, 2]),
        ("", ["auto", "autotune", MIXED, "auto"], [0, 0, 0, 0]),
    ],
)
def test_points_that_tune_share_no_process_with_those_that_do_not(
    tmp_path, monkeypatch, tunes, asked, processes_of
):
    """One would get the plan of the other from torch; a device without a tuner needs none."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path, TUNES=tunes) as measure:
        pids = [measure("nothing", algorithm=one).row["node"] for one in asked]
    assert [[*dict.fromkeys(pids)].index(pid) for pid in pids] == processes_of


def test_points_of_a_chunk_are_ordered_so_that_tuning_costs_one_process(desk):
    """Those that tune come after the others, in their order."""
    axes = "{model: [resnet18], input_size: [32, 64], algorithm: [autotune, auto]}"
    submission = prepared(desk, f"workload: inference\naxes: {axes}\n")
    todo = Attempt(submission, 0, Stop(lifeline=False))._todo()
    named = [(point.axes["algorithm"], point.axes["input_size"]) for point in todo]
    assert named == [("auto", 32), ("auto", 64), ("autotune", 32), ("autotune", 64)]


@pytest.mark.parametrize("act", ["hears_nothing", "reads_nothing", "ends_later"])
def test_a_point_is_not_blamed_for_what_an_earlier_one_did_to_the_worker(
    tmp_path, monkeypatch, act
):
    """A worker that had another point may die of that: the point has a try in a fresh one."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        assert measure(act).status == "ok"
        assert (measure("waits").status, measure("strike_here").status) == ("ok", "crashed")


def test_a_reason_that_is_no_text_is_a_reason(tmp_path, monkeypatch):
    """A name of a file may hold any bytes; rows and logs are UTF-8."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        found = measure("names_a_file")
        assert (found.status, found.reason) == ("error", "FileNotFoundError: no ?.pt")
    forged = '{"status": "ok", "reason": "\\udcff", "point_id": "ID", "nonce": "NONCE"}'
    monkeypatch.setattr(processes, "python", leaving.liar(forged))
    with caring(tmp_path) as measure:
        assert measure("any").status == "crashed"
