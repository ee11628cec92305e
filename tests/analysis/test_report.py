"""The table that compares algorithms: what it marks, and what it refuses to mark."""

from __future__ import annotations

import csv
import json
import warnings

import pytest

import resultsfolder
from hpcsweep.analysis import report
from hpcsweep.collect import workflow
from hpcsweep.errors import UsageError
from hpcsweep.store.rundir import RunDir

COLUMNS = (
    "model", "algorithm", "input_size", "median_ms", "q1_ms", "q3_ms", "status", "flags",
    "algorithm_coverage_pct", "orphan", "seed", "num_threads", "point_id",
)  # fmt: skip


def _table(folder, *rows):
    run = RunDir(folder / "s")
    run.path.mkdir(exist_ok=True)
    with run.overall.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return run


def _row(algorithm, median, **more):
    base = {
        "model": "resnet18", "input_size": 64, "algorithm": algorithm, "median_ms": median,
        "q1_ms": (median or 0) * 0.98, "q3_ms": (median or 0) * 1.02,
        "status": "ok", "orphan": "false",
        "algorithm_coverage_pct": 100,
    }  # fmt: skip
    return {**base, **more}


def test_the_fastest_is_marked_only_beyond_the_noise(tmp_path):
    """Quartiles that overlap make no winner."""
    clear = report.read(_table(tmp_path, _row("gemm", 1.0), _row("fft", 2.0)))
    assert clear.rows[0]["fastest"] == "gemm"
    close = report.read(_table(tmp_path, _row("gemm", 1.0), _row("fft", 1.01)))
    assert close.rows[0]["fastest"] == ""
    assert "*" not in close.text()


def test_confidence_intervals_are_preferred_where_they_are_known(tmp_path):
    """Without them the quartiles decide; a single algorithm never wins."""
    alone = report.read(_table(tmp_path, _row("gemm", 1.0)))
    assert alone.rows[0]["fastest"] == ""


def test_partial_coverage_is_said(tmp_path):
    """A winograd row that mostly fell back is not a Winograd time."""
    rows = (_row("auto", 1.0), _row("winograd", 1.5, algorithm_coverage_pct=37.4))
    text = report.read(_table(tmp_path, *rows)).text()
    assert "winograd did 37 % of the convolution FLOPs" in text


def test_doubtful_numbers_carry_a_question_mark(tmp_path):
    """Flags that explain (`few_samples`) do not; a line counts those that do."""
    text = report.read(_table(tmp_path, _row("gemm", 1.0, flags="few_samples;noisy"))).text()
    assert "1.000 ?" in text
    assert "?  unreliable: noisy (1 point)" in text


def test_orphans_and_failures_are_not_compared(tmp_path):
    """Failures are counted; orphans are told apart from the sweep's own points."""
    rows = (
        _row("gemm", 1.0),
        _row("fft", 2.0, orphan="true"),
        _row("winograd", None, status="crashed"),
    )
    found = report.read(_table(tmp_path, *rows))
    assert found.algorithms == ("gemm",)
    assert found.data.statuses == {"ok": 1, "crashed": 1}
    assert "(1 ok, 1 crashed, 1 orphan left out)" in found.text()
    assert (found.to_json()["statuses"], found.to_json()["orphans"]) == ({"ok": 1, "crashed": 1}, 1)


def test_a_sweep_that_was_not_collected_is_told_what_to_do(tmp_path):
    """The message names the command."""
    with pytest.raises(UsageError, match="hpcsweep collect s"):
        report.read(RunDir(tmp_path / "s"))


def test_nothing_measured_is_told(tmp_path):
    """Counts say what there is instead."""
    with pytest.raises(UsageError, match="1 crashed"):
        report.read(_table(tmp_path, _row("gemm", None, status="crashed")))


def test_the_record_holds_medians_by_algorithm(tmp_path):
    """Machines get the same figures as people."""
    record = report.read(_table(tmp_path, _row("gemm", 1.5), _row("auto", 1.0))).to_json()
    assert record["rows"][0]["median_ms"] == {"gemm": 1.5, "auto": 1.0}


def test_rows_that_differ_by_an_axis_alone_are_all_shown(tmp_path):
    """Be it one that a comparison seldom varies; one that is unset is no `nan`."""
    rows = [
        _row("gemm", 1.0, seed=seed, num_threads=threads, point_id=f"{seed}{threads}")
        for seed in (0, 1)
        for threads in ("", 2)
    ]
    found = report.read(_table(tmp_path, *rows))
    assert [(row["seed"], row["num_threads"]) for row in found.rows] == [
        (0, 2), (1, 2), (0, None), (1, None),
    ]  # fmt: skip
    assert [line.split()[2:4] for line in found.text().splitlines()[3:7]] == [
        ["2", "0"], ["2", "1"], ["unset", "0"], ["unset", "1"],
    ]  # fmt: skip
    assert "NaN" not in json.dumps(found.to_json())


def test_rows_that_no_axis_tells_apart_are_shown_by_their_ids(tmp_path):
    """They were measured otherwise; none is dropped or merged."""
    rows = (_row("gemm", 1.0, point_id="aa"), _row("gemm", 3.0, point_id="bb"))
    found = report.read(_table(tmp_path, *rows))
    assert [(row["point_id"], row["median_ms"]) for row in found.rows] == [
        ("aa", {"gemm": 1.0}),
        ("bb", {"gemm": 3.0}),
    ]


def test_a_collected_sweep_is_reported_without_warnings(tmp_path):
    """Its table has every column; pandas warns where columns are added to such a wide one."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("20260101-000000-aaaaaa")
    folder.measure(folder.shard("20260101-000000-aaaaaa"), median_ms=2.0, q1_ms=1.9, q3_ms=2.1)
    workflow.collect(folder.run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = report.read(folder.run)
    assert [len(row["median_ms"]) for row in found.rows] == [2, 2, 2, 2]
    assert json.dumps(found.to_json())
