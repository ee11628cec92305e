"""The table of algorithms, and that of training steps."""

from __future__ import annotations

import csv
import json
import warnings

import pytest

import resultsfolder
from analysistables import record_of, table_of
from hpcsweep.analysis import report
from hpcsweep.errors import UsageError
from hpcsweep.store.collect import collector
from hpcsweep.store.folders import SweepDir

COLUMNS = (
    "model", "algorithm", "input_size", "median_ms", "q1_ms", "q3_ms", "status", "flags",
    "status_reason", "valid", "algorithm_coverage_pct", "orphan", "seed", "num_threads", "point_id",
    "visit", "control_ms", "submission", "chunk", "attempt",
)  # fmt: skip


def _table(folder, *rows, columns=COLUMNS):
    run = SweepDir(folder / "s")
    run.path.mkdir(exist_ok=True)
    with run.overall.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
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


def _visits(algorithm, *medians, **more):
    return [_row(algorithm, ms, visit=at, **more) for at, ms in enumerate(medians, 1)]


def test_the_fastest_is_starred_only_beyond_what_varies_between_visits(tmp_path):
    """Three visits that agree within 1 % tell 10 % apart; three that do not, do not."""
    steady = _visits("gemm", 1.0, 1.01, 1.0), _visits("fft", 1.1, 1.1, 1.11)
    clear = report.read_report(_table(tmp_path, *steady[0], *steady[1]))
    assert (clear.rows[0]["fastest"], clear.rows[0]["visits"]) == ("gemm", 3)
    assert clear.rows[0]["median_ms"] == {"gemm": 1.0, "fft": 1.1}
    loose = _visits("gemm", 1.0, 1.2, 0.9), _visits("fft", 1.1, 1.1, 1.11)
    close = report.read_report(_table(tmp_path, *loose[0], *loose[1]))
    assert close.rows[0]["fastest"] == close.rows[0]["fastest_here"] == ""
    assert "*" not in table_of(close)


def test_too_few_valid_visits_are_measured_again_not_repeated_once_more(tmp_path):
    """The sweep repeats already; a lead that no common visit shows is no lead."""
    lost = {"flags": "contended", "valid": "false"}
    gemm = [*_visits("gemm", 1.0, 1.1), _row("gemm", 5.0, visit=3, **lost)]
    fft = [*_visits("fft", 1.2, 1.3), _row("fft", 5.0, visit=3, **lost)]
    few = report.read_report(_table(tmp_path, *gemm, *fft))
    assert few.rows[0]["fastest_here"] == "gemm"
    assert "fewer than three valid visits: `hpcsweep retry s --invalid` can tell" in table_of(few)
    apart = [_row("gemm", 1.0, visit=1), _row("gemm", 5.0, visit=2), _row("fft", 4.9, visit=2)]
    behind = report.read_report(_table(tmp_path, *apart))
    assert behind.rows[0]["fastest_here"] == ""


@pytest.mark.parametrize(
    ("flags", "star"),
    [("contended", ""), ("throttled;noisy", ""), ("inaccurate", "gemm"), ("very_noisy", "gemm")],
)
def test_nothing_is_starred_beside_a_time_that_nobody_knows(tmp_path, flags, star):
    """A rival that was disturbed in each visit may be faster; one that is wrong takes its time."""
    valid = "true" if flags == "noisy" else "false"
    rivals = _visits("fft", 1.5, 1.5, 1.51, flags=flags, valid=valid)
    rows = [*_visits("gemm", 1.0, 1.0, 1.01), *rivals]
    (row,) = report.read_report(_table(tmp_path, *rows)).rows
    assert (row["fastest"], row["fastest_here"], row["doubtful"]) == (star, "", ["fft"])


@pytest.mark.parametrize(("visits", "star"), [(3, "gemm"), (1, "")])
def test_noise_inside_of_visits_is_in_their_verdict(tmp_path, visits, star):
    """A lead beyond what varies between noisy visits is one; a single noisy visit says nothing."""
    rows = [*_visits("gemm", 1.0, 1.0, 1.01, flags="noisy")[:visits],
            *_visits("fft", 1.5, 1.5, 1.51, flags="noisy")[:visits]]  # fmt: skip
    (row,) = report.read_report(_table(tmp_path, *rows)).rows
    assert (row["fastest"], row["fastest_here"], len(row["doubtful"])) == (star, "", 2)


def test_of_single_visits_the_fastest_is_named_as_such(tmp_path):
    """Twice as fast is a fact here; nobody knows what the next visit would say."""
    found = report.read_report(_table(tmp_path, _row("gemm", 1.0), _row("fft", 2.0)))
    assert (found.rows[0]["fastest"], found.rows[0]["fastest_here"]) == ("", "gemm")
    text = table_of(found)
    assert "1.000'" in text
    assert "'  fastest here, by 100 %, not repeated: `measure: {repeats: 3}`" in text


