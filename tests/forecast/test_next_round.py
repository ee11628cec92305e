"""The next round, from what is measured, and what predictions were wrong by at points left out."""

from __future__ import annotations

import numpy as np
import pytest

import sizes
from hpcsweep.forecast import groups, intervals, next_round
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.next_round import Judged, Why, judge
from hpcsweep.forecast.past_rows import Known
from hpcsweep.point import Point
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
    assert (len(plan.points), plan.is_new) == (2, False)
    assert {*plan.points} < {*run.rounds[0].points}


def test_points_measured_before_count_as_known():
    """Here the first set, by an ordinary submit: it is judged as a round."""
    run = measuring()
    run.measured({name: 1.0 for g in run.groups for name in g.ids})
    assert not run.plan().points
    run.measured(dict.fromkeys(run.groups[0].ids[::10] + run.groups[0].ids[-1:], 3.0))
    assert run.plan().why == {"net auto": Why.REACHED}
    run.measured({name: 3.0 for g in run.groups for name in g.ids[::10] + g.ids[-1:]})
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
    assert len(run.rows.keys() - run.times.keys()) <= 11  # of 291
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
    assert Why.REACHED not in run.go().why.values()
    tried = [{"auto-64-16", "auto-128-16"}, {"auto-128-4", "auto-256-8"}]
    assert not any(both <= {*one.points} for both in tried for one in run.rounds[1:])
    assert {"auto-64-8", "auto-32-32", "auto-128-2"} & run.rows.keys()  # the largest that fit


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
    assert len(end.judged[0].means) == len(run.rounds) - 1


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
    assert len(run.rows) < 42  # half of 84


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
    """The ends, then the middle of the sweep's values, and of their halves."""
    run = of_sizes(range(32, 257))
    run.rows["auto-32-1"] += 1
    run.rounds.append(Round(points=("auto-32-1",)))
    assert run.plan().points == [f"auto-{n}-1" for n in (256, 144, 88, 200, 60, 116)]


def following(every, number=9, done=(), left=None):
    """Return the sizes, or sizes and batches, of the next points."""
    is_left = ~every.among(done) if left is None else every.among(left)
    rows = next_round.following(every, every.among(done), is_left, number)
    return [every.ids[row].removeprefix("auto-").removesuffix("-1") for row in rows]


def test_further_points_halve_the_gaps_of_those_before():
    """So what is measured stays evenly spaced, whatever the sizes, and rounds are nested."""
    every = group(1, 2, 3, 5, 8, 13, 21, 34, 55)
    assert following(every) == ["1", "55", "8", "3", "21", "2", "5", "13", "34"]
    assert following(every, 3) == ["1", "55", "8"]
    done = ["auto-1-1", "auto-55-1", "auto-5-1", "auto-8-1"]
    assert following(every, 2, done) == ["21", "2"]


def test_points_without_a_valid_time_are_not_asked_for_again():
    """They are still to be predicted, so those around them are."""
    done = {"auto-32-1", "auto-512-1"}
    left = ["auto-45-1", "auto-128-1"]
    assert following(group(32, 45, 120, 128, 512), 3, done, left) == ["45", "128"]


def test_a_further_visit_of_what_is_known_is_not_asked_for():
    """It would halve no gap; nor is a second one of what is chosen."""
    every = group(32, 32, 64)
    assert following(every, 3, done=every.ids, left=["auto-32-1"]) == []
    seeds = [
        Point("inference", {"input_size": size, "seed": seed}, point_id=f"{size} {seed}")
        for size in (32, 48, 64)
        for seed in (0, 1)
    ]
    (repeated,) = groups.groups_of(seeds)
    assert following(repeated) == ["32 0", "64 0", "48 0"]


def test_points_of_a_plane_begin_with_its_corners_and_its_middle():
    """Then those that differ from all in size, in batch, or in some of both."""
    (plane,) = groups.groups_of(sizes.points(range(64, 129, 16), [1, 2, 4, 8, 16]))
    first = following(plane)
    assert {*first[:4]} == {"64", "64-16", "128", "128-16"}
    assert first[4] == "96-4"
    chosen = plane.ranks[plane.among({f"auto-{name}" + "-1" * ("-" not in name) for name in first})]
    assert len(chosen) == 9
    assert {*chosen[:, 0]} > {0, 0.5, 1}
    assert {*chosen[:, 1]} > {0, 0.5, 1}


@pytest.mark.parametrize(("valid", "why"), [(2, Why.INVALID), (3, None)])
def test_a_group_of_which_most_points_are_not_valid_ends(valid, why):
    """What disturbed them would disturb others; some points in doubt end nothing."""
    every = group(*range(32, 132, 10))
    ms = dict.fromkeys(every.ids[:valid], 3.0)
    doubtful = {name: {} for name in every.ids[valid:6]}
    found = Known(ms=ms, tried={*ms, *doubtful}, doubtful=doubtful)
    plan = next_round.plan(
        [every], found, [], target=0.03, seconds_left=np.inf, seconds=lambda _: 1.0
    )
    assert plan.why.get(every.name) is why
    assert bool(plan.points) == (why is None)


