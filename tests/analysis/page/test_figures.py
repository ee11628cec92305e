"""What stands where on a page, and the data of its figures."""

from __future__ import annotations

import pandas as pd
import pytest

import manypoints
from hpcsweep.analysis import dataset
from hpcsweep.analysis.page import figures

SMALL = manypoints.SWEEP.replace("num: 50", "num: 3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a sweep of two GPUs, two models, three sizes, five algorithms."""
    return dataset.read_dataset(manypoints.collected(tmp_path_factory.mktemp("frames"), SMALL))


@pytest.fixture(scope="module")
def seen(data):
    """Return which axis is where."""
    return figures.layout(data.rows)


def test_size_is_x_algorithms_have_colours_and_the_rest_is_filtered(seen):
    """A GPU has figures of its own."""
    assert (seen.x, seen.colour) == ("input_size", "algorithm")
    assert seen.filters == ("model",)
    assert seen.gpus == ("h100", "v100")


def test_speed_ups_compare_with_auto_of_the_same_point(data, seen):
    """Above 1 is faster."""
    points = figures.point_table(data.rows, seen)
    assert set(points[points["algorithm"] == "auto"]["speedup"]) == {1.0}
    assert (points[points["algorithm"] == "winograd"]["speedup"] > 1.1).all()
    assert (points[points["algorithm"] == "fft"]["speedup"] < 0.6).all()


def test_kinds_and_slowest_layers_add_up_the_calls_of_a_point(data, seen):
    """The times of a kind are those of its layers."""
    layers = figures.layer_rows(data, data.rows, seen)
    kinds, slowest = figures.layer_times(layers, seen, "op"), figures.slowest_table(layers, seen)
    point = data.rows["point_id"].iloc[0]
    own = layers[layers["point_id"] == point]
    of_kinds = kinds[kinds["point_id"] == point].set_index("op")["ms"]
    assert of_kinds["conv2d"] == pytest.approx(own[own["op"] == "conv2d"]["mean_ms"].sum())
    assert slowest[slowest["point_id"] == point]["ms"].sum() == pytest.approx(own["mean_ms"].sum())


def test_the_map_has_the_fastest_algorithm_of_each_convolution(data, seen):
    """As `best` finds it, with the default's time: of single visits, a few percent are nothing."""
    best = figures.best_table(data, data.rows, seen)
    assert set(best["algorithm"]) == {"auto"}
    assert (best["gain_pct"] >= 0).all()
    assert len(best) == 2 * 2 * 3 * 4  # GPUs, models, sizes, convolutions


def test_thinning_keeps_the_ends_of_x():
    """And spreads the rest evenly."""
    rows = pd.DataFrame({"input_size": sorted([*range(100)] * 5)})
    kept, note = figures.thinned(rows, "input_size", 50)
    assert kept["input_size"].unique().tolist() == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert note == "50 points of 500 are shown, evenly spread over input_size"
    assert figures.thinned(rows, "input_size", 500)[1] == ""


def test_phases_of_training_are_rows(data, seen):
    """One per point and phase that was measured."""
    points = pd.DataFrame({
        "point_id": ["a", "b"], "algorithm": ["auto", "auto"], "input_size": [64, 128],
        "gpu": ["v100", "v100"], "model": ["m", "m"],
        "phase_forward_ms": [1.0, 2.0], "phase_loss_ms": [0.5, None],
    })  # fmt: skip
    found = figures.phase_table(points, seen)
    assert found[["point_id", "phase", "ms"]].to_numpy().tolist() == [
        ["a", "forward", 1.0], ["b", "forward", 2.0], ["a", "loss", 0.5],
    ]  # fmt: skip
