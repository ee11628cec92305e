"""Straight lines between measured points."""

from __future__ import annotations

import numpy as np
import pytest

from hpcsweep.adaptive import lines


def column(*values):
    """Return places on one axis."""
    return np.array(values, float)[:, None]


def test_between_two_points_the_logarithm_is_a_straight_line():
    """As numpy interpolates."""
    places, ms = column(1, 3, 4, 8), np.array([2.0, 5.0, 4.0, 30.0])
    wanted = np.linspace(1, 8, 29)
    said = lines.between(places, ms, wanted[:, None])
    assert said == pytest.approx(np.exp(np.interp(wanted, places[:, 0], np.log(ms))))


def test_powers_of_size_and_batch_are_met_exactly_on_a_plane():
    """Where time is a power of both, five points are enough; beyond them, too."""
    places = np.array([[10, 0], [14, 0], [10, 4], [14, 4], [12, 2]], float)
    wanted = np.array([[11, 3], [13, 1], [15, 5]], float)
    said = lines.between(places, np.exp2(places @ [0.9, 0.7]), wanted)
    assert said == pytest.approx(np.exp2(wanted @ [0.9, 0.7]))


def test_several_times_of_one_place_count_as_their_mean():
    """Repetitions of a point; the mean is geometric."""
    said = lines.between(column(1, 1, 3), np.array([2.0, 8.0, 4.0]), column(1, 2))
    assert said == pytest.approx([4, 4])


@pytest.mark.parametrize("places", [column(5), np.array([[1, 1], [2, 2], [3, 3]], float)])
def test_too_few_points_for_a_slope_still_say_something(places):
    """One point, or points on one line of a plane."""
    said = lines.between(places, np.full(len(places), 7.0), places[:1] + 1)
    assert said == pytest.approx([7.0])


def test_what_lies_beyond_all_points_is_told():
    """Along any axis."""
    places = np.array([[1, 1], [3, 3]], float)
    wanted = np.array([[2, 2], [2, 4], [0.5, 2]])
    assert lines.outside(places, wanted).tolist() == [False, True, True]
    assert not lines.outside(np.zeros((1, 0)), np.zeros((2, 0))).any()
