"""Seconds over work, from a few points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.forecast import curves

POSITIVE = st.floats(min_value=1e-3, max_value=1e3)


@given(POSITIVE, POSITIVE, POSITIVE)
def test_points_on_a_line_give_that_line_everywhere(fixed: float, slope: float, work: float):
    """Between them and beyond."""
    found = curves.fit((x, fixed + slope * x) for x in (0.5, 1.0, 4.0))
    assert found.at(work) == pytest.approx(fixed + slope * work, rel=1e-3)


@given(st.dictionaries(POSITIVE, POSITIVE, min_size=1, max_size=9))
def test_a_measured_point_keeps_its_time(points: dict[float, float]):
    """Whatever line fits all of them best."""
    found = curves.fit(points.items())
    for work, seconds in points.items():
        assert found.at(work) == pytest.approx(seconds, rel=1e-6)


def test_one_point_alone_begins_at_nothing():
    """Twice the work takes twice as long."""
    assert curves.fit([(1.0, 5.0)]).at(2.0) == pytest.approx(10.0)


def test_repeated_works_count_with_their_median():
    """Other seeds, other sweeps."""
    found = curves.fit([(1.0, 2.0), (1.0, 3.0), (1.0, 90.0), (2.0, 6.0)])
    assert found.at(1.0) == pytest.approx(3.0)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=9, unique_by=lambda p: p[0]))
def test_a_line_is_never_negative(points: list[tuple[float, float]]):
    """Neither at no work, nor by its slope."""
    fixed, slope = curves.line(points)
    assert min(fixed, slope) >= 0
    assert fixed + slope > 0
