"""What predictions learn from: tables that `collect` wrote."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest

import knownphysics
from hpcsweep.errors import UsageError
from hpcsweep.forecast import past_rows, training_data
from hpcsweep.store.folders import SweepDir
from layeredsweep import SWEEP, layered


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a collected sweep in which gemm is in doubt."""
    doubtful = {"gemm": {"valid": False, "flags": "shared_cpu"}}
    seeds = SWEEP + "  seed: [0, 1]\n"
    return layered(tmp_path_factory.mktemp("tables"), seeds, changes=doubtful)


def test_equal_points_count_once_with_their_median(run):
    """Seeds change numbers, not work."""
    found = training_data.read_sweeps([run])
    assert len(found.points) == 4  # two sizes, two algorithms
    assert found.points["total_ms"].tolist() == [
        found.layers.loc[found.layers["point_id"] == point, "ms"].sum()
        for point in found.points.index
    ]


def test_doubtful_points_teach_nothing_and_are_counted(run):
    """Their times are not what they say."""
    found = training_data.read_sweeps([run])
    assert found.doubtful == 4
    assert "gemm" not in set(found.layers["algorithm"])


def test_energies_are_read_where_a_table_has_them(tmp_path):
    """Other points have none, which is not zero."""
    found = training_data.read_sweeps([layered(tmp_path, changes={"gemm": {"energy_j": 1.5}})])
    by_algorithm = found.points.groupby("algorithm")["energy_j"]
    assert set(by_algorithm.get_group("gemm")) == {1.5}
    assert found.points.loc[found.points["algorithm"] != "gemm", "energy_j"].isna().all()


def test_controls_of_all_valid_rows_are_read_in_the_order_of_time(tmp_path):
    """Those of points in doubt tell nothing, nor do those of another GPU."""
    cells = {
        "auto": {"control_ms": 2.0, "started_at": "2026-01-01T00:00:02Z"},
        "gemm": {"control_ms": 1.0, "started_at": "2026-01-01T00:00:01Z"},
        "winograd": {"control_ms": 9.0, "valid": False, "flags": "contended"},
    }
    run = layered(tmp_path, SWEEP + "  seed: [0, 1]\n", changes=cells)
    found = training_data.read_sweeps([run])
    assert found.controls_of({"cpu"}) == [1.0] * 4 + [2.0] * 4
    assert found.controls_of({"a100"}) == []
    assert sorted(past_rows.controls(run, "cpu")) == [1.0] * 4 + [2.0] * 4
    assert past_rows.controls(run, "a100") == []


def test_the_same_sweep_twice_is_the_same_sweep(run):
    """Ids of points tell."""
    once, twice = training_data.read_sweeps([run]), training_data.read_sweeps([run, run])
    assert twice.points.index.tolist() == once.points.index.tolist()
    assert len(twice.layers) == len(once.layers)


def test_times_of_layers_that_were_taken_in_different_ways_are_not_mixed(tmp_path):
    """Alone a convolution takes another time; the order of sweeps is no matter."""
    parts = []
    for how in ("true", "unique"):
        (tmp_path / how).mkdir()
        run = layered(tmp_path / how, f"{SWEEP}measure: {{layers: {how}}}\n")
        parts.append(SweepDir(run.path.rename(tmp_path / f"of_{how}")))
    both, turned = (training_data.read_sweeps(order) for order in (parts, parts[::-1]))
    pd.testing.assert_frame_equal(both.layers, turned.layers)
    pd.testing.assert_frame_equal(both.points, turned.points)
    for part in parts:
        once = training_data.read_sweeps([part]).layers
        calls = both.layers[both.layers["point_id"].isin(once["point_id"])]
        assert calls["ms"].tolist() == once["ms"].tolist()
        assert calls["layer"].tolist() == once["layer"].tolist()
    assert training_data.ways(both.points) == ["", ", alone: isolated"]
    assert set(training_data.of_passes(both.points["setting"])) == {knownphysics.DEFAULTS}


def test_axes_that_are_not_modelled_are_the_setting(run):
    """Times with other threads are those of another device."""
    (setting,) = set(training_data.read_sweeps([run]).points["setting"])
    assert "eager" in setting


def test_a_table_that_is_older_than_an_axis_has_its_default():
    """Points that were measured before the axis `launch` existed agree with its default."""
    new = pd.DataFrame({"memory_format": ["nchw"], "launch": ["eager"], "num_threads": [2.0]})
    old = new.drop(columns="launch")
    assert training_data.setting(old).tolist() == training_data.setting(new).tolist()
    assert (
        training_data.setting(new.assign(launch="graph")).tolist()
        != training_data.setting(new).tolist()
    )


def test_a_sweep_without_layers_is_refused(tmp_path):
    """And the message says which setting of a sweep makes them."""
    all_doubtful = {name: {"valid": False} for name in ("auto", "gemm", "winograd")}
    with pytest.raises(UsageError, match="layers: true"):
        training_data.read_sweeps([layered(tmp_path, changes=all_doubtful)])


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("layers", b"\xff\xfegarbage,\n,,\n"),
        ("layers", b"\0" * 100),
        ("layers", b"point_id,median_ms\nabc,x.5\n"),
        ("layers", b"a,b\n1,2\n"),
        ("overall", b"\xff\xfegarbage,\n,,\n"),
        ("overall", b""),
        ("layers", None),
    ],
)
def test_a_damaged_table_is_told_and_no_obstacle_to_what_other_sweeps_teach(tmp_path, name, cells):
    """It was cut off or edited; the last is a folder in its place."""
    run = layered(tmp_path)
    other = SweepDir(run.path.parent / "other")
    shutil.copytree(run.path, other.path)
    path = getattr(other, name)
    path.unlink()
    path.mkdir() if cells is None else path.write_bytes(cells)
    with pytest.raises(UsageError, match="other"):
        training_data.read_sweeps([other])
    found = training_data.read_all(run.path.parent, [run, other])
    assert found.notes[0] == f"learnt from {run.name}"
    assert len(found.points) == len(training_data.read_sweeps([run]).points)


def test_products_under_one_gpu_are_learnt_apart(tmp_path):
    """Points, layers and controls of an L40S in one sweep are not those of an L40 in another."""

    def on(device, size):
        folder = tmp_path / device
        folder.mkdir()
        cells = {"gpu": "l40", "device_name": f"NVIDIA {device}", "control_ms": float(size)}
        cells["started_at"] = "2026-01-01T00:00:00Z"
        names = ("auto", "gemm", "winograd")
        text = SWEEP.replace("[64, 128]", f"[{size}]")
        return layered(folder, text, changes=dict.fromkeys(names, cells))

    found = training_data.read_sweeps([on("L40", 64), on("L40S", 128)])
    assert set(zip(found.points["gpu"], found.points["input_size"], strict=True)) == {
        ("l40", 64),
        ("l40s", 128),
    }
    assert found.layers.groupby("gpu", observed=True)["point_id"].nunique().to_dict() == {
        "l40": 3,
        "l40s": 3,
    }
    assert found.controls_of({"l40s"}) == [128.0] * 3
