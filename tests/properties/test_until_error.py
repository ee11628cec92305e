"""Laws of measuring in rounds, for sweeps, devices, targets and budgets that are drawn."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import sizes
from hpcsweep.forecast import curves, groups
from hpcsweep.forecast.next_round import Why


@st.composite
def runs(draw):
    """Return a run that has measured nothing: some sizes, batches and algorithms, and a law."""
    measures = draw(st.lists(st.integers(16, 512), min_size=2, max_size=40, unique=True))
    batches = draw(st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True))
    algorithms = draw(st.sampled_from([("auto",), ("auto", "gemm")]))
    tile, noise = draw(st.sampled_from([1, 16, 64])), draw(st.sampled_from([0.0, 0.1]))
    chance = np.random.default_rng(draw(st.integers(0, 9)))
    factors = {
        point.point_id: float(np.exp(chance.normal(0, noise)))
        for point in sizes.points(measures, batches, algorithms)
    }

    def law(point):
        size = -(-point.axes["input_size"] // tile) * tile
        return (0.5 + size**2 * point.axes["batch_size"] * 1e-4) * factors[point.point_id]

    largest = draw(st.sampled_from([512, 256]))  # larger ones fail
    return sizes.Measuring(
        groups.groups_of(sizes.points(measures, batches, algorithms)),
        law=law,
        target=draw(st.sampled_from([0.001, 0.03, 0.3])),
        budget=draw(st.sampled_from([np.inf, 10.0, 0.5])),
        fails=lambda point: point.axes["input_size"] > largest,
        oom=draw(st.booleans()),
    )


@given(runs())
def test_the_measured_set_only_grows_and_each_point_is_asked_for_once(run):
    """So it ends, too."""
    run.go()
    asked = [point_id for one in run.rounds for point_id in one.points]
    assert len(asked) == len(set(asked))
    assert all(before < after for before, after in zip(run.history, run.history[1:], strict=False))


@given(runs())
def test_the_first_round_covers_the_ends_of_every_group(run):
    """Unless the budget is too small for it."""
    run.budget = np.inf
    first = set(run.plan().points)
    for group in run.groups:
        chosen = group.places[group.among(first)]
        assert np.array_equal(chosen.min(axis=0), group.places.min(axis=0))
        assert np.array_equal(chosen.max(axis=0), group.places.max(axis=0))


@given(runs())
def test_no_target_is_reached_while_points_lie_beyond_those_that_were_tried(run):
    """Those that need too much memory are none."""
    why = run.go().why
    for group in run.groups:
        failed = group.as_large_as(run.rows.keys() - run.times.keys()) if run.oom else set()
        tried = group.among(run.rows.keys() - failed)
        rest = ~group.among(run.rows.keys() | failed)
        if why[group.name] is Why.REACHED:
            assert not curves.outside(group.places[tried], group.places[rest]).any()


@given(runs())
def test_the_budget_holds_where_points_cost_what_was_expected(run):
    """What they really cost is watched while they are measured (tests/forecast)."""
    run.go()
    assert run.spent <= run.budget + 1e-9


@given(runs(), st.integers(1, 30))
def test_killed_after_any_point_and_resumed_it_measures_and_judges_the_same(run, points):
    """Each plan is made from the rows and the rounds alone."""
    other = sizes.Measuring(run.groups, run.law, run.target, run.budget, run.fails, run.oom)
    whole, _ = run.go(), other.go(most=points)
    resumed = other.go()
    assert run.rows == other.rows
    assert run.rounds == other.rounds
    assert whole.why == resumed.why
    assert [one.error for one in whole.judged] == [one.error for one in resumed.judged]
