"""What predictions were wrong by at points that the fit had not seen, and when that is enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sizes
from hpcsweep.forecast import groups, intervals
from hpcsweep.submit.adaptive.planning import HeldOut, Judged, Why, judge

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