def test_a_visit_that_was_disturbed_does_not_count(tmp_path):
    """One of four was contended: the others decide, and no cell is in doubt."""
    rows = [*_visits("gemm", 1.0, 9.0, 1.0, 1.01), *_visits("fft", 1.5, 1.5, 1.5, 1.51)]
    rows[1] |= {"flags": "contended", "valid": "false"}
    found = report.read_report(_table(tmp_path, *rows))
    assert (found.rows[0]["fastest"], found.rows[0]["doubtful"]) == ("gemm", [])
    assert found.rows[0]["median_ms"]["gemm"] == 1.0


def test_an_algorithm_that_did_nothing_of_a_network_is_never_the_fastest(tmp_path):
    """It is the framework's choice under another name, and no rival of it."""
    absent = {"algorithm_coverage_pct": 0, "flags": "algorithm_absent", "valid": "false"}
    rows = (
        *_visits("winograd", 1.0, 1.0, 1.0, **absent),
        *_visits("auto", 1.5, 1.51, 1.5),
        *_visits("gemm", 9.0, 9.0, 9.1),
    )
    found = report.read_report(_table(tmp_path, *rows))
    assert found.rows[0]["fastest"] == "auto"
    assert "1.000 ?   0 %" in table_of(found)


@pytest.mark.parametrize(
    "cells",
    [
        {"valid": "false", "flags": "very_noisy"},
        {"valid": "false"},
        {"algorithm_coverage_pct": ""},
    ],
)
def test_what_is_not_valid_reliable_and_covered_gets_no_star(tmp_path, cells):
    """A mark of doubt contradicts that of the fastest; nor is the next one the fastest."""
    rows = *_visits("gemm", 1.0, 1.0, 1.01, **cells), *_visits("fft", 2.0, 2.0, 2.01)
    found = report.read_report(_table(tmp_path, *rows))
    assert found.rows[0]["fastest"] == ""
    assert "*" not in table_of(found)


def test_a_flag_that_all_rows_share_separates_nothing(tmp_path):
    """Of times that another program measured the fastest is named; how many, the title says."""
    cells = {"flags": "foreign", "valid": "false"}
    rows = *_visits("gemm", 1.0, 1.0, 1.01, **cells), *_visits("fft", 2.0, 2.0, 2.01, **cells)
    found = report.read_report(_table(tmp_path, *rows))
    assert (found.rows[0]["fastest"], found.rows[0]["doubtful"]) == ("gemm", [])
    assert "6 of them not valid: foreign 6" in table_of(found)


def test_every_cell_shows_its_own_coverage(tmp_path):
    """A range over all networks says nothing about any of them."""
    rows = (
        _row("auto", 1.0), _row("winograd", 1.5, algorithm_coverage_pct=37.4),
        _row("auto", 1.0, model="vgg16"), _row("winograd", 2.5, model="vgg16"),
        _row("auto", 1.0, model="vit_b_16"),
        _row("winograd", 1.0, model="vit_b_16", algorithm_coverage_pct=99.9),
    )  # fmt: skip
    found = report.read_report(_table(tmp_path, *rows))
    lines = table_of(found).splitlines()[3:6]
    assert [line.split("1.000", 1)[1].strip("*'").split() for line in lines] == [
        ["1.500", "37", "%"], ["2.500"], ["1.000", ">99", "%"],
    ]  # fmt: skip
    assert (
        "%  share of the convolution FLOPs that ran the algorithm; auto did the rest"
        in table_of(found)
    )
    assert record_of(found)["rows"][0]["coverage_pct"] == {
        "auto": 100.0,
        "winograd": 37.4,
    }


def test_a_headline_says_how_many_rows_are_not_valid_and_why(tmp_path):
    """`2 ok` would hide that neither can be quoted."""
    rows = (
        _row("gemm", 1.0, valid="false", flags="few_samples;very_noisy"),
        _row("fft", 2.0, valid="true"),
        _row("auto", None, status="crashed", status_reason="SIGSEGV"),
    )
    found = report.read_report(_table(tmp_path, *rows))
    told = "(2 ok, 1 of them not valid: very_noisy 1; 1 crashed)"
    assert table_of(found).splitlines()[0].endswith(told)
    record = record_of(found)
    assert (record["not_valid"], record["doubts"]) == (1, {"very_noisy": 1})


def test_points_that_failed_are_listed_with_their_reasons(tmp_path):
    """Reasons that differ in numbers only are one."""
    failed = [
        _row("fft", None, input_size=size, status="oom", status_reason=f"needs {size}.5 GiB of 8")
        for size in (64, 128, 256)
    ]
    crash = _row("auto", None, status="crashed", status_reason="SIGSEGV")
    found = report.read_report(_table(tmp_path, _row("gemm", 1.0), crash, *failed))
    assert "   3 oom: needs 64.5 GiB of 8 (resnet18 64 fft and 2 others)" in table_of(found)
    assert "   1 crashed: SIGSEGV (resnet18 64 auto)" in table_of(found)
    assert record_of(found)["failed"][0]["points"] == 3


