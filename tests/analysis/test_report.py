"""The table of algorithms, those of training steps, and what commands said."""

from __future__ import annotations

import csv
import io
import json
import warnings

import pandas as pd
import pytest

import resultsfolder
from analysistables import record_of, table_of
from hpcsweep import api
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
    assert [*found.views[0].texts][-2:] == ["gemm", "winograd"]
    assert found.rows[0]["median_ms"] == {"gemm": 1.0}
    assert found.rows[0]["fastest"] == ""  # alone
    assert found.rows[0]["failed"] == {"winograd": "crashed"}
    assert record_of(found)["statuses"] == {"ok": 1, "crashed": 1}
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
    (view,) = report.read_report(_table(tmp_path, *rows)).views
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


COMMANDS = """\
axes: {lr: [0.1, 0.2], kind: [one, two], flag: [true, false]}
exclude: [{kind: two, flag: false}]
run: python one.py {lr} {kind}
measure: {repeats: 2}
"""
PROGRAM = """\
import json, sys
if sys.argv[1:] == ["0.2", "two"]:
    raise SystemExit(3)
print(json.dumps({"score": float(sys.argv[1]) * 10, "word": sys.argv[2]}))
"""


def _measured(desk, script, spec, code=0):
    """Measure and collect a sweep over a program, which says its results in its last line."""
    (desk.folder / "one.py").write_text(script)
    desk.spec(f"workload: command\nresults: {{json: last_line}}\n{spec}")
    assert desk.submit("--collect").returncode == code
    return desk


@pytest.fixture
def commands(desk):
    """Measure and collect the sweep."""
    return _measured(desk, PROGRAM, COMMANDS, code=3)


def _csv_rows(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text))]


def test_every_command_that_reads_tables_knows_its_axes_and_results(commands):
    """Report, page, conditions, plot and compare; best and layers say why they cannot."""
    table = _csv_rows(commands.run("report", "sweep", "--format", "csv").stdout)
    told = [(row["lr"], row["kind"], row["flag"], row["status"], row["score"]) for row in table]
    assert sorted(told) == [
        ("0.1", "one", "false", "ok", "1.0"), ("0.1", "one", "true", "ok", "1.0"),
        ("0.1", "two", "true", "ok", "1.0"), ("0.2", "one", "false", "ok", "2.0"),
        ("0.2", "one", "true", "ok", "2.0"), ("0.2", "two", "true", "crashed", ""),
    ]  # fmt: skip
    shown = commands.run("report", "sweep").stdout
    assert "foreign: what the command said" in shown
    assert "exit code 3" in shown
    some = commands.run(
        "report", "sweep", "--metric", "score", "--where", "kind=one,flag=true", "--format", "csv"
    )
    assert [row["score"] for row in _csv_rows(some.stdout)] == ["1.0", "2.0"]
    assert commands.run("report", "sweep", "--html", "page.html").returncode == 0
    drawn = commands.run("plot", "sweep", "--y", "score", "--format", "csv")
    assert drawn.returncode == 0, drawn.stderr
    assert {row["doubtful"] for row in _csv_rows(drawn.stdout)} == {"false"}
    compared = commands.run("compare", "sweep:kind=one", "sweep:kind=two", "--metric", "median_ms")
    assert "compared: kind one and two" in compared.stdout, compared.stderr
    for command in ("best", "layers"):
        assert commands.run(command, "sweep").returncode == 2
    assert "no numbers" in commands.run("report", "sweep", "--metric", "word").stderr


def test_results_keep_all_digits(desk):
    """Such as those of a time in seconds since 1970."""
    script = 'print(\'{"ended": 1764281234.123, "loss": 0.123456789012}\')\n'
    _measured(desk, script, "axes: {k: [0.123456789]}\nrun: python one.py {k}\n")
    (row,) = _csv_rows(desk.sweep().overall.read_text())
    assert (row["k"], row["ended"], row["loss"]) == (
        "0.123456789",
        "1764281234.123",
        "0.123456789012",
    )


def test_texts_of_results_stay_texts(desk):
    """Versions, commits and names that numbers would make equal, endless or shorter."""
    said = [{"version": "2.10", "commit": "12e5678", "name": "007", "loss": 0.5}]
    said += [{"version": "2.1", "commit": "0123456", "name": "7", "loss": float("nan")}]
    script = f"import json, sys\nprint(json.dumps({said!r}[int(sys.argv[1])]))\n"
    script = script.replace("nan", "float('nan')")
    _measured(desk, script, "axes: {k: [0, 1]}\nrun: python one.py {k}\n")
    rows = api.load("sweep", results=desk.results).overall.sort_values("k")
    for name in ("version", "commit", "name"):
        assert [*rows[name]] == [of[name] for of in said]
    assert pd.api.types.is_float_dtype(rows["loss"])
    table = _csv_rows(desk.run("report", "sweep", "--format", "csv").stdout)
    assert [row["version"] for row in table] == ["2.10", "2.1"]


@pytest.fixture
def numbers(desk):
    """Measure and collect a sweep over numbers alone, a point of which fails."""
    spec = "axes: {lr: [0.1, 0.2], depth: [1, 2, two]}\nexclude: [{lr: 0.1, depth: two}]\n"
    return _measured(desk, PROGRAM, f"{spec}run: python one.py {{lr}} {{depth}}\n", code=3)


