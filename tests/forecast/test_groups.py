"""Which points belong together, and where they lie."""

from __future__ import annotations

import sizes
from hpcsweep.forecast import groups
from hpcsweep.point import Point


def test_points_that_differ_in_size_and_batch_alone_are_one_group():
    """Another algorithm is another group; its name says which."""
    found = groups.groups_of(sizes.points([32, 64], [1, 8], ["auto", "gemm"]))
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
    assert {one.name: one.ids for one in groups.groups_of(made)} == {
        "net auto num_threads 1": ["01", "11"],
        "net auto num_threads 2": ["02", "12"],
    }


def test_only_what_varies_has_a_place():
    """A size counts twice, since pixels are its square."""
    (one,) = groups.groups_of(sizes.points([32, 64]))
    assert one.places.tolist() == [[10.0], [12.0]]
    (both,) = groups.groups_of(sizes.points([32, 64], [1, 2]))
    assert both.places[both.among({"auto-64-2"})].tolist() == [[12.0, 1.0]]
    (single,) = groups.groups_of(sizes.points([32]))
    assert single.places.shape == (1, 0)


def test_what_is_as_large_as_a_point_is_so_along_each_axis():
    """Repetitions, too; none is as large as nothing."""
    (one,) = groups.groups_of(sizes.points([32, 64, 128], [1, 2]))

    assert one.as_large_as({"auto-64-2"}) == {"auto-64-2", "auto-128-2"}
    assert one.as_large_as({"auto-128-1", "auto-64-2"}) >= {"auto-128-1", "auto-64-2"}
    assert one.as_large_as({"another"}) == set()
    same = [Point("inference", {"input_size": 32, "seed": n}, point_id=f"{n}") for n in range(3)]
    assert groups.groups_of(same)[0].as_large_as({"1"}) == {"0", "1", "2"}


def test_ranks_are_even_whatever_the_values():
    """In each axis, for sizes at any distances."""
    (one,) = groups.groups_of(sizes.points([32, 500, 64, 40, 41], [1, 8, 64]))
    assert {*one.ranks[:, 0]} == {0, 0.25, 0.5, 0.75, 1}
    assert {*one.ranks[:, 1]} == {0, 0.5, 1}
    assert one.ranks[one.among({"auto-41-8"})].tolist() == [[0.5, 0.5]]
    (single,) = groups.groups_of(sizes.points([32]))
    assert single.ranks.shape == (1, 0)
