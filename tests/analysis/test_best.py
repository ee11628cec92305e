"""Maps of the fastest algorithms, and what they should gain."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcsweep.analysis import best, best_layers
from hpcsweep.errors import UsageError
from hpcsweep.spec import expansion, sweep_file
from layeredsweep import REPEATED, SWEEP, layered

SINGLE = SWEEP.replace("[64, 128]", "[64]").replace(", gemm, winograd", "")
MAP = {"conv1": "gemm", "conv2": "winograd"}


def test_the_prediction_is_the_default_less_what_the_layers_save(tmp_path):
    """4 ms of 11 at 64 pixels, and an interval that is made of those of the layers."""
    found = best.best_of_sweep(layered(tmp_path, REPEATED))
    row = found.view.frame.iloc[0]
    assert found.maps[row["map"]] == MAP
    assert (row["layers"], row["changed"]) == (3, 2)
    assert row["default_ms"] == pytest.approx(11.0, rel=0.01)
    assert row["predicted_ms"] == pytest.approx(7.0, rel=0.02)
    assert row["gain_pct"] == pytest.approx(100 * 4 / 11, rel=0.02)
    assert 0 < row["gain_pct"] - row["gain_lo_pct"] < 4  # the sums lack what no layer explains
    text = found.view.written("table")
    assert "2 of 3" in text
    assert "layers that change: gemm 2, winograd 2; the others keep auto" in text


def test_layers_that_sum_to_more_than_their_network_save_as_much_less(tmp_path):
    """They are timed one by one; a network that takes less than no time cannot be."""
    found = best.best_of_sweep(
        layered(tmp_path, REPEATED, changes={"auto": {"mean_ms": 2.1, "median_ms": 2.1}})
    )
    row = found.view.frame.iloc[0]  # 64 pixels: 4 ms of 10.5 ms of layers
    assert (row["default_ms"], row["predicted_ms"]) == pytest.approx((2.1, 1.3), rel=0.02)
    assert row["gain_pct"] == pytest.approx(100 * 4 / 10.5, rel=0.02)


def test_a_gain_that_may_be_a_loss_pins_nothing(tmp_path):
    """Its interval is shown all the same, and a line says why there is no map."""
    found = best.best_of_sweep(
        layered(tmp_path, REPEATED, changes={"auto": {"mean_ms": 2.1, "median_ms": 2.1}})
    )
    small, large = found.view.frame.itertuples()
    assert small.gain_lo_pct < 0 < small.gain_hi_pct
    assert found.maps[small.map] == {}
    assert (found.maps[large.map] == {}) is (large.gain_lo_pct <= 0)
    assert "without a map: the interval of what it would gain holds a loss" in found.view.notes[-1]


def test_the_file_is_a_sweep_as_it_is(tmp_path):
    """Each map under its name, beside the default."""
    found = best.best_of_sweep(layered(tmp_path, REPEATED))
    path = tmp_path / "map.yaml"
    path.write_text(found.sweep_file())
    points = list(expansion.expand(sweep_file.load(path), gpu="cpu"))
    assert [point.axes["algorithm"] for point in points] == [
        "auto", {**MAP, "default": "auto"}, "auto", {**MAP, "default": "auto"},
    ]  # fmt: skip
    assert {point.axes["input_size"] for point in points} == {64, 128}
    text = path.read_text()
    assert "  best_resnet18_64_1_float32_cpu: &best_resnet18_64_1_float32_cpu {" in text
    assert text.count("*best_resnet18_64_1_float32_cpu }") == 2  # equal maps have one name


def test_axes_that_are_not_default_are_in_the_file(tmp_path):
    """A map holds for the configuration that was measured, and for no other."""
    text = REPEATED.replace("axes:\n", "axes:\n  tf32: [true]\n  num_threads: [2]\n")
    path = tmp_path / "map.yaml"
    path.write_text(best.best_of_sweep(layered(tmp_path, text)).sweep_file())
    points = list(expansion.expand(sweep_file.load(path), gpu="cpu"))
    assert {(point.axes["tf32"], point.axes["num_threads"]) for point in points} == {(True, 2)}


def test_where_nothing_is_faster_beyond_the_noise_there_is_no_map(tmp_path):
    """The sweep file then measures the default alone."""
    found = best.best_of_sweep(layered(tmp_path, REPEATED, spread=8.0))
    assert set(map(str, found.maps.values())) == {"{}"}
    assert "no layer has an algorithm that beats auto" in found.view.written("table")
    assert "&" not in found.sweep_file()


def test_noise_is_no_reason_to_leave_a_point_out(tmp_path):
    """The intervals know it; a point that ran something else is left out and counted."""
    changes = {
        "gemm": {"valid": False, "flags": "very_noisy"},
        "winograd": {"valid": False, "flags": "algorithm_mismatch"},
    }
    found = best.best_of_sweep(layered(tmp_path, REPEATED, changes=changes))
    assert set(found.maps[found.view.frame["map"][0]].values()) == {"gemm"}
    left_out = "6 unreliable points left out (algorithm_mismatch); --unreliable takes them"
    assert left_out in found.view.notes


FAILED = {"status": "oom", "status_reason": "too large"}
DOUBTED = {"valid": False, "flags": "algorithm_mismatch"}
APART = "exclude: [{input_size: 64, algorithm: {not: auto}}, {input_size: 128, algorithm: auto}]\n"


@pytest.mark.parametrize(
    ("text", "where", "rivals", "why"),
    [
        (REPEATED, "algorithm=auto", {}, "--where leaves out gemm, winograd"),
        (REPEATED, "input_size=64,algorithm=auto", {}, "--where leaves out gemm, winograd"),
        (REPEATED, "", DOUBTED, "gemm, winograd are unreliable; --unreliable takes them"),
        (REPEATED, "", FAILED, "no point with gemm, winograd was measured"),
        (SINGLE, "", {}, "the sweep has no other algorithm"),
        (REPEATED + APART, "", {}, "gemm, winograd ran in no layer that auto ran"),
    ],
)
def test_where_nothing_was_compared_nothing_is_said_of_the_default(
    tmp_path, text, where, rivals, why
):
    """That no other algorithm beats it would be a claim that nobody looked at."""
    run = layered(tmp_path, text, changes={"gemm": rivals, "winograd": rivals})
    with pytest.raises(UsageError, match=f"^demo: no rival to compare with auto: {why}"):
        best.best_of_sweep(run, where=where)


def test_a_configuration_without_a_rival_has_no_gain(tmp_path):
    """Not even one of nothing, in no form of the table."""
    text = f"{REPEATED}exclude: [{{input_size: 128, algorithm: {{not: auto}}}}]\n"
    found = best.best_of_sweep(layered(tmp_path, text))
    small, large = found.view.to_json()["rows"]
    assert small["gain_pct"] > 0
    assert [large[name] for name in ("gain_pct", "gain_lo_pct", "gain_hi_pct")] == [None] * 3
    assert found.view.notes[-1].startswith("1 configuration in which no other algorithm was timed")


def test_a_training_sweep_is_refused(tmp_path):
    """A map is chosen by forward passes, and the sweep that it is written into is of inference."""
    changes = {name: {"workload": "training"} for name in ("auto", "gemm", "winograd")}
    run = layered(tmp_path, REPEATED, changes=changes)
    with pytest.raises(UsageError, match="demo: a training sweep, and best chooses by forward"):
        best.best_of_sweep(run)


def test_a_layer_of_another_product_is_no_choice(tmp_path):
    """An L40S under the same value of `gpu` beats every algorithm of an L40."""
    names = {"auto": "NVIDIA L40", "gemm": "NVIDIA L40", "winograd": "NVIDIA L40S"}
    changes = {name: {"gpu": "l40", "device_name": device} for name, device in names.items()}
    found = best.best_of_sweep(layered(tmp_path, REPEATED, changes=changes))
    assert set(found.view.frame["gpu"]) == {"l40"}
    assert {name for layers in found.maps.values() for name in layers.values()} == {"gemm"}
    assert "2 configurations without layers under the default" in found.view.notes
    assert [*found.view.texts["changed"]] == ["1 of 3", "1 of 3"]


CONFIGURATIONS, LAYERS, RIVALS = 60, 8, 3
NOISES = {  # by the number of visits
    "normal": (3, lambda draw, shape: draw.normal(0, 0.03, shape)),
    "heavy tails": (5, lambda draw, shape: 0.01 * draw.standard_t(2, shape)),
    "two layers ten times noisier": (
        3,
        lambda draw, shape: (
            draw.normal(0, 0.01, shape) * np.where(np.arange(LAYERS) < 2, 10, 1)[:, None, None]
        ),
    ),
    "a visit slows all layers": (
        3,
        lambda draw, shape: (
            draw.normal(0, 0.02, shape) + draw.normal(0, 0.05, (CONFIGURATIONS, 1, 1, shape[-1]))
        ),
    ),
}


def held_by(visits, noise):
    """Return which intervals hold what their maps truly save; rivals differ by some 5 %."""
    draw = np.random.default_rng(3)
    shape = (CONFIGURATIONS, LAYERS, RIVALS + 1, visits)
    saved = draw.normal(0, 0.05, shape[:-1])
    saved[..., 0] = 0.0
    logs = noise(draw, shape) - saved[..., None]
    names = ["config", "call_index", "algorithm", "visit"]
    index = pd.MultiIndex.from_product([range(size) for size in shape], names=names)
    times = index.to_frame(index=False).assign(
        log=logs.ravel(), ms=np.exp(logs.ravel()), within=0.0, layer="", unique_key=""
    )
    chosen = best_layers.choose(times, 0)
    none = pd.Series(dtype=float)
    found = best_layers.predicted(chosen, none, none, none)
    calls = chosen.calls
    of_choice = saved[calls["config"], calls["call_index"], calls["algorithm"].astype(int)]
    truth = 100 * pd.Series(1 - np.exp(-of_choice)).groupby(calls["config"]).mean()
    held = truth.between(found["gain_lo_pct"] - 1e-9, found["gain_hi_pct"] + 1e-9)
    return held[found["changed"] > 0]


def test_the_interval_holds_what_the_map_saves():
    """Whatever lies between visits, and though luck chooses among rivals: in 92 % at least."""
    shares = {name: held_by(*noise).mean() for name, noise in NOISES.items()}
    assert np.mean([*shares.values()]) >= 0.92, shares
    assert min(shares.values()) >= 0.87, shares  # give or take what 60 draws tell
