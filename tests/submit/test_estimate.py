"""How long points will take, before and after there are rows."""

from __future__ import annotations

import json

import pytest

import resultsfolder
from hpcsweep import catalog
from hpcsweep.spec import profile, sweep_file
from hpcsweep.submit import cost, estimate, request
from hpcsweep.submit.estimate import modelled
from localruns import Desk

AXES = {
    **catalog.axis_defaults("training"),
    "model": "resnet18",
    "gpu": "v100",
    "batch_size": 128,
    "input_size": 32,
    "steps_per_epoch": 100,
}
BARE = {"warmup": 0, "iterations": 0, "layers": False, "validation": False}


def _seconds(measure=BARE, **axes):
    return modelled("training", AXES | axes, measure)


def test_a_training_lasts_epochs_times_steps():
    """Beyond what every point costs, it is proportional to both."""
    once = _seconds() - 0.5
    assert _seconds(epochs=7) - 0.5 == pytest.approx(7 * once)
    assert _seconds(steps_per_epoch=300) - 0.5 == pytest.approx(3 * once)


def test_an_epoch_without_a_number_of_steps_is_the_data_set():
    """50,000 images of CIFAR-10 are 390 full batches of 128; synthetic data has 20 batches."""
    assert _seconds(steps_per_epoch=None, dataset="cifar10") == _seconds(steps_per_epoch=390)
    assert _seconds(steps_per_epoch=None) == _seconds(steps_per_epoch=20)


def test_a_step_is_three_forward_passes_and_validation_is_one_of_fewer_images():
    """Of a fifth of the images, before training and after each epoch."""
    forward = modelled("inference", AXES, {"warmup": 0, "iterations": 1, "layers": False}) - 0.5
    one = forward / 5  # one pass and four of evidence, numerics and shapes
    assert _seconds(steps_per_epoch=1) - 0.5 == pytest.approx(3 * one)
    validated = _seconds({**BARE, "validation": True}) - _seconds()
    assert validated == pytest.approx(2 * 20 * one)


def test_a_small_stem_keeps_all_pixels():
    """Sixteen times the work."""
    assert _seconds(stem="cifar") > 4 * _seconds()


def test_the_rows_of_a_training_correct_the_model():
    """Held against the steps that were taken, whatever the sweep file said."""
    taken = {**AXES, "workload": "training", "epochs": "2", "steps_per_epoch": ""}
    row = {
        **taken, "wall_s": "", "warmup_n": "0", "layer_rows": "0", "steps": "200",
        "phase_steps": "0", "val_loss_after": "",
    }  # fmt: skip
    row["wall_s"] = str(3 * _seconds(epochs=2))
    assert estimate._ratio(row) == pytest.approx(3)


def test_rows_of_a_noop_correct_nothing(tmp_path):
    """It lasts as long as the sweep says, however many rows there are already."""
    desk = Desk(tmp_path)
    desk.spec(
        "workload: noop\naxes: {model: [a], input_size: [1, 2, 3, 4]}\nmeasure: {sleep_ms: 300}\n"
    )
    assert desk.run("submit", "sweep.yaml", "--cluster", "local", "--sample", "1").returncode == 0
    (told,) = json.loads(desk.run_process("estimate", "sweep.yaml", "--json").stdout)["estimates"]
    assert told["points"] == 3
    assert sum(told["gpu_hours"].values()) * 3600 == pytest.approx(0.9, abs=0.1)


def test_an_estimate_says_what_it_rests_on(tmp_path):
    """First on the catalogue alone, then on rows of the same model and algorithm."""
    folder = resultsfolder.make(tmp_path)
    asked = request.make(sweep_file.load(tmp_path / "demo.yaml"), profile.load("local"))
    assert "rough estimate: no measurements" in cost.of(tmp_path / "results", asked).text()
    submission = folder.submit("20260101-000000-local")
    cells = {"wall_s": 1.0, "warmup_n": 10, "n": 20, "layer_rows": 2}
    folder.measure(folder.shard(submission.id), list(asked.points())[:1], **cells)
    told = cost.of(tmp_path / "results", asked).text()
    assert "7 points in 1 chunk, 1 measured already" in told
    assert "43 % of the points estimated from measurements of the same model" in told
