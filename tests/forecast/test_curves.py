"""Times between measured places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.forecast import curves

POSITIVE = st.floats(min_value=1e-3, max_value=1e3)


def column(*values):
    """Return places on one axis."""
    return np.array(values, float)[:, None]


@given(POSITIVE, POSITIVE, POSITIVE)
def test_points_on_a_line_give_that_line_everywhere(fixed: float, slope: float, work: float):
    """Between them and beyond."""
    places = column(-1, 0, 2)
    said = curves.between(places, fixed + slope * np.exp2(places[:, 0]), np.log2([[work]]))
    assert said == pytest.approx([fixed + slope * work], rel=1e-3)


@given(st.dictionaries(st.integers(1, 100_000), POSITIVE, min_size=1, max_size=9))
def test_a_measured_point_keeps_its_time(points: dict[int, float]):
    """Whatever line fits all of them best; two works that differ are a whole image apart."""
    places = np.log2(column(*points))
    ms = np.array(list(points.values()))
    assert curves.between(places, ms, places) == pytest.approx(ms, rel=1e-6)


def test_one_point_alone_begins_at_nothing():
    """Twice the work takes twice as long."""
    assert curves.between(column(0), np.array([5.0]), column(1)) == pytest.approx([10.0])


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=9, unique_by=lambda p: p[0]))
def test_a_time_is_positive_everywhere(points: list[tuple[float, float]]):
    """Neither at no work nor at much is the line below nothing."""
    works, ms = np.array(points).T
    said = curves.between(np.log2(works)[:, None], ms, column(-40, *range(-9, 10), 40))
    assert (said > 0).all()
    assert np.isfinite(said).all()


def test_between_points_of_one_axis_the_error_of_the_line_is_a_straight_line():
    """Over the logarithm of the work; beyond all it is the one at the end.

    Where times fall with the work, the line does not rise, and its errors are all there is.
    """
    said = curves.between(column(1, 2, 4), np.array([8.0, 4.0, 2.0]), column(0, 1.5, 3, 9))
    assert said == pytest.approx([8, 32**0.5, 8**0.5, 2])


@pytest.mark.parametrize("batch_cost", [0.0, 0.001])
def test_a_plane_of_sizes_and_batches_has_a_cost_of_its_own_and_one_of_the_work(batch_cost):
    """Five points are enough where the work decides; a cost of each image is taken up, mostly."""
    places = np.array([[10, 0], [14, 0], [10, 4], [14, 4], [12, 2]], float)
    wanted = np.array([[11, 3], [13, 1], [15, 5]], float)

    def law(where):
        return 2 + 1e-4 * np.exp2(where.sum(axis=1)) + batch_cost * np.exp2(where[:, 1])

    exact = 1e-6 if batch_cost == 0 else 0.05
    assert curves.between(places, law(places), wanted) == pytest.approx(law(wanted), rel=exact)
    assert curves.between(places, law(places), places) == pytest.approx(law(places))


def test_a_plane_keeps_what_each_axis_alone_changes():
    """Times that are powers of both, which no line over the work meets."""
    places = np.array([[x, y] for x in range(10, 17, 2) for y in range(0, 7, 2)], float)
    wanted = np.array([[11, 3], [13, 1], [15, 5]], float)
    said = curves.between(places, np.exp2(places @ [0.9, 0.7]), wanted)
    assert said == pytest.approx(np.exp2(wanted @ [0.9, 0.7]), rel=0.05)


def test_a_plane_of_two_batches_and_very_many_sizes_is_predicted():
    """All neighbours of a place have its batch: they are on one line of the plane."""
    places = np.array([[x, y] for x in np.linspace(10, 12, 100) for y in (0, 6)])
    ms = 1 + 1e-3 * np.exp2(places.sum(axis=1))
    said = curves.between(places, ms, np.add(places[:-2], [0.001, 0]))
    assert said == pytest.approx(ms[:-2], rel=0.01)


def test_several_times_of_one_place_count_as_their_mean():
    """Repetitions of a point; the mean is geometric."""
    said = curves.between(column(1, 1, 3), np.array([2.0, 8.0, 4.0]), column(1, 2))
    assert said == pytest.approx([4, 4])


def test_points_on_one_line_of_a_plane_still_say_something():
    """They have no slope across it."""
    places = np.array([[1, 1], [2, 2], [3, 3]], float)
    assert curves.between(places, np.full(3, 7.0), places[:1] + 1.0) == pytest.approx([7.0])
    one = places[:1]
    assert curves.between(one, np.array([7.0]), np.add(one, [1.0, 0.0])) == pytest.approx([14.0])


def test_what_lies_beyond_all_points_is_told():
    """Along any axis."""
    places = np.array([[1, 1], [3, 3]], float)
    wanted = np.array([[2, 2], [2, 4], [0.5, 2]])
    assert curves.outside(places, wanted).tolist() == [False, True, True]
    assert not curves.outside(np.zeros((1, 0)), np.zeros((2, 0))).any()
