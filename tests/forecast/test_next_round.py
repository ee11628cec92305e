"""The next round, from what is measured, and what predictions were wrong by at points left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sizes
from hpcsweep.forecast import groups, intervals, next_round
from hpcsweep.forecast.next_round import HeldOut, Judged, Why, judge
from hpcsweep.store.rounds import Round

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
    assert [len(one.points) for one in run.rounds[:2]] == [14, 6]
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
    assert len(run.rows) >= 20  # those of two rounds, at least


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


def test_where_the_budget_is_short_some_of_the_points_come():
    """And when none fits, that is the reason."""
    run = measuring(target=1e-9, budget=2.5)
    plan = run.go()
    assert set(plan.why.values()) == {Why.BUDGET}
    assert run.spent <= 2.5


def of_sizes(measures, batches=(1,), **changes):
    """Return an adaptive run of one algorithm."""
    return sizes.Measuring(groups.groups_of(sizes.points(measures, batches)), **changes)


@pytest.mark.parametrize("oom", [False, True])
def test_points_that_fail_are_not_asked_for_again(oom):
    """The others are predicted."""
    run = measuring(fails=lambda point: point.axes["input_size"] > 180, oom=oom)
    plan = run.go()
    asked = [point_id for one in run.rounds for point_id in one.points]
    assert len(asked) == len(set(asked))
    assert set(plan.why.values()) == {Why.REACHED}
    assert len(run.rows) <= 40  # of 200


def test_few_of_the_points_that_run_out_of_memory_are_tried():
    """The largest that does not is found by halves."""
    run = of_sizes(range(10, 401), oom=True, fails=lambda point: point.axes["input_size"] >= 110)
    assert set(run.go().why.values()) == {Why.REACHED}
    assert {"auto-109-1", "auto-110-1"} <= run.rows.keys()
    assert len(run.rows.keys() - run.times.keys()) <= 8
    assert len(run.rounds) <= 8


def test_what_is_as_large_as_a_point_out_of_memory_is_not_tried():
    """In sizes and batches both; smaller in one of them is another question."""
    run = of_sizes(
        [16, 32, 64, 128, 256],
        [1, 2, 4, 8, 16, 32],
        oom=True,
        fails=lambda point: point.axes["input_size"] ** 2 * point.axes["batch_size"] >= 2**16,
        target=1e-9,
    )
    assert set(run.go().why.values()) == {Why.STUCK}
    tried = [{"auto-64-16", "auto-128-16"}, {"auto-128-4", "auto-256-8"}]
    assert not any(both <= {*one.points} for both in tried for one in run.rounds[1:])
    assert {"auto-64-8", "auto-32-32"} & run.rows.keys()


@pytest.mark.parametrize("oom", [False, True])
def test_a_group_of_which_every_first_point_fails_ends(oom):
    """The other goes on."""
    run = measuring(fails=lambda point: point.axes["algorithm"] == "gemm", oom=oom)
    assert {*run.go().why.values()} == {Why.REACHED, Why.FAILED}
    assert sum("gemm" in point_id for point_id in run.rows) == 7


def test_a_group_that_grew_gets_points_up_to_its_new_ends():
    """What the smaller ones told of themselves says nothing of the larger, nor do those rounds."""

    def law(point):
        return 1.0 + 1e-3 * point.axes["input_size"] ** 2 * (1 + (point.axes["input_size"] > 500))

    run = of_sizes(range(10, 101, 10), law=law)
    assert set(run.go().why.values()) == {Why.REACHED}
    run.groups = of_sizes(range(10, 1601, 10)).groups
    plan = run.plan()
    assert not plan.why
    assert "auto-1600-1" in plan.points
    assert len(plan.points) <= 7
    end = run.go()
    assert {*end.why.values()} <= {Why.REACHED, Why.STUCK}
    assert len(end.judged[0].rounds) == len(run.rounds) - 1


def test_a_group_that_is_new_gets_points_from_end_to_end():
    """The one before it is good enough."""
    run = of_sizes(HUNDRED)
    run.go()
    run.groups = measuring().groups
    plan = run.plan()
    assert plan.why == {"net auto": Why.REACHED}
    assert plan.points == [name.replace("auto", "gemm") for name in run.rounds[0].points]


def test_a_sweep_of_sizes_and_batches():
    """Both together, on a plane: the corners first."""
    run = sizes.Measuring(groups.groups_of(sizes.points(range(32, 256, 16), (1, 2, 4, 8, 16, 32))))
    (one,) = run.go().judged
    assert one.error == pytest.approx(0, abs=0.03)
    assert len(run.rows) < 40  # of 84


def test_sizes_of_another_kind_than_the_ends_are_seen():
    """All but multiples of 64 are slower by a third; the corners are such multiples."""

    def law(point):
        return sizes.smooth(point) * (1.35 if point.axes["input_size"] % 64 else 1.0)

    run = of_sizes(range(64, 513, 32), [1, 2, 4, 8, 16, 32, 64], law=law, target=0.05)
    plan = run.go()
    assert {*plan.why.values()} == {Why.STUCK}
    assert plan.judged[0].error > 0.05


def group(*measures):
    """Return one group of these sizes."""
    (found,) = groups.groups_of(sizes.points(measures))
    return found


def test_the_first_points_are_seven_from_end_to_end_that_have_no_row():
    """At even distances, as far as sizes allow."""
    run = of_sizes(range(32, 257))
    run.rows["auto-32-1"] += 1
    run.rounds.append(Round(points=("auto-32-1",)))
    assert run.plan().new == [f"auto-{n}-1" for n in (45, 64, 91, 128, 181, 256)]


def test_the_middle_of_the_widest_gap_comes_first():
    """Here between 64 and 256; then what is left."""
    known = {"auto-32-1", "auto-64-1", "auto-256-1"}
    left = ["auto-45-1", "auto-128-1"]
    found = next_round.following(group(32, 45, 64, 128, 256), known, left)
    assert found == ["auto-128-1", "auto-45-1"]


def test_further_points_halve_the_gaps_of_those_before():
    """So rounds are nested, and what is measured stays evenly spaced."""
    every = group(*(2**n for n in range(9)))
    done = {"auto-1-1", "auto-256-1"}
    found = []
    while left := [name for name in every.ids if name not in done]:
        found.append(next_round.following(every, done, left))
        done |= {*found[-1]}
    assert found == [
        ["auto-16-1", "auto-4-1", "auto-64-1"],
        ["auto-2-1", "auto-8-1", "auto-32-1"],
        ["auto-128-1"],
    ]


def test_points_without_a_valid_time_are_not_asked_for_again():
    """They are still to be predicted."""
    known = {"auto-32-1", "auto-512-1"}
    left = ["auto-45-1", "auto-120-1"]
    found = next_round.following(group(32, 45, 120, 128, 512), known, left)
    assert found == ["auto-120-1", "auto-45-1"]


def test_a_further_visit_of_what_is_known_is_not_asked_for():
    """It would halve no gap."""
    every = group(32, 32, 64)
    assert not next_round.following(every, {*every.ids}, ["auto-32-1"])


def test_points_that_fit_are_afforded():
    """One that is too expensive leaves room for the others."""
    costs = {"b": 9.0, "c": 4.0, "a": 5.0}
    assert next_round.affordable(costs, 10.0) == ["b"]
    assert next_round.affordable(costs, 8.9) == ["c"]
    assert next_round.affordable(costs, 9.0 + 4.0) == ["b", "c"]


(GROUP,) = groups.groups_of(sizes.points([32, 64, 128, 256, 512]))
ROUNDS = [["auto-32-1", "auto-512-1"], ["auto-128-1"], ["auto-64-1", "auto-256-1"]]


def known(**changes):
    """Return times that grow with the pixels, of all points."""
    ms = {point.point_id: point.axes["input_size"] ** 2 / 1000 for point in GROUP.points}
    return sizes.known(ms | changes)


def rounds(*errors):
    """Return four points after each round, of which every one is off by so much."""
    true = np.full(4, 10.0)
    return [HeldOut(true, true * (1 + error)) for error in errors]


def test_each_point_between_others_is_predicted_from_all_of_them():
    """Those of later rounds did not count earlier: 128, then 64, 128 and 256."""
    judged = judge(GROUP, known(**{"auto-128-1": 32.768}), ROUNDS)
    first, last = (one.errors for one in judged.rounds)
    assert first == pytest.approx([0.5])  # 16.384 was expected of it
    assert last == pytest.approx([2**0.5 - 1, 0.5, 2**0.5 - 1])


def test_the_ends_are_between_no_others():
    """Nor the corners of sizes and batches; nor is the only point."""
    (plane,) = groups.groups_of(sizes.points([32, 64, 128], [1, 2, 4]))
    ms = {point.point_id: sizes.smooth(point) for point in plane.points}
    (held,) = judge(plane, sizes.known(ms), [plane.ids]).rounds
    assert len(held.true) == 5
    one = judge(GROUP, sizes.known({"auto-32-1": 1.0}), [GROUP.ids])
    assert not one.rounds


def test_rows_of_before_the_first_round_count_from_it_on():
    """As after a submit of a sample."""
    judged = judge(GROUP, known(), [["auto-128-1"]])
    assert len(judged.rounds) == 1
    assert judged.errors == pytest.approx([0.0] * 3, abs=1e-9)


def test_too_few_points_say_nothing():
    """Three between the ends."""
    few = judge(GROUP, known(), [GROUP.ids])
    assert (few.error, few.why(0.5), few.width.total) == (None, None, intervals.UNKNOWN)


def test_the_mean_must_be_below_the_target_by_its_own_doubt():
    """One jump among four points is no accident that a median may pass over."""
    true = np.full(4, 10.0)
    jumps = Judged(GROUP, [HeldOut(true, true * np.array([1.01, 1, 1, 1.2]))])
    assert float(np.median(jumps.errors)) < 0.01
    assert jumps.error == pytest.approx(0.0525)
    assert jumps.why(0.06) is None
    assert jumps.why(0.2) is Why.REACHED
    assert Judged(GROUP, rounds(0.025)).why(0.03) is None  # alike by chance
    many = HeldOut(np.full(40, 10.0), np.full(40, 10.25))
    assert Judged(GROUP, [many]).why(0.03) is Why.REACHED


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        ([0.2, 0.02], Why.REACHED),
        ([0.2, 0.029], None),  # there is some doubt
        ([0.2, 0.05], None),
        ([0.1, 0.07], None),
        ([0.1, 0.09], Why.STUCK),  # surely beyond the target
        ([0.03, 0.029], None),
        ([0.1, 0.09, 0.085], Why.STUCK),
        ([0.1, 0.09, 0.04], None),
        ([0.1, 0.04, 0.05], None),  # the round before the last had helped
        ([0.1, 0.04, 0.05, 0.04], Why.STUCK),
    ],
)
def test_when_no_more_points_are_measured(errors, why):
    """The target, or rounds without help."""
    assert Judged(GROUP, rounds(*errors)).why(0.03) is why


def test_an_interval_counts_the_places_after_the_last_round():
    """Those before do not count; four places make a guess, and a wide one."""
    true = np.full(12, 10.0)
    errors = np.tile([0.3, 0.1, 0.05], 4)
    judged = Judged(GROUP, [*rounds(5.0), HeldOut(true, true * (1 + errors))])
    assert 1.3 < judged.width.total < 1.5
    assert (judged.width.parts, judged.width.is_guess) == (12, False)
    few = Judged(GROUP, rounds(0.05))
    assert few.width.is_guess
    assert few.width.total > 1.1


def test_several_visits_of_one_place_count_once():
    """They are wrong together, in whichever rounds they were held out."""
    places = np.array([[1.0], [2.0], [2.0], [2.0]])
    true = np.full(4, 10.0)
    held = HeldOut(true, true * np.array([1.3, 1.1, 1.1, 1.1]), places)
    assert Judged(GROUP, [held]).width.parts == 2
    at_once = HeldOut(true, held.said, np.zeros((4, 1)))
    assert Judged(GROUP, [at_once]).width.total == intervals.UNKNOWN


def test_the_interval_is_wider_where_the_machine_has_changed():
    """As the newest controls show."""
    one = known()
    ids = [[point] for point in GROUP.ids[:1]] + [GROUP.ids[1:]]
    before = judge(GROUP, one, ids)
    after = judge(GROUP, replace(one, controls=[1.0] * 20 + [1.2] * 9), ids)
    assert after.width.total == pytest.approx(1.2 * before.width.total)