def test_many_reasons_are_cut_in_text_alone(tmp_path):
    """One screen for people, everything for programs."""
    failed = [
        _row("fft", None, input_size=size, status="error", status_reason=f"{'x' * size}: no")
        for size in range(1, 10)
    ]
    found = report.read_report(_table(tmp_path, _row("gemm", 1.0), *failed))
    assert "   and 3 points more (the column status_reason)" in table_of(found)
    assert len(record_of(found)["failed"]) == 9


def test_doubtful_numbers_carry_a_question_mark(tmp_path):
    """Flags that explain (`few_samples`) do not; a line counts those that do."""
    text = table_of(
        report.read_report(_table(tmp_path, _row("gemm", 1.0, flags="few_samples;noisy")))
    )
    assert "1.000 ?" in text
    assert "?  unreliable: noisy (1 point)" in text


def test_orphans_and_failures_are_not_compared(tmp_path):
    """Failures are counted; orphans are told apart from the sweep's own points."""
    rows = (
        _row("gemm", 1.0),
        _row("fft", 2.0, orphan="true"),
        _row("winograd", None, status="crashed"),
    )
    found = report.read_report(_table(tmp_path, *rows))
    assert found.algorithms == ("gemm", "winograd")
    assert found.rows[0]["median_ms"] == {"gemm": 1.0}
    assert found.rows[0]["fastest"] == ""  # alone
    assert found.rows[0]["failed"] == {"winograd": "crashed"}
    assert found.data.tally.statuses == {"ok": 1, "crashed": 1}
    assert "(1 ok, 1 crashed, 1 orphan left out)" in table_of(found)
    assert (record_of(found)["statuses"], record_of(found)["orphans"]) == (
        {"ok": 1, "crashed": 1},
        1,
    )


def test_sizes_that_were_not_measured_have_rows_of_their_own(tmp_path):
    """With the status in each cell; a configuration that was measured in part shows the rest."""
    rows = [
        _row(name, ms, input_size=size, num_threads=threads, status="ok" if ms else "oom")
        for size, threads, ms in ((64, 1, 1.0), (128, 1, 0), (256, 2, 0))
        for name in ("auto", "gemm")
    ]
    rows[2] |= {"median_ms": 4.0, "status": "ok"}
    found = report.read_report(_table(tmp_path, *rows))
    assert [row["input_size"] for row in found.rows] == [64, 128, 256]
    assert [row["num_threads"] for row in found.rows] == [1, 1, 2]
    lines = [line.split() for line in table_of(found).splitlines()]
    assert ["resnet18", "128", "1", "4.000", "oom"] in lines
    assert ["resnet18", "256", "2", "oom", "oom"] in lines


def test_a_table_for_people_ends_somewhere(tmp_path):
    """Its last line says how many rows there are, and what shows them."""
    rows = [_row("auto", 1.0, input_size=size) for size in range(100, 200)]
    (view,) = report.read_report(_table(tmp_path, *rows)).views()
    lines = view.written("table", most=10).splitlines()
    assert lines[12:14] == ["resnet18  109         1.000", "... and 90 more (--all shows them)"]
    assert len(view.written("csv", most=10).splitlines()) == 101
    assert "more (--all" not in view.written("table", most=100)


def test_a_sweep_that_was_not_collected_is_told_what_to_do(tmp_path):
    """The message names the command."""
    with pytest.raises(UsageError, match="hpcsweep collect s"):
        report.read_report(SweepDir(tmp_path / "s"))


def test_nothing_measured_is_told(tmp_path):
    """Counts say what there is instead."""
    with pytest.raises(UsageError, match="1 crashed"):
        report.read_report(_table(tmp_path, _row("gemm", None, status="crashed")))


def test_rows_that_differ_by_an_axis_alone_are_all_shown(tmp_path):
    """Be it one that a comparison seldom varies; one that is unset is no `nan`."""
    rows = [
        _row("gemm", 1.0, seed=seed, num_threads=threads, point_id=f"{seed}{threads}")
        for seed in (0, 1)
        for threads in ("", 2)
    ]
    found = report.read_report(_table(tmp_path, *rows))
    assert [(row["seed"], row["num_threads"]) for row in found.rows] == [
        (0, 2), (1, 2), (0, None), (1, None),
    ]  # fmt: skip
    assert [line.split()[2:4] for line in table_of(found).splitlines()[3:7]] == [
        ["2", "0"], ["2", "1"], ["unset", "0"], ["unset", "1"],
    ]  # fmt: skip
    assert "NaN" not in json.dumps(record_of(found))


