"""Evenly spread parts of lists; how a grid is sampled is in the laws of expansion."""

from __future__ import annotations

from operator import itemgetter

import pytest

from hpcsweep.spec.grid import Grid
from hpcsweep.spec.sampling import Sample, spread, thin
from hpcsweep.spec.space import Predicate, Space

DEFAULTS = {"model": None, "input_size": 224, "batch_size": 1}


@pytest.mark.parametrize(
    ("n", "wanted"),
    [(1, [0]), (2, [0, 9]), (3, [0, 4, 9]), (4, [0, 3, 6, 9]), (10, list(range(10)))],
)
def test_a_spread_part_has_both_ends_and_one_is_the_first(n: int, wanted: list[int]) -> None:
    """More than there is gives everything."""
    assert spread(range(10), n) == wanted
    assert spread(range(10), n + 100) == list(range(10))


def test_items_are_thinned_key_by_key_and_keep_their_order() -> None:
    """Two sizes, and of each of them two batches; values count once however often they occur."""
    items = [(size, batch) for batch in (1, 2, 3) for size in (8, 16, 24)]
    kept = thin(items, [itemgetter(0), itemgetter(1)], 2)
    assert kept == [(8, 1), (24, 1), (8, 3), (24, 3)]


def test_each_combination_is_sampled_from_what_it_has_left() -> None:
    """An exclude moves the ends of one model and not those of the other."""
    big = {"model": Predicate(frozenset({"b"})), "input_size": Predicate(bounds=(("gt", 16),))}
    axes = {"model": ["a", "b"], "input_size": [8, 12, 16, 24, 32]}
    sample = Sample(Grid(Space(axes, DEFAULTS, excludes=(big,))), ["input_size"], 2)
    rows = [(model, size) for (model,), sizes in sample.walk() for size in sizes]
    assert rows == [(0, 0), (0, 4), (1, 0), (1, 2)]
    assert sample.count == 4


def test_a_sample_of_ten_million_combinations_is_chosen_without_listing_them() -> None:
    """Two numeric axes of thousands of values each, under a constraint that ties them."""
    both = {
        "input_size": Predicate(bounds=(("gt", 4000),)),
        "batch_size": Predicate(bounds=(("gt", 9),)),
    }
    axes = {
        "model": ["a"],
        "input_size": range(1, 5001),
        "batch_size": range(1, 2001),
    }
    grid = Grid(Space(axes, DEFAULTS, excludes=(both,)))
    sample = Sample(grid, ["input_size", "batch_size"], 2)
    rows = [(size, batch) for (size,), batches in sample.walk() for batch in batches]
    assert rows == [(0, 0), (0, 1999), (4999, 0), (4999, 8)]
