"""How many passes a point makes, and how long one should take."""

from __future__ import annotations

import pytest

from hpcsweep import catalog
from hpcsweep.forecast import passes

AXES = {
    **catalog.axis_defaults("training"),
    "model": "resnet18",
    "gpu": "v100",
    "batch_size": 128,
    "input_size": 32,
    "steps_per_epoch": 100,
}
BARE = {"warmup": 0, "iterations": 0, "layers": False, "validation": False}


def by_table(axes):
    """Return the seconds of a pass by the table of peaks."""
    return passes.table(axes)(passes.work(axes))


def training(measure=BARE, **axes):
    """Return the passes of a training."""
    return passes.of_point("training", AXES | axes, measure)


def test_a_training_makes_epochs_times_steps_of_three_passes():
    """Forward, and twice as much backward."""
    assert training() == 300
    assert training(epochs=7) == 2100
    assert training(steps_per_epoch=300) == 900


def test_a_profiler_of_the_whole_training_is_a_training_more():
    """For each of the profilers; a few profiled steps do not count."""
    assert training({**BARE, "profile": ["cprofile"], "profile_passes": 0}, epochs=7) == 2 * 2100
    assert training({**BARE, "profile": ["cprofile"], "profile_passes": 3}) == 300


def test_an_epoch_without_a_number_of_steps_is_the_data_set():
    """50,000 images of CIFAR-10 are 390 full batches of 128; synthetic data has 20 batches."""
    assert training(steps_per_epoch=None, dataset="cifar10") == training(steps_per_epoch=390)
    assert training(steps_per_epoch=None) == training(steps_per_epoch=20)


def test_validation_is_a_pass_of_a_fifth_of_the_images():
    """Before training, and after each epoch."""
    assert training({**BARE, "validation": True}) == 300 + 2 * 20


def test_the_row_of_a_point_tells_as_many_passes_as_its_settings():
    """So what was measured says what is to be measured."""
    measure = {"warmup": 5, "iterations": 20}
    row = {"warmup_n": "5", "n": "20", "mean_ms": "2", "layer_pass_mean_ms": "3", "layer_rows": "9"}
    assert passes.of_row("inference", row) == 5 + 20 + 30
    assert passes.of_point("inference", {}, measure, layer_factor=1.5) == 5 + 20 + 30
    trained = {
        "warmup_n": "5", "epochs": "2", "steps": "200", "phase_steps": "20", "layer_rows": "9",
        "val_loss_after": "0.5",
    }  # fmt: skip
    assert passes.of_row("training", trained) == training(measure, epochs=2)


def test_a_layer_pass_of_several_parts_is_as_many_passes():
    """Each part times some of the layers."""
    row = {"warmup_n": "", "n": "10", "mean_ms": "2", "layer_pass_mean_ms": "2"}
    assert passes.of_row("inference", row | {"layer_pass_parts": "3"}) == 10 + 30


def test_adaptive_points_take_as_many_passes_as_others_did():
    """Three times the fewest, where nothing is known."""
    measure = {"warmup": 0, "layers": False, "stop": "adaptive", "min_iterations": 30}
    assert passes.of_point("inference", {}, measure) == 90
    assert passes.of_point("inference", {}, measure, adaptive=42) == 42


def test_a_small_stem_keeps_all_pixels():
    """Sixteen times the work."""
    assert by_table({**AXES, "stem": "cifar"}) > 4 * by_table(AXES)


def test_a_table_says_how_long_a_pass_takes():
    """More on a CPU than on a GPU, more by a reference algorithm, in proportion to the images."""
    one = {"model": "resnet50", "gpu": "cpu", "algorithm": "auto", "batch_size": "64"}
    slow = by_table(one)
    assert by_table({**one, "gpu": "h100"}) < slow < by_table({**one, "algorithm": "fft"})
    assert by_table({**one, "input_size": "448"}) == pytest.approx(4 * slow, rel=0.01)
