"""What other programs measured teaches, too: `predict` without a word of what to learn from."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pandas as pd
import pytest

import knownphysics
from hpcsweep.forecast import model, training_data

if TYPE_CHECKING:
    from localruns import Desk

PROFILE = "extends: local\ngpu: gfx1030_36\n"
SWEEP = """\
workload: inference
axes: {model: [resnet18], input_size: [32, 64], algorithm: [gemm]}
"""


def lines():
    """Yield problems of MIOpen's find-db: some take a picosecond for each multiplication."""
    for channels in (16, 64, 128, 256, 512):
        for filters in (64, 128, 256, 512):
            for side in (2, 4, 8, 16):
                work = channels * filters * side * side * 9
                key = f"{channels}-{side}-{side}-3x3-{filters}-{side}-{side}-1-1x1-1x1-1x1-0-NCHW"
                ms = 0.002 + work * 1e-9
                yield f"{key}-FP32-F=GemmFwdRest:{ms:.6f},0,miopenConvolutionFwdAlgoGEMM"


def test_a_find_db_is_all_that_is_known_of_a_gpu(desk: Desk):
    """The answer says so; a sweep that teaches nothing is no obstacle."""
    desk.spec("workload: noop\naxes: {model: [a], input_size: [1, 2]}\n", "other.yaml")
    assert desk.run("submit", "other.yaml", "--cluster", "local").returncode == 0
    (desk.folder / "gfx1030_36.HIP.fdb.txt").write_text("\n".join(lines()))
    assert desk.run("import", "gfx1030_36.HIP.fdb.txt").returncode == 0
    desk.spec(PROFILE, "rx.yaml")
    desk.spec(SWEEP)
    told = desk.run("predict", "sweep.yaml", "--cluster", "rx.yaml", "--json")
    assert told.returncode == 0, told.stderr
    assert "learnt from gfx1030_36" in told.stderr
    small, large = json.loads(told.stdout)["rows"]
    assert small["basis"] == large["basis"] == "foreign"
    assert 0.05 < small["median_ms"] < large["median_ms"] < 100
    assert large["predicted_hi_ms"] / large["predicted_lo_ms"] == pytest.approx(16)
    told = desk.run("predict", "sweep.yaml", "--cluster", "rx.yaml")
    assert "from nothing; one network measured there corrects it, 5 bound it)" in told.stdout


def test_a_gpu_that_the_sweep_names_is_answered_for_itself(desk: Desk):
    """Without a profile for it the answer is not about this machine's CPU; each can be left out."""
    for name, factor in (("gfx1030_36", 1.0), ("gfx906_60", 2.0)):
        text = "\n".join(line for line in lines() if factor == 1.0 or "-512-" not in line)
        (desk.folder / f"{name}.HIP.fdb.txt").write_text(text)
        assert desk.run("import", f"{name}.HIP.fdb.txt").returncode == 0
    desk.spec(SWEEP.replace("axes: {", "axes: {gpu: [mi100], "))
    told = desk.run("predict", "sweep.yaml", "--json")
    assert told.returncode == 0, told.stderr
    assert {(row["gpu"], row["basis"]) for row in json.loads(told.stdout)["rows"]} == {
        ("mi100", "gpus")
    }
    checked = desk.run(
        "predict", "--check", "gfx1030_36", "gfx906_60", "--leave", "gpu=all", "--out", "out.csv",
        "--json",
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    record = json.loads(checked.stdout)
    assert record["doubtful_left_out"] == 0
    (part,) = record["checks"]
    assert {of["name"] for of in part["parts"]} == {"gfx1030_36", "gfx906_60"}
    rows = pd.read_csv(desk.folder / "out.csv")
    assert len(rows) == record["foreign_convolutions"] == 80 + len(text.splitlines())
    assert set(rows["part"]) == set(rows["gpu"])
    assert (rows["prediction"] > 0).all()
    wrong = desk.run("predict", "--check", "gfx1030_36", "--leave", "gpu=v99")
    assert wrong.returncode == 2
    assert "gpu=v99: not among what was measured: gfx1030_36" in wrong.stderr
    column = desk.run("predict", "--check", "gfx1030_36", "--leave", "gpus=all")
    assert "--leave takes COLUMN=VALUE" in column.stderr


def test_nothing_to_learn_from_is_told(desk: Desk):
    """With what a sweep would need."""
    desk.spec("workload: noop\naxes: {model: [a], input_size: [1, 2]}\n", "other.yaml")
    assert desk.run("submit", "other.yaml", "--cluster", "local").returncode == 0
    desk.spec(SWEEP)
    told = desk.run("predict", "sweep.yaml")
    assert told.returncode == 2
    assert "no sweep to learn from: none has inference points with layer rows" in told.stderr


def test_others_times_do_not_stand_for_ones_own():
    """Times of kernels alone are a tenth of those measured here: on the same GPU, by two ways."""
    own = knownphysics.measured(networks=knownphysics.NAMED)
    theirs = own.layers[own.layers["op"] == "conv2d"].assign(ms=lambda table: table["ms"] / 10)
    foreign = training_data._beside({"cpu"}, theirs)
    assert set(foreign["gpu"]) == {"cpu, foreign"}
    both = dataclasses.replace(own, foreign=foreign)
    asked = own.calls
    said = [model.fit(one).times(asked)["ms"] for one in (own, both)]
    pd.testing.assert_series_equal(*said)
