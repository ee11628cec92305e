"""Which points belong together, and where they lie."""

from __future__ import annotations

import numpy as np
import pytest

import sizes
from hpcsweep.forecast import groups
from hpcsweep.point import Point


def test_points_that_differ_in_size_and_batch_alone_are_one_group():
    """Another algorithm is another group; its name says which."""
    found = groups.of(sizes.points([32, 64], [1, 8], ["auto", "gemm"]))
    assert [one.name for one in found] == ["net auto", "net gemm"]
    assert [len(one.points) for one in found] == [4, 4]


def test_repetitions_belong_to_the_group_and_a_varied_axis_to_its_name():
    """`seed` repeats a point; the number of threads changes it."""
    axes = {"model": "net", "input_size": 32, "batch_size": 1, "algorithm": "auto"}
    made = [
        Point("inference", {**axes, "seed": seed, "num_threads": count}, point_id=f"{seed}{count}")
        for seed in (0, 1)
        for count in (1, 2)
    ]
    assert {one.name: one.ids for one in groups.of(made)} == {
        "net auto 1": ["01", "11"],
        "net auto 2": ["02", "12"],
    }


def test_only_what_varies_has_a_place():
    """A size counts twice, since pixels are its square."""
    (one,) = groups.of(sizes.points([32, 64]))
    assert one.places.tolist() == [[10.0], [12.0]]
    (both,) = groups.of(sizes.points([32, 64], [1, 2]))
    assert both.places_of(["auto-64-2"]).tolist() == [[12.0, 1.0]]
    (single,) = groups.of(sizes.points([32]))
    assert single.places.shape == (1, 0)


@pytest.mark.parametrize("batches", [(1,), (1, 2, 4, 8)])
def test_points_are_spread_over_every_axis_with_its_ends(batches):
    """Each once, whatever the order of the points."""
    (one,) = groups.of(sizes.points([100, 32, 64, 40, 230], batches))
    chosen = one.places[one.spread()]
    assert np.array_equal(chosen.min(axis=0), one.places.min(axis=0))
    assert np.array_equal(chosen.max(axis=0), one.places.max(axis=0))
    assert len(one.spread()) == len({*one.spread()}) == (5 if len(batches) == 1 else 9)
