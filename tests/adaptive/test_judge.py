"""What predictions were wrong by at points that the fit had not seen, and when that is enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sizes
from hpcsweep.adaptive import groups
from hpcsweep.adaptive.judge import HeldOut, Judged, Why, judge
from hpcsweep.forecast import intervals
from hpcsweep.forecast.sweep import Basis

(GROUP,) = groups.of(sizes.points([32, 64, 128, 256, 512]))
ROUNDS = [["auto-32-1", "auto-512-1"], ["auto-128-1"], ["auto-64-1", "auto-256-1"]]


def known(**changes):
    """Return times that grow with the pixels, of all points."""
    ms = {point.point_id: point.axes["input_size"] ** 2 / 1000 for point in GROUP.points}
    return sizes.known(ms | changes)


def rounds(*errors, basis=Basis.LINES):
    """Return rounds of four points each, in which every prediction is off by so much."""
    true = np.full(4, 10.0)
    return [HeldOut(true, {basis: true * (1 + error)}) for error in errors]


def test_each_round_is_predicted_from_those_before_it_alone():
    """A point that was measured wrong spoils what is said of later rounds, not of its own."""
    judged = judge(GROUP, known(**{"auto-128-1": 32.768}), ROUNDS)
    first, last = (one.errors(Basis.LINES) for one in judged.rounds)
    assert first == pytest.approx([0.5])  # 16.384 was expected of it
    assert last == pytest.approx([2**0.5 - 1] * 2)


def test_rows_of_before_the_first_round_are_what_it_is_predicted_from():
    """As after a submit of a sample."""
    judged = judge(GROUP, known(), [["auto-128-1"]])
    assert len(judged.rounds) == 1
    assert judged.errors == pytest.approx([0.0], abs=1e-9)


def test_too_few_points_say_nothing():
    """The first round alone, or one with three points."""
    assert judge(GROUP, known(), [GROUP.ids]).error is None
    few = judge(GROUP, known(), ROUNDS)
    assert (few.error, few.why(0.5), few.factor) == (None, None, intervals.UNKNOWN)


def test_a_round_with_too_few_points_is_judged_with_the_one_before():
    """Three of four points were not valid, say."""
    early, late = rounds(0.2, 0.02)
    late = HeldOut(late.true[:1], {Basis.LINES: late.said[Basis.LINES][:1]})
    judged = Judged(GROUP, [early, late])
    assert judged.error == pytest.approx(0.2)
    assert len(judged.errors) == 5


def test_the_basis_with_the_smaller_error_counts():
    """Layers where they are better, and lines where there are no layers."""
    true = np.full(4, 10.0)
    both = HeldOut(true, {Basis.LINES: true * 1.1, Basis.SIZES: true * 0.98})
    assert (Judged(GROUP, [both]).basis, Judged(GROUP, [both]).error) == (
        Basis.SIZES,
        pytest.approx(0.02),
    )
    assert Judged(GROUP, rounds(0.1)).basis is Basis.LINES
    assert Judged(GROUP, []).basis is Basis.LINES


def test_what_layers_say_is_asked_for_the_last_rounds_only():
    """With the points before; a fit of many layers takes long."""
    asked = []

    def layers(before, test):
        asked.append((list(before), list(test)))
        return dict.fromkeys(test, 1.0)

    judged = judge(GROUP, known(), [["auto-32-1"], GROUP.ids[1:]], layers)
    assert asked == [(["auto-32-1"], GROUP.ids[1:])]
    assert set(judged.rounds[0].said) == {Basis.LINES, Basis.SIZES}
    more, asked[:] = [["auto-32-1"], ["auto-64-1"], GROUP.ids[2:]], []
    judge(GROUP, known(), more, layers)
    assert [test for _, test in asked] == [GROUP.ids[2:], ["auto-64-1"]]  # 3 are not enough


@pytest.mark.parametrize(
    ("errors", "noise", "why"),
    [
        ([0.2, 0.029], None, Why.REACHED),
        ([0.2, 0.05], None, None),
        ([0.2, 0.05], 0.1, Why.NOISE),
        ([0.2, 0.05], 0.02, None),
        ([0.1, 0.09], None, None),
        ([0.1, 0.09, 0.085], None, Why.STUCK),
        ([0.1, 0.09, 0.04], None, None),
        ([0.1, 0.04, 0.05], None, None),  # the round before the last had helped
        ([0.1, 0.04, 0.05, 0.04], None, Why.STUCK),
    ],
)
def test_when_no_more_points_are_measured(errors, noise, why):
    """The target, the noise of points measured twice (of two rounds), or rounds without help."""
    differences = [] if noise is None else [noise * share for share in (0.5, 0.9, 1.1, 1.5)]
    assert Judged(GROUP, rounds(*errors), differences).why(0.03) is why


def test_an_interval_counts_the_places_of_the_last_nine_points():
    """The first round does not count; four places make a guess, and a wide one."""
    judged = Judged(GROUP, rounds(5.0, 0.3, 0.1, 0.05))
    assert 1.3 < judged.factor < 1.5
    assert (judged.width.parts, judged.width.is_guess) == (12, False)
    few = Judged(GROUP, rounds(0.05))
    assert few.width.is_guess
    assert few.factor > 1.1


def test_several_visits_of_one_place_count_once():
    """They are wrong together, in whichever rounds they were held out."""
    places = np.array([[1.0], [2.0], [2.0], [2.0]])
    true = np.full(4, 10.0)
    held = HeldOut(true, {Basis.LINES: true * np.array([1.3, 1.1, 1.1, 1.1])}, places)
    assert Judged(GROUP, [held, held]).width.parts == 2
    at_once = HeldOut(true, held.said, np.zeros((4, 1)))
    assert Judged(GROUP, [at_once]).factor == intervals.UNKNOWN


def test_the_interval_is_wider_where_the_machine_has_changed():
    """As the newest controls show."""
    one = known()
    ids = [[point] for point in GROUP.ids[:1]] + [GROUP.ids[1:]]
    before = judge(GROUP, one, ids)
    after = judge(GROUP, replace(one, controls=[1.0] * 20 + [1.2] * 9), ids)
    assert after.factor == pytest.approx(1.2 * before.factor)