def test_points_that_fit_into_the_budget_are_measured():
    """In their order; one that is too expensive leaves room for the others."""
    expensive = {"auto-32-1": 9.0, "auto-512-1": 4.0, "auto-128-1": 5.0}
    costs = {point.point_id: expensive.get(point.point_id, 99.0) for point in GROUP.points}
    for budget, points in (
        (10.0, ["auto-32-1"]),
        (8.9, ["auto-512-1"]),
        (13.0, ["auto-32-1", "auto-512-1"]),
        (3.0, []),
    ):
        plan = next_round.plan(
            [GROUP], sizes.known({}), [], target=0.03, seconds_left=budget,
            seconds=lambda point: costs[point.point_id],
        )  # fmt: skip
        assert plan.points == points
        assert plan.why == ({} if points else {GROUP.name: Why.BUDGET})
        assert plan.wanted > 99


(GROUP,) = groups.groups_of(sizes.points([32, 64, 128, 256, 512]))
ROUNDS = [["auto-32-1", "auto-512-1"], ["auto-128-1"], ["auto-64-1", "auto-256-1"]]


def known(**changes):
    """Return times that grow with the pixels, of all points."""
    ms = {point.point_id: point.axes["input_size"] ** 2 / 1000 for point in GROUP.points}
    return sizes.known(ms | changes)


def judged(errors, means=()):
    """Return a group with these errors, and mean errors after the rounds before."""
    errors = np.array(errors)
    ms = np.full(len(GROUP.ids), 10.0)
    every = [*means, float(errors.mean())]
    return Judged(group=GROUP, ms=ms, means=every, errors=errors, width=Widths())


def test_each_point_between_others_is_predicted_from_all_of_them():
    """Those of later rounds did not count earlier: 128, then 64, 128 and 256."""
    found = judge(GROUP, known(**{"auto-128-1": 32.768}), ROUNDS)
    assert found.means[0] == pytest.approx(0.5)  # 16.384 was expected of it
    assert found.errors == pytest.approx([2**0.5 - 1, 0.5, 2**0.5 - 1])
    assert found.means[1:] == [found.errors.mean()]


def test_the_ends_are_between_no_others():
    """Nor the corners of sizes and batches; nor is the only point."""
    (plane,) = groups.groups_of(sizes.points([32, 64, 128], [1, 2, 4]))
    ms = {point.point_id: sizes.smooth(point) for point in plane.points}
    assert len(judge(plane, sizes.known(ms), [plane.ids]).errors) == 5
    one = judge(GROUP, sizes.known({"auto-32-1": 1.0}), [GROUP.ids])
    assert (one.means, len(one.errors)) == ([], 0)


def test_rows_of_before_the_first_round_count_from_it_on():
    """As after a submit of a sample."""
    found = judge(GROUP, known(), [["auto-128-1"]])
    assert len(found.means) == 1
    assert found.errors == pytest.approx([0.0] * 3, abs=1e-9)


def test_too_few_points_say_nothing():
    """Three between the ends."""
    few = judge(GROUP, known(), [GROUP.ids])
    assert (few.error, few.why(0.5), few.width.total) == (None, None, intervals.UNKNOWN)


def test_the_mean_must_be_below_the_target_by_its_own_doubt():
    """One jump among four points is no accident that a median may pass over."""
    jumps = judged([0.01, 0, 0, 0.2])
    assert jumps.error == pytest.approx(0.0525)
    assert jumps.why(0.06) is None
    assert jumps.why(0.2) is Why.REACHED
    assert judged([0.025] * 4).why(0.03) is None  # alike by chance
    assert judged([0.025] * 40).why(0.03) is Why.REACHED


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
    assert judged([errors[-1]] * 4, errors[:-1]).why(0.03) is why


def off_by(every, errors):
    """Judge a group of which every other size is off by one of these from the work that it has."""
    values = sorted({point.axes["input_size"] for point in every.points})
    off = dict(zip(values[1::2], errors, strict=True))
    ms = {
        point.point_id: point.axes["input_size"] ** 2 * (1 + off.get(point.axes["input_size"], 0))
        for point in every.points
    }
    return judge(every, sizes.known(ms), [])


def test_an_interval_counts_the_places_after_the_last_round():
    """Four places make a guess, and a wide one."""
    many = off_by(group(*range(100, 125)), [0.1, 0.05, 0.0] * 4)
    assert 1.05 < many.width.total < 1.3
    assert (many.width.parts, many.width.is_guess) == (23, False)
    few = off_by(group(*range(100, 106)), [0.1, 0.1, 0.1])
    assert (few.width.parts, few.width.is_guess) == (4, True)
    assert few.width.total > many.width.total


def test_several_visits_of_one_place_count_once():
    """They are wrong together, in whichever rounds they were held out."""
    visits = [
        Point("inference", {"input_size": size, "seed": seed}, point_id=f"{size} {seed}")
        for size in (100, 110, 120)
        for seed in range(4)
    ]
    (repeated,) = groups.groups_of(visits)
    found = off_by(repeated, [0.1])
    assert len(found.errors) == 4
    assert (found.width.parts, found.width.total) == (1, intervals.UNKNOWN)
