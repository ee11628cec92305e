"""Leaving out: errors are of what was not seen, and intervals hold what they promise."""

from __future__ import annotations

import json

import pytest

import knownphysics
from hpcsweep.errors import UsageError
from hpcsweep.forecast import check, intervals


@pytest.fixture(scope="module")
def found():
    """Check a device whose layer times are off by 5 %."""
    names = ("narrow", "wide", "flat", "odd")
    networks = {name: knownphysics.NETWORKS[name] for name in names}
    device = knownphysics.Device(noise=0.05)
    return check.check(knownphysics.measured(device, networks, sizes=(32, 48, 64, 96)))


def test_networks_sizes_and_algorithms_are_left_out(found):
    """A GPU is not, for there is but one."""
    parts = found.to_json()["checks"]
    assert [part["left_out"] for part in parts] == ["network", "size", "algorithm"]
    assert [part["fits"] for part in parts] == [4, 2, 2]
    json.dumps(found.to_json())


def test_a_network_that_was_left_out_is_nearly_right(found):
    """On a device that follows physics."""
    (own,) = found.parts[0]["errors"].values()
    assert own["totals"]["median"] < 0.05
    assert own["layers"]["median"] < 0.08


def test_nine_in_ten_times_lie_in_their_interval(found):
    """Those of networks that were left out, with the intervals that the others gave."""
    for part in found.parts[:2]:
        assert 0.85 <= part["interval_holds"]["layers"] <= 0.95


def test_the_table_has_one_row_of_errors_for_each_kind(found):
    """And says what was left out, and how often the interval held."""
    text = found.text()
    assert "left out: a whole network (4 fits)" in text
    assert text.count("\nprediction ") == 3
    assert "boosting" not in text


def test_a_model_has_not_seen_what_it_predicts():
    """Times of the network that is left out do not change what is said of it."""
    names = ("narrow", "wide", "odd")
    before = knownphysics.measured(networks={name: knownphysics.NETWORKS[name] for name in names})
    points, layers = before.points, before.layers
    wrong = layers["model"] == "odd"
    after = type(before)(
        points.assign(total_ms=points["total_ms"].where(points["model"] != "odd", 7.0)),
        layers.assign(ms=layers["ms"].where(~wrong, 3.0)),
    )
    told = [check.leave_out(one, "network").points for one in (before, after)]
    first, second = (one[one["model"] == "odd"]["prediction"] for one in told)
    assert first.tolist() == second.tolist()


def test_an_interval_is_wide_where_nothing_could_be_left_out():
    """One network says nothing of another."""
    alone = knownphysics.measured(networks={"narrow": (8, 16)})
    left = check.leave_out(alone, "network")
    assert left is None
    assert intervals.calibrate(left).total == intervals.UNKNOWN


def test_nothing_to_write_is_told(tmp_path):
    """One network at one size."""
    with pytest.raises(UsageError, match=r"errors\.csv: nothing to write"):
        check.write([], tmp_path / "errors.csv")


def test_no_picture_is_written_as_a_table(tmp_path):
    """Earlier versions drew one."""
    with pytest.raises(UsageError, match=r"errors\.png: .* a table, \*\.csv"):
        check.write([], tmp_path / "errors.png")
