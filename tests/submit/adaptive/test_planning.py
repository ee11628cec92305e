"""The next round, from what is measured."""

from __future__ import annotations

import pytest

import sizes
from hpcsweep.forecast import groups
from hpcsweep.submit.adaptive import planning
from hpcsweep.submit.adaptive.planning import Why

HUNDRED = [*range(32, 232, 2)]


def measuring(**changes):
    """Return an adaptive run of 100 sizes and two algorithms."""
    return sizes.Measuring(
        groups.groups_of(sizes.points(HUNDRED, (1,), ("auto", "gemm"))), **changes
    )


def test_a_smooth_curve_needs_few_points():
    """Seven, a few more, and what lies between is known within the target."""
    run = measuring()
    plan = run.go()
    assert [len(one.points) for one in run.rounds[:2]] == [14, 4]
    assert set(plan.why.values()) == {Why.REACHED}
    assert all(one.error <= 0.03 for one in plan.judged)
    assert len(run.rows) <= 30


def test_a_time_that_the_work_alone_makes_is_known_after_the_first_round():
    """A cost of the pass and one of each pixel: the curve is exact."""
    run = measuring(law=lambda point: 2 + 1e-4 * point.axes["input_size"] ** 2, target=1e-6)
    assert set(run.go().why.values()) == {Why.REACHED}
    assert len(run.rows) == 14


def test_steps_need_more_points_or_are_told():
    """Time that jumps by half every 24 sizes, as with tiles: the interval covers it."""

    def law(point):
        return 1.5 ** (point.axes["input_size"] // 24)

    run = measuring(law=law, target=0.01)
    plan = run.go()
    assert plan.judged[0].width.total > 1.1
    assert set(plan.why.values()) == {Why.STUCK}
    assert len(run.rows) > 20


def test_what_is_missing_of_a_round_comes_before_anything_new():
    """As after a kill."""
    run = measuring()
    run.go(most=12)
    plan = run.plan()
    assert (len(plan.missing), plan.new) == (2, ())


def test_points_measured_before_count_as_known():
    """Here the first set, by an ordinary submit: it is judged as a round."""
    run = measuring()
    run.measured({name: 1.0 for g in run.groups for name in g.ids})
    assert not run.plan().points
    run.measured({g.ids[place]: 3.0 for g in run.groups for place in g.spread()})
    assert run.plan().why == {g.name: Why.REACHED for g in run.groups}


def test_where_the_budget_is_short_the_worthiest_of_all_groups_come():
    """And when none fits, that is the reason."""
    run = measuring(target=1e-9, budget=2.5)
    plan = run.go()
    assert set(plan.why.values()) == {Why.BUDGET}
    assert run.spent <= 2.5


def test_points_that_fail_are_not_asked_for_again():
    """Large ones run out of memory; the others are predicted."""
    run = measuring(fails=lambda point: point.axes["input_size"] > 180)
    plan = run.go()
    asked = [point_id for one in run.rounds for point_id in one.points]
    assert len(asked) == len(set(asked))
    assert set(plan.why.values()) <= {Why.REACHED, Why.STUCK, Why.COMPLETE}


def test_a_sweep_of_sizes_and_batches():
    """Both together, on a plane: the corners first."""
    run = sizes.Measuring(groups.groups_of(sizes.points(range(32, 256, 16), (1, 2, 4, 8, 16, 32))))
    (one,) = run.go().judged
    assert one.error == pytest.approx(0, abs=0.03)
    assert len(run.rows) < 40  # of 84


def one_second(_point):
    """Return a cost that is the same everywhere."""
    return 1.0


def group(*measures):
    """Return one group of these sizes."""
    (found,) = groups.groups_of(sizes.points(measures))
    return found


def test_the_first_points_are_seven_from_end_to_end_that_have_no_row():
    """At even distances, as far as sizes allow."""
    found = planning.first(group(*range(32, 257)), {"auto-32-1"}, one_second)
    assert [one.point_id for one in found] == [f"auto-{n}-1" for n in (45, 64, 91, 128, 181, 256)]


def test_the_middle_of_the_widest_gap_tells_most():
    """Here between 64 and 256; then what is left."""
    known = {"auto-32-1", "auto-64-1", "auto-256-1"}
    found = planning.following(group(32, 45, 64, 128, 256), known, known, 1.0, one_second)
    assert [one.point_id for one in found] == ["auto-128-1", "auto-45-1"]
    assert found[0].worth > found[1].worth


def test_of_two_gaps_alike_the_cheaper_point_comes_first():
    """What a point tells is counted per second."""
    known = {"auto-32-1", "auto-128-1", "auto-512-1"}
    found = planning.following(
        group(32, 64, 128, 256, 512), known, known, 1.0, lambda point: point.axes["input_size"]
    )
    assert [one.point_id for one in found] == ["auto-64-1", "auto-256-1"]


def test_points_that_failed_are_neither_known_nor_asked_for_again():
    """What lies around them is still to be predicted."""
    known = {"auto-32-1", "auto-512-1"}
    settled = {*known, "auto-128-1"}
    found = planning.following(group(32, 120, 128, 512), known, settled, 1.0, one_second)
    assert [one.point_id for one in found] == ["auto-120-1"]


def test_where_no_corner_has_a_time_others_are_tried():
    """As many as a round has."""
    corners = {"auto-1-1", "auto-100-1", "auto-10-1"}
    found = planning.following(group(*range(1, 101)), set(), corners, 1.0, one_second)
    assert len(found) == planning.PER_ROUND
    assert not {one.point_id for one in found} & corners


def test_a_long_axis_is_compared_at_some_places_only():
    """10,000 sizes take no gigabytes."""
    found = planning.following(
        group(*range(1, 10_001)), {"auto-1-1"}, {"auto-1-1"}, 1.0, one_second
    )
    assert len(found) == planning.PER_ROUND


def test_the_worthiest_points_that_fit_are_afforded():
    """One that is too expensive leaves room for the others."""
    many = [
        planning.Chosen("a", 5.0, 1.0),
        planning.Chosen("b", 9.0, 3.0),
        planning.Chosen("c", 4.0, 2.0),
    ]
    assert [one.point_id for one in planning.affordable(many, 10.0)] == ["b"]
    assert [one.point_id for one in planning.affordable(many, 8.9)] == ["c"]
    assert [one.point_id for one in planning.affordable(many, 9.0 + 4.0)] == ["b", "c"]
