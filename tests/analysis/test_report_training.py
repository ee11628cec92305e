"""The table of a training sweep."""

from __future__ import annotations

import csv
import json

from analysistables import record_of, table_of
from hpcsweep.analysis import report
from hpcsweep.store.rundir import RunDir


def _table(folder, *rows):
    run = RunDir(folder / "s")
    run.path.mkdir(exist_ok=True)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with run.overall.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return run


def _row(**more):
    base = {
        "point_id": "", "model": "resnet18", "algorithm": "auto", "batch_size": 32,
        "input_size": 32,
        "status": "ok", "workload": "training", "orphan": "false", "amp": "off", "flags": "",
        "median_ms": 10.0, "throughput_sps": 3200.0, "phase_forward_ms": 3.0,
        "phase_backward_ms": 6.0, "val_accuracy_before": 0.1, "val_accuracy_after": 0.55,
        "epochs_train_loss": "[2.3,1.9]", "params": 11181642, "train_s": 3.0, "epoch_s": 1.5,
    }  # fmt: skip
    return {**base, **more}


def test_a_configuration_is_a_row_with_throughput_and_phases(tmp_path):
    """Named by the axes that differ; what is unknown is a dash."""
    run = _table(tmp_path, _row(), _row(amp="bf16", median_ms=5.0, flags="very_noisy"))
    lines = table_of(report.read(run)).splitlines()
    assert lines[0] == "s: training, ms of a step (2 ok)"
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
        json.dumps(record_of(report.read(_table(tmp_path, _row(mem_peak_bytes="")))))
    )
    (row,) = record["rows"]
    assert row["throughput_sps"] == 3200.0
    assert row["mem_peak_bytes"] is None
    assert not row["doubtful"]


def test_what_an_algorithm_did_not_do_is_said(tmp_path):
    """Of each row; where every algorithm did everything, there is no such column."""
    partial = _row(algorithm="winograd", algorithm_coverage_pct=81.5)
    text = table_of(report.read(_table(tmp_path, _row(algorithm_coverage_pct=100), partial)))
    shown = [line.split("  ") for line in text.splitlines()[2:5]]
    column = [[cell.strip() for cell in line if cell.strip()] for line in shown]
    place = column[0].index("covered")
    assert [line[place] for line in column] == ["covered", "100 %", "82 %"]
    assert "   covered: share of the convolution FLOPs that ran the algorithm" in text
    assert "covered" not in table_of(
        report.read(_table(tmp_path, _row(algorithm_coverage_pct=100)))
    )


def test_the_headline_of_training_counts_what_is_not_valid(tmp_path):
    """As that of inference."""
    rows = (_row(valid="false", flags="very_noisy"), _row(amp="bf16", valid="true"))
    text = table_of(report.read(_table(tmp_path, *rows)))
    assert "(2 ok, 1 of them not valid: very_noisy 1)" in text
