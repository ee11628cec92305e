"""Which points belong together, and where they lie."""

from __future__ import annotations

import numpy as np
import pytest

import sizes
from hpcsweep.forecast import curves, groups
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
        "net auto 1": ["01", "11"],
        "net auto 2": ["02", "12"],
    }


def test_only_what_varies_has_a_place():
    """A size counts twice, since pixels are its square."""
    (one,) = groups.groups_of(sizes.points([32, 64]))
    assert one.places.tolist() == [[10.0], [12.0]]
    (both,) = groups.groups_of(sizes.points([32, 64], [1, 2]))
    assert both.places_of(["auto-64-2"]).tolist() == [[12.0, 1.0]]
    (single,) = groups.groups_of(sizes.points([32]))
    assert single.places.shape == (1, 0)


def test_what_is_as_large_as_a_point_is_so_along_each_axis():
    """Repetitions, too; none is as large as nothing."""
    (one,) = groups.groups_of(sizes.points([32, 64, 128], [1, 2]))
    assert one.as_large_as({"auto-64-2"}) == {"auto-64-2", "auto-128-2"}
    assert one.as_large_as(["auto-128-1", "auto-64-2"]) >= {"auto-128-1", "auto-64-2"}
    assert one.as_large_as({"another"}) == set()
    same = [Point("inference", {"input_size": 32, "seed": n}, point_id=f"{n}") for n in range(3)]
    assert groups.groups_of(same)[0].as_large_as({"1"}) == {"0", "1", "2"}


@pytest.mark.parametrize("batches", [(1,), (1, 2, 4, 8)])
def test_points_are_spread_over_every_axis_with_its_ends(batches):
    """Each once, whatever the order of the points."""
    (one,) = groups.groups_of(sizes.points([100, 32, 64, 40, 230], batches))
    chosen = one.places[one.spread()]
    assert np.array_equal(chosen.min(axis=0), one.places.min(axis=0))
    assert np.array_equal(chosen.max(axis=0), one.places.max(axis=0))
    assert len(one.spread()) == len({*one.spread()}) == (5 if len(batches) == 1 else 9)


def test_points_between_the_corners_of_a_plane_are_of_five_sizes_and_five_batches():
    """So a cost that sizes of one kind have is seen."""
    (one,) = groups.groups_of(sizes.points(range(64, 513, 16), range(1, 33)))
    axes = [one.points[place].axes for place in one.spread()]
    inner = [(a["input_size"], a["batch_size"]) for a in axes if a["input_size"] not in {64, 512}]
    assert [len({*each}) for each in zip(*inner, strict=True)] == [5, 5]
    assert any(size % 64 for size, _ in inner)


def column(*values):
    """Return places on one axis."""
    return np.array(values, float)[:, None]


def test_between_points_of_one_axis_the_curve_over_the_work_decides():
    """The same as an estimate's, and a measured point keeps its time."""
    places, ms = column(1, 3, 4, 8), np.array([2.0, 5.0, 4.0, 30.0])
    wanted = np.linspace(0, 9, 28)
    curve = curves.fit(zip(np.exp2(places[:, 0]), ms, strict=True))
    said = groups.between(places, ms, wanted[:, None])
    assert said == pytest.approx([curve.at(2**one) for one in wanted])
    assert groups.between(places, ms, places) == pytest.approx(ms)


@pytest.mark.parametrize("batch_cost", [0.0, 0.001])
def test_a_plane_of_sizes_and_batches_has_a_cost_of_its_own_and_one_of_the_work(batch_cost):
    """Five points are enough where the work decides; a cost of each image is taken up, mostly."""
    places = np.array([[10, 0], [14, 0], [10, 4], [14, 4], [12, 2]], float)
    wanted = np.array([[11, 3], [13, 1], [15, 5]], float)

    def law(where):
        return 2 + 1e-4 * np.exp2(where.sum(axis=1)) + batch_cost * np.exp2(where[:, 1])

    exact = 1e-6 if batch_cost == 0 else 0.05
    assert groups.between(places, law(places), wanted) == pytest.approx(law(wanted), rel=exact)
    assert groups.between(places, law(places), places) == pytest.approx(law(places))


def test_a_plane_keeps_what_each_axis_alone_changes():
    """Times that are powers of both, which no line over the work meets."""
    places = np.array([[x, y] for x in range(10, 17, 2) for y in range(0, 7, 2)], float)
    wanted = np.array([[11, 3], [13, 1], [15, 5]], float)
    said = groups.between(places, np.exp2(places @ [0.9, 0.7]), wanted)
    assert said == pytest.approx(np.exp2(wanted @ [0.9, 0.7]), rel=0.05)


def test_several_times_of_one_place_count_as_their_mean():
    """Repetitions of a point; the mean is geometric."""
    said = groups.between(column(1, 1, 3), np.array([2.0, 8.0, 4.0]), column(1, 2))
    assert said == pytest.approx([4, 4])


@pytest.mark.parametrize("places", [np.array([[1, 1]], float), np.array([[1, 1], [2, 2], [3, 3]])])
def test_too_few_points_for_a_slope_still_say_something(places):
    """One point, or points on one line of a plane."""
    said = groups.between(places.astype(float), np.full(len(places), 7.0), places[:1] + 1.0)
    assert said == pytest.approx([7.0])


def test_what_lies_beyond_all_points_is_told():
    """Along any axis."""
    places = np.array([[1, 1], [3, 3]], float)
    wanted = np.array([[2, 2], [2, 4], [0.5, 2]])
    assert groups.outside(places, wanted).tolist() == [False, True, True]
    assert not groups.outside(np.zeros((1, 0)), np.zeros((2, 0))).any()
