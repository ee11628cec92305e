"""Intervals count networks, not rows, and know the state of the machine."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from hpcsweep.forecast import intervals
from hpcsweep.forecast.intervals import Widths

NETWORKS = {
    "normal": lambda source, many: source.normal(0, 0.1, many),
    "one in five is far off": lambda source, many: 0.5 * (source.random(many) < 0.2),
    "one-sided": lambda source, many: source.exponential(0.15, many),
    "none is like the others": lambda source, many: source.uniform(-0.3, 0.3, many),
    "all alike": lambda _source, many: np.zeros(many),
}


def drawn(source, own, inside=0.04):
    """Return the errors of some networks with 3 to 20 rows each, and which network each is of."""
    rows = source.integers(3, 21, len(own))
    part = np.repeat(np.arange(len(own)), rows)
    return own[part] + source.normal(0, inside, len(part)), part


@pytest.mark.parametrize("many", [5, 8, 12])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_new_network_lies_in_its_interval_nine_times_in_ten(kind, many):
    """Whatever networks are off by: what is drawn here is unknown to the program."""
    source, shares = np.random.default_rng(1), []
    for _ in range(300):
        own = NETWORKS[kind](source, many + 1)
        own -= own[:-1].mean()
        errors, part = drawn(source, own)
        seen = part < many
        width = math.log(intervals.factor(np.exp(errors[seen]), 1.0, part[seen]))
        shares.append((np.abs(errors[~seen]) <= width).mean())
    assert 0.85 <= np.mean(shares) <= 0.985


def test_more_rows_of_the_same_networks_make_no_interval_narrower():
    """A hundred sizes of three networks are three networks."""
    true, part = np.exp(np.array([0.1, -0.2, 0.15])), np.arange(3)
    once = intervals.factor(true, np.ones(3), part)
    often = intervals.factor(np.tile(true, 100), np.ones(300), np.tile(part, 100))
    as_if = intervals.factor(np.tile(true, 100), np.ones(300), np.arange(300))
    assert often == pytest.approx(once)
    assert as_if < 0.5 * once


def test_fewer_networks_make_it_wider():
    """With errors of the same size; one alone says nothing of another."""
    widths = [
        intervals.factor(np.exp(0.1 * np.array([1, -1] * 6)[:many]), np.ones(many), np.arange(many))
        for many in (2, 3, 4, 5, 8, 12)
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > math.exp(0.5)
    assert widths[-1] < math.exp(0.2)
    assert intervals.factor(np.ones(9), np.ones(9), np.zeros(9, int)) == intervals.UNKNOWN


def test_the_order_of_rows_and_the_sign_of_errors_change_nothing():
    """A factor is as wide upwards as downwards."""
    errors, part = drawn(np.random.default_rng(2), np.array([0.1, -0.1, 0.2, 0.0, 0.3]))
    width = intervals.factor(np.exp(errors), np.ones(len(errors)), part)
    other = np.random.default_rng(3).permutation(len(errors))
    turned = intervals.factor(np.exp(-errors[other]), np.ones(len(errors)), 7 - part[other])
    assert turned == pytest.approx(width)


def test_no_error_at_all_is_an_interval_without_width():
    """Of twelve networks that physics explains; the layers need not have any."""
    assert intervals.factor(np.ones(12), np.ones(12), np.arange(12)) == 1.0


@pytest.mark.parametrize("by", [0.05, 0.1, 0.2, -0.1])
def test_a_shift_of_the_controls_widens_by_as_much(by):
    """Between what was learnt and what is asked, or the newest of what was learnt."""
    then = [1.0, 1.01, 0.99, 1.0] * 5
    now = [1.0 + by] * 9
    expected = abs(math.log1p(by))
    assert intervals.shift(then, now[:4]) == pytest.approx(expected)
    assert intervals.shift([*then, *now]) == pytest.approx(expected, abs=0.01)
    assert intervals.shift(then) == pytest.approx(0.0, abs=0.01)
    wide = Widths(1.1, {True: 1.2}, 7).shifted(expected)
    assert wide.total == pytest.approx(1.1 * math.exp(expected))
    calls = pd.DataFrame({"multiplies": [True, False], "unlike": 0.0})
    more = math.exp(expected)
    assert wide.of_layers(calls) == pytest.approx([1.2 * more, intervals.UNKNOWN * more])


def test_rows_without_controls_show_no_shift():
    """Tables of an earlier version have none."""
    assert intervals.shift([], [1.0]) == 0.0


def test_a_network_unlike_all_others_has_a_wider_interval():
    """By how far its operations and bytes are from the nearest that were seen; a guess stays."""
    seen = pd.DataFrame({"flops": [1e6, 1e7], "bytes_min": [1e4, 1e5]})
    calls = pd.DataFrame({
        "point_id": ["near", "near", "far"], "ms": [1.0, 3.0, 2.0], "multiplies": True,
        "flops": [1e6, 1e7, 8e7], "bytes_min": [1e4, 1e5, 2e5],
    })  # fmt: skip
    points = pd.DataFrame({"model": ["near", "far"]}, index=["near", "far"])
    points, calls = intervals.with_distance(points, calls, seen)
    assert points["unlike"].tolist() == pytest.approx([0, 4], abs=1e-3)
    near, far = Widths(1.2, {True: 1.3}, 5).of_points(points)
    assert near == pytest.approx(1.2)
    assert far > 2
    assert Widths().of_points(points).tolist() == [intervals.UNKNOWN] * 2
