"""Chunks: what shares one, how large they become, and in which order a chunk measures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from math import ceil, inf
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.point import Point
from hpcsweep.submit import packing

COSTS = st.lists(st.floats(min_value=0.0, max_value=50.0), max_size=60)


def shared(_point):
    """Let all points share a worker."""


def points(costs: list[float]) -> list[Point]:
    """Return points that say what they cost."""
    return [
        Point("noop", {"seed": i, "cost": cost}, {}, f"{i:016x}") for i, cost in enumerate(costs)
    ]


def swept(visits=3, models=2, sizes=4, algorithms=("auto", "gemm", "fft")):
    """Return the points of a sweep in its order: model, size, algorithm, visit."""
    axes = product(range(models), range(sizes), algorithms, range(1, visits + 1))
    return [
        Point("noop", {"model": m, "input_size": s, "algorithm": a, "visit": v}, {}, f"{i:016x}")
        for i, (m, s, a, v) in enumerate(axes)
    ]


def test_what_will_be_compared_stays_in_one_chunk():
    """All algorithms and visits of a configuration, also where the limit is in their middle."""
    for most in (9, 10, 17, 20):
        limits = packing.Limits(inf, most)
        chunks = list(packing.packed(packing.blocks(swept()), lambda _: 1.0, shared, limits))
        assert [point for chunk in chunks for point in chunk.points] == swept()
        for chunk in chunks:
            configurations = Counter((p.axes["model"], p.axes["input_size"]) for p in chunk.points)
            assert set(configurations.values()) == {9}


def test_a_chunk_measures_one_visit_after_the_other_in_random_complete_blocks():
    """Each visit has every point once; a network is built once; algorithms lie side by side."""
    (chunk,) = packing.packed(
        packing.blocks(swept()), lambda _: 1.0, shared, packing.Limits(inf, 1000)
    )
    order = packing.arranged(chunk).points
    assert sorted(p.point_id for p in order) == [p.point_id for p in swept()]
    assert [p.axes["visit"] for p in order] == [1] * 24 + [2] * 24 + [3] * 24
    visits = [[(p.axes["model"], p.axes["input_size"], p.axes["algorithm"])
               for p in order[at : at + 24]] for at in (0, 24, 48)]  # fmt: skip
    assert len({tuple(visit) for visit in visits}) == 3
    for visit in visits:
        assert len({of[0] for of in visit[:12]}) == len({of[0] for of in visit[12:]}) == 1
        for at in range(0, 24, 3):
            assert len({of[:2] for of in visit[at : at + 3]}) == 1
    assert packing.arranged(replace(chunk, points=chunk.points[::-1])).points == order


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 60))
def test_arranging_loses_nothing(visits: int, models: int, sizes: int, most: int) -> None:
    """Whatever the sweep and the limit."""
    points_ = swept(visits, models, sizes)
    limits = packing.Limits(inf, most)
    chunks = map(
        packing.arranged, packing.packed(packing.blocks(points_), lambda _: 1.0, shared, limits)
    )
    assert sorted(p.point_id for chunk in chunks for p in chunk.points) == [
        p.point_id for p in points_
    ]


def single(points):
    """Return each point as a block of its own."""
    return [[point] for point in points]


def cost(point: Point) -> float:
    """Return what a point costs."""
    return float(point.axes["cost"])


@given(COSTS, st.floats(min_value=1.0, max_value=100.0), st.integers(min_value=1, max_value=20))
def test_packing_loses_nothing_and_keeps_order_and_limits(
    costs: list[float], seconds: float, most: int
) -> None:
    """Only a point that is over the limit by itself may exceed it, alone."""
    made = points(costs)
    chunks = list(packing.packed(single(made), cost, shared, packing.Limits(seconds, most)))
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
    chunks = list(
        packing.packed(single(points(costs)), cost, shared, packing.Limits(seconds, 1000))
    )
    for chunk, following in pairwise(chunks):
        assert chunk.seconds + cost(following.points[0]) > seconds


@given(COSTS, st.integers(min_value=1, max_value=8))
def test_sharing_over_workers_loses_nothing(costs: list[float], workers: int) -> None:
    """At most one chunk per worker, none empty, in order."""
    made = points(costs)
    chunks = list(packing.spread(single(made), cost, shared, packing.Limits(), workers))
    assert [point for chunk in chunks for point in chunk.points] == made
    assert len(chunks) <= workers
    assert all(chunk.points for chunk in chunks)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))


def test_points_are_spread_over_tasks_within_the_limits():
    """Of about equal time; each point once, in order; more tasks where one would be too large."""

    def cut(number, tasks, seconds=1e9, points=2000):
        limits = packing.Limits(seconds, points)
        return list(packing.spread(single(range(number)), lambda _: 1.0, shared, limits, tasks))

    chunks = cut(300, 4)
    assert [len(chunk.points) for chunk in chunks] == [75] * 4
    assert [chunk.index for chunk in chunks] == [0, 1, 2, 3]
    assert [point for chunk in chunks for point in chunk.points] == [*range(300)]
    assert [len(chunk.points) for chunk in cut(2, 4)] == [1, 1]
    assert [len(chunk.points) for chunk in cut(300, 2, points=100)] == [100, 50, 100, 50]
    assert {chunk.seconds for chunk in cut(300, 3, seconds=50.0)} == {50.0}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(10, 60), st.integers(2, 8))
def test_evening_out_loses_nothing_and_keeps_the_limits(
    costs: list[int], seconds: int, per_job: int
) -> None:
    """In order; there are as many jobs as before, and all but the last have a chunk a GPU."""
    made = points([float(each) for each in costs])
    limits = packing.Limits(float(seconds), 20)
    packed = list(packing.packed(single(made), cost, shared, limits))
    chunks = list(packing.evened(packed, cost, shared, limits, per_job))
    assert [point for chunk in chunks for point in chunk.points] == made
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert all(chunk.seconds <= seconds and len(chunk.points) <= 20 for chunk in chunks)
    assert ceil(len(chunks) / per_job) == ceil(len(packed) / per_job)


def test_the_gpus_of_a_job_get_about_equal_work():
    """Seven chunks' worth for two jobs of four GPUs; what is compared stays on one of them."""
    made = swept(visits=1, models=1, sizes=28)  # of three points each
    limits = packing.Limits(12.0, 1000)
    packed = packing.packed(packing.blocks(made), lambda _: 1.0, shared, limits)
    chunks = list(packing.evened(packed, lambda _: 1.0, shared, limits, 4))
    assert [chunk.seconds for chunk in chunks] == [12.0, 12.0, 12.0, 12.0, 9.0, 9.0, 9.0, 9.0]
    few = packing.packed(packing.blocks(made[:6]), lambda _: 1.0, shared, limits)
    chunks = list(packing.evened(few, lambda _: 1.0, shared, limits, 4))
    assert [chunk.seconds for chunk in chunks] == [3.0, 3.0]


def test_each_worker_of_a_chunk_has_its_start():
    """Of two networks in turns, both workers are there after two points; a new chunk pays again."""
    made = [[(1.0, name)] for name in "abab" + "bbb"]
    limits = packing.Limits(seconds=20.0, start=2.0, worker=5.0)
    chunks = list(packing.packed(made, itemgetter(0), itemgetter(1), limits))
    assert [(len(chunk.points), chunk.seconds) for chunk in chunks] == [(7, 19.0)]
    chunks = list(packing.packed(made, itemgetter(0), itemgetter(1), replace(limits, seconds=16.0)))
    assert [(len(chunk.points), chunk.seconds) for chunk in chunks] == [(4, 16.0), (3, 10.0)]