def test_rows_that_no_axis_tells_apart_are_shown_by_their_ids(tmp_path):
    """They were measured otherwise; none is dropped or merged."""
    rows = (_row("gemm", 1.0, point_id="aa"), _row("gemm", 3.0, point_id="bb"))
    found = report.read_report(_table(tmp_path, *rows))
    assert [(row["point_id"], row["median_ms"]) for row in found.rows] == [
        ("aa", {"gemm": 1.0}),
        ("bb", {"gemm": 3.0}),
    ]


def test_a_collected_sweep_is_reported_without_warnings(tmp_path):
    """Its table has every column; pandas warns where columns are added to such a wide one."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("20260101-000000-aaaaaa")
    folder.measure(folder.shard("20260101-000000-aaaaaa"), median_ms=2.0, q1_ms=1.9, q3_ms=2.1)
    collector.collect(folder.sweep_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = report.read_report(folder.sweep_dir)
    assert [len(row["median_ms"]) for row in found.rows] == [2, 2, 2, 2]
    assert json.dumps(record_of(found))


def _trained(folder, *rows):
    return _table(folder, *rows, columns=dict.fromkeys(name for row in rows for name in row))


def _step(**more):
    base = {
        "point_id": "", "model": "resnet18", "algorithm": "auto", "batch_size": 32,
        "input_size": 32,
        "status": "ok", "workload": "training", "orphan": "false", "amp": "off", "flags": "",
        "median_ms": 10.0, "throughput_sps": 3200.0, "phase_forward_ms": 3.0,
        "phase_backward_ms": 6.0, "val_accuracy_before": 0.1, "val_accuracy_after": 0.55,
        "epochs_train_loss": "[2.3,1.9]", "params": 11181642, "train_s": 3.0, "epoch_s": 1.5,
    }  # fmt: skip
    return {**base, **more}


def test_the_axis_of_optimizers_is_not_the_phase(tmp_path):
    """Both have a column."""
    steps = (_step(optimizer=name, phase_optimizer_ms=1.5) for name in ("sgd", "adam"))
    head, *rows = table_of(report.read_report(_trained(tmp_path, *steps))).splitlines()[2:5]
    assert head.split().index("optimizer") == 2
    assert [row.split()[2] for row in rows] == ["adam", "sgd"]
    assert all("1.500" in row.split() for row in rows)


def test_a_configuration_is_a_row_with_throughput_and_phases(tmp_path):
    """Named by the axes that differ; what is unknown is a dash."""
    noisy = {"flags": "very_noisy", "valid": "false"}
    run = _trained(tmp_path, _step(), _step(amp="bf16", median_ms=5.0, **noisy))
    lines = table_of(report.read_report(run)).splitlines()
    head = "s: training, ms of a step (2 ok, 1 of them not valid: very_noisy 1)"
    assert lines[0] == head
    assert lines[2].split()[:5] == ["model", "batch_size", "amp", "samples/s", "step"]
    assert lines[3].split()[2:7] == ["bf16", "3200.0", "5.000?", "-", "-"]
    assert lines[4].split()[2:] == [
        "off", "3200.0", "10.000", "-", "-", "3.000", "-", "6.000", "-", "-", "11.2",
        "0.100", "0.550",
    ]  # fmt: skip
    assert lines[8].split()[-2:] == ["all", "epoch"]
    assert lines[9].split()[-2:] == ["3.000", "1.500"]
    assert "?  unreliable: very_noisy (1 point)" in lines


def test_the_record_has_the_columns_by_their_names(tmp_path):
    """Plain JSON, empty cells as null."""
    record = json.loads(
        json.dumps(record_of(report.read_report(_trained(tmp_path, _step(mem_peak_bytes="")))))
    )
    (row,) = record["rows"]
    assert row["throughput_sps"] == 3200.0
    assert row["mem_peak_bytes"] is None
    assert not row["doubtful"]


def test_what_an_algorithm_did_not_do_is_said(tmp_path):
    """Of each row; where every algorithm did everything, there is no such column."""
    partial = _step(algorithm="winograd", algorithm_coverage_pct=81.5)
    text = table_of(
        report.read_report(_trained(tmp_path, _step(algorithm_coverage_pct=100), partial))
    )
    shown = [line.split("  ") for line in text.splitlines()[2:5]]
    column = [[cell.strip() for cell in line if cell.strip()] for line in shown]
    place = column[0].index("covered")
    assert [line[place] for line in column] == ["covered", "100 %", "82 %"]
    assert "   covered: share of the convolution FLOPs that ran the algorithm" in text
    assert "covered" not in table_of(
        report.read_report(_trained(tmp_path, _step(algorithm_coverage_pct=100)))
    )
