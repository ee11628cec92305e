"""The points of a sweep, predicted: what they rest on, and what the tables say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import knownphysics
import resultsfolder
from hpcsweep.errors import UsageError
from hpcsweep.forecast import (
    Basis,
    check,
    intervals,
    layer_calls,
    prediction,
    training_data,
    unmeasured,
)
from knownphysics import NAMED, TEXT


def measured(**changes):
    """Return what was measured of a network that is called resnet18, with the default setting."""
    return knownphysics.with_defaults(knownphysics.measured(networks=NAMED, **changes))


def points(tmp_path, text=TEXT, gpu="cpu"):
    """Return the points of a sweep file."""
    return resultsfolder.points_of(tmp_path, text, gpu)


def test_what_a_point_rests_on(tmp_path):
    """The same network, others, other algorithms, other settings, another GPU."""
    seen = measured(sizes=(32, 64))

    def basis(text=TEXT, gpu="cpu", device="cpu"):
        known = seen if device == "cpu" else measured(device=knownphysics.Device(name=device))
        table = prediction.as_table(points(tmp_path, text, gpu))
        return set(prediction.with_bases(table, known)["basis"])

    assert basis() == {Basis.SIZES}
    assert basis(TEXT.replace("48", "128")) == {Basis.SIZES, Basis.NETWORKS}
    assert basis(TEXT.replace("resnet18", "alexnet").replace("32, 48", "64")) == {Basis.NETWORKS}
    assert basis(TEXT.replace("auto", "winograd")) == {Basis.ALGORITHMS}
    assert basis(TEXT + "  num_threads: [3]\n") == {Basis.SETTINGS}
    assert basis(gpu="a100", device="v100") == {Basis.GPUS}


def test_shapes_of_a_size_that_nobody_measured_come_from_a_shape_pass(tmp_path):
    """Here of the real ResNet-18, of which another size was measured."""
    found = prediction.predict("demo", points(tmp_path), measured(sizes=(32, 64)), fill=False)
    calls = found.layers.groupby("point_id").size()
    assert sorted(calls) == [12, 60]  # what was measured; ResNet-18 itself
    assert (found.layers["median_ms"] > 0).all()


def passes(tmp_path, sizes, way=""):
    """Return passes of the real ResNet-18: all its calls, or convolutions alone."""
    spec = points(tmp_path, TEXT.replace("32, 48", ", ".join(map(str, sizes))))
    table = prediction.as_table(spec)
    table["setting"] += way
    rows = layer_calls.of_points(spec, table, measured(sizes=(8,)))
    rows["ms"] = 0.02 + rows["bytes_min"] * 1e-7 + rows["flops"] * 1e-8
    rows["algorithm_used"] = rows["algorithm"].where(rows["op"] == "conv2d")
    sums = rows.groupby("point_id")["ms"].sum()
    told = table.assign(total_ms=sums + 1.0, source="demo", energy_j=np.nan)
    return training_data.Measured(told, training_data.with_times(rows))


def test_convolutions_alone_tell_networks_of_other_sizes(tmp_path):
    """What a pass takes beside them is known from their networks; no other call has a time."""
    alone = passes(tmp_path, (48, 64, 96, 128), ", alone: isolated")
    true = passes(tmp_path, (80,)).points["total_ms"].item()
    asked = points(tmp_path, TEXT.replace("32, 48", "80"))
    found = prediction.predict("demo", asked, alone, fill=False)
    assert found.rows[0]["basis"] == "sizes"
    assert found.rows[0]["median_ms"] == pytest.approx(true, rel=0.05)
    assert {*found.layers["op"]} == {"conv2d"}
    left = check.leave_out(alone, "size")
    errors = (left.points["prediction"] / left.points["total_ms"] - 1).abs()
    assert errors.max() < 0.1


def test_a_point_is_told_by_the_way_of_timing_that_knows_most_of_it(tmp_path):
    """With `fill` a pass that was measured counts, whichever way its layers were timed."""
    whole, alone = passes(tmp_path, (64,)), passes(tmp_path, (48, 96), ", alone: isolated")
    both = dataclasses.replace(
        whole,
        points=pd.concat([whole.points, alone.points]),
        layers=pd.concat([whole.layers, alone.layers], ignore_index=True),
    )
    asked = points(tmp_path, TEXT.replace("32, 48", "64, 80, 96, 160"))
    settings = prediction.with_bases(prediction.as_table(asked), both)["setting"]
    assert [setting.endswith(", alone: isolated") for setting in settings] == [
        False,
        True,
        True,
        False,
    ]
    rows = prediction.predict("demo", asked, both, fill=True).rows
    assert [row["status"] for row in rows] == ["ok", "predicted", "ok", "predicted"]


def test_a_prediction_names_the_sweeps_that_it_was_learnt_from(tmp_path):
    """In the rows of points and of layers."""
    seen = dataclasses.replace(measured(sizes=(32, 64)), sources=("one", "other"))
    found = prediction.predict("demo", points(tmp_path), seen, fill=False)
    assert {row["source"] for row in found.rows} == {*found.layers["source"]} == {"one, other"}


def test_times_lie_in_their_intervals_and_say_what_they_are(tmp_path):
    """The columns are those of the tables, and these four."""
    seen = measured(sizes=(32, 64), device=knownphysics.Device(noise=0.15))
    found = prediction.predict("demo", points(tmp_path), seen, fill=False)
    overall, layers = map(pd.read_csv, found.write(tmp_path))
    for table in (overall, layers):
        assert (table["predicted_lo_ms"] < table["median_ms"]).all()
        assert (table["median_ms"] < table["predicted_hi_ms"]).all()
        assert set(table["status"]) == {"predicted"}
        assert set(table["source"]) == {"predicted"}
        assert set(table["basis"]) == {"sizes"}
    assert set(overall["input_size"]) == {32, 48}


@pytest.mark.parametrize("networks", [2, 5])
def test_the_text_says_how_many_networks_an_interval_counts(tmp_path, networks):
    """Of fewer than five it is a guess; the table and the record say how many."""
    some = dict([*knownphysics.NETWORKS.items()][:networks])
    left = check.leave_out(knownphysics.measured(networks=some, sizes=(32, 64)), "network")
    width = intervals.calibrate(left)
    rows = [unmeasured.row(p, Basis.NETWORKS, 1.0, width, "demo") for p in points(tmp_path)]
    found = unmeasured.Predicted("demo", rows, pd.DataFrame(), {Basis.NETWORKS: width})
    told = "a guess: from 2 networks)" if networks == 2 else ", from 5 networks)"
    assert told in found.text()
    assert ("a guess" in found.text()) == (networks == 2)
    assert found.to_json()["interval_from"] == {"networks": networks}
    assert {row["interval_from"] for row in found.rows} == {networks}


def test_another_state_of_the_machine_widens_all_intervals(tmp_path):
    """By as much as the controls of this sweep differ from those of what was learnt."""
    controls = pd.DataFrame(
        {"gpu": "cpu", "started_at": "2026-01-01T00:00:00Z", "control_ms": [1.0] * 9}
    )
    seen = dataclasses.replace(measured(sizes=(32, 64)), controls=controls)
    same, other = (
        prediction.predict("demo", points(tmp_path), seen, fill=False, controls=[ms] * 3)
        for ms in (1.0, 1.25)
    )
    for before, after in zip(same.rows, other.rows, strict=True):
        assert after["median_ms"] == before["median_ms"]
        assert after["predicted_hi_ms"] == pytest.approx(1.25 * before["predicted_hi_ms"])
        assert after["predicted_lo_ms"] == pytest.approx(before["predicted_lo_ms"] / 1.25)
    calls = [one.layers["predicted_hi_ms"].to_numpy() for one in (same, other)]
    assert calls[1] == pytest.approx(1.25 * calls[0])
    assert "wider by 25 %, since the controls show another state" in other.text()
    assert "wider" not in same.text()


def test_measured_times_stay_only_if_they_are_asked_for(tmp_path):
    """`fill` keeps them, and says from which sweep they are."""
    seen = measured(sizes=(32, 64))
    found = prediction.predict("demo", points(tmp_path), seen, fill=True)
    rows = {row["input_size"]: row for row in found.rows}
    assert (rows[32]["status"], rows[32]["source"], rows[32]["basis"]) == ("ok", "demo", "measured")
    true = seen.points.query("model == 'resnet18' and input_size == 32 and algorithm == 'auto'")
    assert rows[32]["median_ms"] == true["total_ms"].item()
    assert rows[48]["status"] == "predicted"
    assert set(found.layers["input_size"]) == {48}


def test_another_gpu_takes_times_by_its_peaks(tmp_path):
    """Every rate of an H100 is above that of a V100; an interval there is a guess, and wide."""
    seen = measured(device=knownphysics.Device(call=0.0001, name="v100"))
    told = [
        prediction.predict("demo", points(tmp_path, gpu=gpu), seen, fill=False)
        for gpu in ("v100", "h100")
    ]
    old, new = (sum(row["median_ms"] for row in one.rows) for one in told)
    assert new < old
    assert "a factor of 4.00, a guess: from nothing" in told[1].text()
    row = told[1].rows[0]
    assert row["predicted_hi_ms"] == pytest.approx(16 * row["predicted_lo_ms"])


def test_the_interval_on_another_gpu_comes_from_gpus_that_were_left_out(tmp_path):
    """Here of two, which is a guess that says so."""
    slow, fast = (
        measured(device=knownphysics.Device(name=name, call=call))
        for name, call in (("v100", 0.0001), ("a100", 0.00008))
    )
    others = fast.points.rename(index=lambda name: f"a100 {name}")
    calls = fast.layers.assign(point_id="a100 " + fast.layers["point_id"])
    both = dataclasses.replace(
        slow,
        points=pd.concat([slow.points, others]),
        layers=pd.concat([slow.layers, calls], ignore_index=True),
    )
    found = prediction.predict("demo", points(tmp_path, gpu="h100"), both, fill=False)
    assert found.widths[Basis.GPUS].parts == 2
    assert "a guess: from 2 gpus" in found.text()


@pytest.mark.parametrize(
    ("gpu", "text", "why"),
    [
        ("a100", TEXT, "nothing was measured on a100"),
        ("cpu", TEXT.replace("[auto]", "[{default: gemm}]"), "a map of algorithms"),
        ("cpu", "name: demo\nworkload: noop\naxes: {model: [a]}\n", "only inference"),
    ],
)
def test_what_cannot_be_predicted_is_refused(tmp_path, gpu, text, why):
    """With the reason."""
    with pytest.raises(UsageError, match=why):
        prediction.predict("demo", points(tmp_path, text, gpu), measured(), fill=False)
