"""How many passes a point makes, and how long one should take."""

from __future__ import annotations

import pytest

from hpcsweep import catalog
from hpcsweep.submit import passes
from hpcsweep.submit.passes import Peaks

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
    return Peaks("inference", axes["gpu"]).pass_s(axes)


def training(measure=BARE, **axes):
    """Return the steps of a training."""
    return passes.planned("training", AXES | axes, measure)


def test_a_training_makes_epochs_times_steps():
    """Each as long as four forward passes: forward, twice as much backward, and the update."""
    assert training() == 100
    assert training(epochs=7) == 700
    assert training(steps_per_epoch=300) == 300
    one = {**AXES, "gpu": "cpu", "input_size": 224}
    assert Peaks("training", "cpu").pass_s(one) == pytest.approx(4 * by_table(one))


def test_a_profiler_of_the_whole_training_is_a_training_more():
    """For each of the profilers; a few profiled steps do not count."""
    assert training({**BARE, "profile": ["cprofile"], "profile_passes": 0}, epochs=7) == 2 * 700
    assert training({**BARE, "profile": ["cprofile"], "profile_passes": 3}) == 100


def test_an_epoch_without_a_number_of_steps_is_the_data_set():
    """50,000 images of CIFAR-10 are 390 full batches of 128; synthetic data has 20 batches."""
    assert training(steps_per_epoch=None, dataset="cifar10") == training(steps_per_epoch=390)
    assert training(steps_per_epoch=None) == training(steps_per_epoch=20)


def test_validation_is_a_forward_pass_of_a_fifth_of_the_images():
    """Before training, and after each epoch."""
    assert training({**BARE, "validation": True}) == pytest.approx(100 + 2 * 20 / 4)


def test_the_row_of_a_point_tells_as_many_passes_as_its_settings():
    """So what was measured says what is to be measured."""
    measure = {"warmup": 5, "iterations": 20}
    row = {"warmup_n": "5", "n": "20", "layer_rows": "9"}
    assert passes.made("inference", row) == passes.planned("inference", {}, measure) == 45
    trained = {
        "warmup_n": "5", "epochs": "2", "steps": "200", "phase_steps": "20", "layer_rows": "9",
        "val_loss_after": "0.5",
    }  # fmt: skip
    assert passes.made("training", trained) == training(measure, epochs=2)


def test_adaptive_points_take_as_many_passes_as_others_did():
    """Three times the fewest, where nothing is known."""
    measure = {"warmup": 0, "layers": False, "stop": "adaptive", "min_iterations": 30}
    assert passes.planned("inference", {}, measure) == 90
    assert passes.planned("inference", {}, measure, adaptive=42) == 42


def test_a_small_stem_keeps_all_pixels():
    """Sixteen times the work."""
    assert by_table({**AXES, "stem": "cifar"}) > 4 * by_table(AXES)


def test_a_table_says_how_long_a_pass_takes():
    """More on a CPU than on a GPU, more by a reference algorithm, in proportion to the images."""
    one = {"model": "resnet50", "gpu": "cpu", "algorithm": "auto", "batch_size": "64"}
    slow = by_table(one)
    assert by_table({**one, "gpu": "h100"}) < slow < by_table({**one, "algorithm": "fft"})
    assert by_table({**one, "input_size": "448"}) == pytest.approx(4 * slow, rel=0.01)
    # not only those of shipped profiles have a peak
    known = {gpu: Peaks("inference", gpu).is_known for gpu in ("t4", "p100-pcie", "banana")}
    assert known == {"t4": True, "p100-pcie": True, "banana": False}
