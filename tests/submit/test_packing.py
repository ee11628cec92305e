"""How points are packed into chunks."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.point import Point
from hpcsweep.submit import packing

COSTS = st.lists(st.floats(min_value=0.0, max_value=50.0), max_size=60)


def points(costs: list[float]) -> list[Point]:
    """Return points that say what they cost."""
    return [
        Point("noop", {"seed": i, "cost": cost}, {}, f"{i:016x}") for i, cost in enumerate(costs)
    ]


def cost(point: Point) -> float:
    """Return what a point costs."""
    return float(point.axes["cost"])


@given(COSTS, st.floats(min_value=1.0, max_value=100.0), st.integers(min_value=1, max_value=20))
def test_packing_loses_nothing_and_keeps_order_and_limits(
    costs: list[float], seconds: float, most: int
) -> None:
    """Only a point that is over the limit by itself may exceed it, alone."""
    made = points(costs)
    chunks = list(packing.pack(made, cost, packing.Limits(seconds, most)))
    assert [point for chunk in chunks for point in chunk.points] == made
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert 1 <= len(chunk.points) <= most
        assert chunk.seconds == pytest.approx(sum(cost(point) for point in chunk.points))
        assert chunk.seconds <= seconds * (1 + 1e-9) or len(chunk.points) == 1


@given(COSTS, st.floats(min_value=1.0, max_value=100.0))
def test_packing_starts_a_chunk_only_where_the_next_point_does_not_fit(
    costs: list[float], seconds: float
) -> None:
    """A start of Python and CUDA is paid once for as many points as possible."""
    chunks = list(packing.pack(points(costs), cost, packing.Limits(seconds, 1000)))
    for chunk, following in pairwise(chunks):
        assert chunk.seconds + cost(following.points[0]) > seconds


@given(COSTS, st.integers(min_value=1, max_value=8))
def test_sharing_over_workers_loses_nothing(costs: list[float], workers: int) -> None:
    """At most one chunk per worker, none empty, in order."""
    made = points(costs)
    chunks = packing.share(made, cost, workers)
    assert [point for chunk in chunks for point in chunk.points] == made
    assert len(chunks) <= workers
    assert all(chunk.points for chunk in chunks)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))


def test_equal_points_are_shared_equally() -> None:
    """Two workers, half each."""
    chunks = packing.share(points([1.0] * 10), cost, 2)
    assert [len(chunk.points) for chunk in chunks] == [5, 5]


def test_without_limits_there_is_one_chunk() -> None:
    """A profile without a time limit."""
    assert len(list(packing.pack(points([1.0] * 100), cost, packing.Limits(inf, 1000)))) == 1


def test_points_are_spread_over_tasks_within_the_limits():
    """Of about equal time; each point once, in order; more tasks where one would be too large."""

    def cut(number, tasks, seconds=1e9, points=2000):
        limits = packing.Limits(seconds, points)
        return list(packing.spread(range(number), lambda _: 1.0, limits, tasks))

    chunks = cut(300, 4)
    assert [len(chunk.points) for chunk in chunks] == [75] * 4
    assert [chunk.index for chunk in chunks] == [0, 1, 2, 3]
    assert [point for chunk in chunks for point in chunk.points] == [*range(300)]
    assert [len(chunk.points) for chunk in cut(2, 4)] == [1, 1]
    assert [len(chunk.points) for chunk in cut(300, 2, points=100)] == [100, 50, 100, 50]
    assert {chunk.seconds for chunk in cut(300, 3, seconds=50.0)} == {50.0}