def test_a_failed_point_is_named_by_all_axes_of_its_command(numbers):
    """One that networks have as well, and one of its own."""
    for command in ("status", "report"):
        assert "exit code 3 (lr 0.2 depth two)" in numbers.run(command, "sweep").stdout
    shown = numbers.run("show", "sweep", "--status", "crashed").stdout
    assert all(words in shown for words in ("0.2", "depth two", "exit code 3")), shown


def test_only_what_a_command_has_is_compared(numbers):
    """It has no network."""
    compared = numbers.run("compare", "sweep:lr=0.1", "sweep:lr=0.2")
    assert compared.returncode == 0, compared.stderr
    assert "\ndepth  " in compared.stdout
    assert "model" not in compared.stdout


def test_any_name_may_be_that_of_an_axis_or_a_result(desk):
    """Readers keep columns of their own apart."""
    script = 'import sys\nprint(\'{"speedup": %s, "low": 2}\' % sys.argv[1])\n'
    spec = "axes: {run: [1, 2], key: [1, 2], all: [1, 2], ratio: [3, 4]}\n"
    _measured(desk, script, f"{spec}run: python one.py {{run}} {{key}} {{all}} {{ratio}}\n")
    axes = ("run", "key", "all", "ratio")
    table = _csv_rows(desk.run("report", "sweep", "--format", "csv").stdout)
    assert len({tuple(row[axis] for axis in axes) for row in table}) == 16
    compared = desk.run("compare", "sweep", "sweep")
    head = compared.stdout.splitlines()[2].split()
    assert head == ["all", "key", "ratio_", "run", "first", "second", "ratio", "verdict"]
    drawn = ("plot", "sweep", "--x", "run", "--by", "all", "--format", "csv", "--y")
    rows = _csv_rows(desk.run(*drawn, "speedup").stdout)
    assert [(row["run"], row["speedup"]) for row in rows[:2]] == [("1", "1.0"), ("2", "2.0")]
    assert {row["low"] for row in _csv_rows(desk.run(*drawn, "low").stdout)} == {"2.0"}
    twice = _csv_rows(desk.run(*drawn, "speedup", "--baseline", "run=1").stdout)
    assert twice
    assert desk.run("report", "sweep", "--html", "page.html").returncode == 0


@pytest.fixture
def versions(desk):
    """Measure and collect a sweep over texts that would be equal as numbers."""
    (desk.folder / "v.py").write_text(
        "import sys, json\nold = sys.argv[1] == '3.1'\n"
        "print(json.dumps({'score': 10 if old else 90, 'old': old, **({'age': 7} if old else {})}))"
    )
    desk.spec(
        'workload: command\naxes: {version: ["3.1", "3.10"], lr: [0.1, 0.2]}\n'
        "run: python v.py {version} {lr}\nresults: {json: last_line}\n"
    )
    assert desk.submit().returncode == 0
    assert desk.run("collect", "sweep", "--parquet").returncode == 0
    return desk


def test_python_sees_what_a_command_said_as_it_was(versions):
    """True and false, whole numbers with a gap, texts of digits."""
    rows = api.load("sweep", results=versions.results).overall
    types = {name: str(rows[name].dtype) for name in ("score", "old", "age", "version", "lr")}
    assert types == {
        "score": "Int64", "old": "boolean", "age": "Int64", "version": "string", "lr": "float64"
    }  # fmt: skip
    assert set(rows[rows["old"]]["version"]) == {"3.1"}
    for where, score in (("old=true", "10"), ("old!=true", "90")):
        shown = versions.run("report", "sweep", "--metric", "score", "--where", where)
        assert (" 10" in shown.stdout, " 90" in shown.stdout) == (score == "10", score == "90")


def test_texts_that_look_like_numbers_stay_apart(versions):
    """Each version is a configuration of its own, in every reader; numbers stay numbers."""
    table = _csv_rows(versions.run("report", "sweep", "--format", "csv").stdout)
    assert sorted((row["version"], row["lr"], float(row["score"])) for row in table) == [
        ("3.1", "0.1", 10), ("3.1", "0.2", 10), ("3.10", "0.1", 90), ("3.10", "0.2", 90),
    ]  # fmt: skip
    drawn = versions.run("plot", "sweep", "--x", "lr", "--y", "score", "--format", "csv").stdout
    assert len(_csv_rows(drawn)) == 4
    some = versions.run("report", "sweep", "--where", "version=3.10", "--format", "csv")
    assert [float(row["score"]) for row in _csv_rows(some.stdout)] == [90, 90]
    joined = versions.run("compare", "sweep", "sweep", "--format", "csv").stdout
    assert {row["version"] for row in _csv_rows(joined)} == {"3.1", "3.10"}
    assert len(_csv_rows(joined)) == 4
    rows = api.load("sweep", results=versions.results).overall
    assert {*rows["version"]} == {"3.1", "3.10"}
    assert pd.api.types.is_float_dtype(rows["lr"])
    (parquet,) = versions.results.rglob("overall.parquet")
    assert {*pd.read_parquet(parquet)["version"]} == {"3.1", "3.10"}
    assert versions.run("report", "sweep", "--html", "page.html").returncode == 0
    assert "3.10" in (versions.folder / "page.html").read_text()
