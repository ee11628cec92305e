"""Which points come next."""

from __future__ import annotations

import sizes
from hpcsweep.adaptive import choose
from hpcsweep.adaptive.choose import Chosen
from hpcsweep.forecast import groups


def one_second(_point):
    """Return a cost that is the same everywhere."""
    return 1.0


def group(*measures):
    """Return one group of these sizes."""
    (found,) = groups.of(sizes.points(measures))
    return found


def test_the_first_points_are_seven_from_end_to_end_that_have_no_row():
    """At even distances, as far as sizes allow."""
    found = choose.first(group(*range(32, 257)), {"auto-32-1"}, one_second)
    assert [one.point_id for one in found] == [f"auto-{n}-1" for n in (45, 64, 91, 128, 181, 256)]


def test_the_middle_of_the_widest_gap_tells_most():
    """Here between 64 and 256; then what is left."""
    known = {"auto-32-1", "auto-64-1", "auto-256-1"}
    found = choose.following(group(32, 45, 64, 128, 256), known, known, 1.0, one_second)
    assert [one.point_id for one in found] == ["auto-128-1", "auto-45-1"]
    assert found[0].worth > found[1].worth


def test_of_two_gaps_alike_the_cheaper_point_comes_first():
    """What a point tells is counted per second."""
    known = {"auto-32-1", "auto-128-1", "auto-512-1"}
    found = choose.following(
        group(32, 64, 128, 256, 512), known, known, 1.0, lambda point: point.axes["input_size"]
    )
    assert [one.point_id for one in found] == ["auto-64-1", "auto-256-1"]


def test_points_that_failed_are_neither_known_nor_asked_for_again():
    """What lies around them is still to be predicted."""
    known = {"auto-32-1", "auto-512-1"}
    settled = {*known, "auto-128-1"}
    found = choose.following(group(32, 120, 128, 512), known, settled, 1.0, one_second)
    assert [one.point_id for one in found] == ["auto-120-1"]


def test_where_no_corner_has_a_time_others_are_tried():
    """As many as a round has."""
    corners = {"auto-1-1", "auto-100-1", "auto-10-1"}
    found = choose.following(group(*range(1, 101)), set(), corners, 1.0, one_second)
    assert len(found) == choose.PER_ROUND
    assert not {one.point_id for one in found} & corners


def test_a_long_axis_is_compared_at_some_places_only():
    """10,000 sizes take no gigabytes."""
    found = choose.following(group(*range(1, 10_001)), {"auto-1-1"}, {"auto-1-1"}, 1.0, one_second)
    assert len(found) == choose.PER_ROUND


def test_the_worthiest_points_that_fit_are_afforded():
    """One that is too expensive leaves room for the others."""
    many = [Chosen("a", 5.0, 1.0), Chosen("b", 9.0, 3.0), Chosen("c", 4.0, 2.0)]
    assert [one.point_id for one in choose.affordable(many, 10.0)] == ["b"]
    assert [one.point_id for one in choose.affordable(many, 8.9)] == ["c"]
    assert [one.point_id for one in choose.affordable(many, 9.0 + 4.0)] == ["b", "c"]
