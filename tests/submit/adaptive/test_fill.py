"""The whole sweep at the end, with layers and without."""

from __future__ import annotations

import pandas as pd
import pytest

import knownphysics
import resultsfolder
import sizes
from hpcsweep.forecast import Basis, groups, intervals
from hpcsweep.submit.adaptive import fill
from hpcsweep.submit.adaptive.judge import judge

INFERENCE = {"workload": "inference"}
TEXT = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  input_size: [32, 40, 48, 56, 64, 80]
"""


def filled(left_out, failed=(), rounds=()):
    """Return the filled rows of six sizes, by size, where some have no time."""
    (group,) = groups.groups_of(sizes.points([32, 48, 64, 96, 128, 256]))
    ms = {p.point_id: sizes.smooth(p) for p in group.points}
    known = sizes.known({name: ms[name] for name in ms if name not in left_out}, failed)
    rows = fill.filled("demo", [judge(group, known, rounds)], known).rows
    return {row["input_size"]: row for row in rows}


def test_points_between_measured_ones_are_predicted_and_failed_ones_left_out():
    """In the order of the sweep."""
    rows = filled({"auto-64-1", "auto-96-1"}, failed={"auto-64-1"})
    assert list(rows) == [32, 48, 96, 128, 256]
    assert (rows[96]["status"], rows[96]["basis"]) == ("predicted", "lines")
    assert rows[96]["median_ms"] == pytest.approx(sizes.smooth(sizes.points([96])[0]), rel=0.2)
    assert (rows[32]["status"], rows[32]["source"]) == ("ok", "demo")


def test_beyond_what_was_measured_the_interval_is_a_wide_guess():
    """The largest size has no time, and did not fail."""
    four = [["auto-48-1", "auto-64-1", "auto-96-1", "auto-128-1"]]
    rows = filled({"auto-256-1", "auto-96-1"}, rounds=four)
    for size, factor in ((256, intervals.UNKNOWN), (96, None)):
        row = rows[size]
        found = row["predicted_hi_ms"] / row["median_ms"]
        assert found == pytest.approx(factor or found)
        assert row["predicted_lo_ms"] * found == pytest.approx(row["median_ms"])


def test_layers_predict_where_they_were_better(tmp_path):
    """Of a network whose layers were measured at some sizes; the layers are predicted, too."""
    points = resultsfolder.points_of(tmp_path, TEXT, "cpu")
    networks = {"resnet18": (8, 16, 32, 64)}
    seen = knownphysics.measured(networks=networks, sizes=(32, 48, 64, 80))
    by_size = seen.points.query("algorithm == 'auto'")["input_size"]
    ids = {p.axes["input_size"]: p.point_id for p in points}
    chosen = seen.of(seen.points.loc[by_size.index])
    named = {old: ids[size] for old, size in by_size.items()}
    layers = fill.Layers(
        type(seen)(
            chosen.points.rename(index=named).assign(setting=knownphysics.DEFAULTS),
            chosen.layers.assign(
                point_id=chosen.layers["point_id"].map(named), setting=knownphysics.DEFAULTS
            ),
        )
    )
    ms = layers.measured.points["total_ms"].to_dict()
    said = layers([ids[32], ids[80]], [ids[48], ids[64]])
    assert said.keys() == {ids[48], ids[64]}
    assert all(said[name] == pytest.approx(ms[name], rel=0.3) for name in said)
    assert layers([], [ids[48]]) == {}

    (group,) = groups.groups_of(points)
    known = sizes.known(ms)
    judged = judge(group, known, [[ids[32], ids[80]], [ids[48], ids[64]]], layers)
    assert {Basis.LINES, Basis.SIZES} == set(judged.rounds[0].said)
    found = fill.filled("demo", [judged], known, layers)
    rows = pd.DataFrame(found.rows).set_index("input_size")
    assert list(rows.index) == [32, 40, 48, 56, 64, 80]
    assert set(rows.loc[[40, 56], "basis"]) == {str(judged.basis)}
    assert set(found.layers["input_size"]) == {40, 56}
    assert (rows["predicted_lo_ms"] <= rows["median_ms"]).all()


def test_a_sweep_without_layers_has_no_such_prediction(desk, measured):
    """Rows of networks are enough then."""
    assert fill.layers_of(measured.sweep()) is None
