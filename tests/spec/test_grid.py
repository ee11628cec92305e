"""Counting and finding combinations without listing them; the laws are in properties/."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.spec.grid import Grid
from hpcsweep.spec.space import Predicate, Space, When

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULTS = {"model": None, "input_size": 224, "algorithm": "auto", "gpu": None, "seed": 0}


def _is(*values: Any) -> Predicate:
    return Predicate(frozenset(values))


def _kept(grid: Grid) -> list[tuple[Any, ...]]:
    """Return the values of all dimensions of every kept combination."""
    *outer, last = grid.dims
    return [
        (*(value for dim, row in zip(outer, rows, strict=True) for value in dim.row(row)), *found)
        for rows, inner in grid.walk()
        for found in map(last.row, inner)
    ]


@pytest.fixture
def space() -> Space:
    """Return two models, three algorithms, two GPUs, one exclude, one rule."""
    return Space(
        {"model": ["a", "b"], "algorithm": ["gemm", "fft", "winograd"], "gpu": ["l40", "mi250"]},
        DEFAULTS,
        excludes=({"gpu": _is("mi250"), "algorithm": _is("fft")},),
        whens=(When({"model": _is("b")}, {"algorithm": ["gemm", "direct"]}),),
    )


def test_a_rule_replaces_the_values_of_an_axis_where_it_holds(space: Space) -> None:
    """The first model has its three algorithms, the second the two of the rule."""
    assert _kept(Grid(space)) == [
        ("a", "l40", "gemm"),
        ("a", "l40", "fft"),
        ("a", "l40", "winograd"),
        ("a", "mi250", "gemm"),
        ("a", "mi250", "winograd"),
        ("b", "l40", "gemm"),
        ("b", "l40", "direct"),
        ("b", "mi250", "gemm"),
        ("b", "mi250", "direct"),
    ]


def test_counts_are_those_of_the_list(space: Space) -> None:
    """Kept combinations; of each exclude, rule and probe whether it matches something."""
    probes = [{"algorithm": _is("gemm")}, {"gpu": _is("mi250"), "algorithm": _is("fft")}]
    grid = Grid(space, probes=probes)
    assert grid.count == 9
    assert [grid.matches(i) for i in range(4)] == [True, True, True, False]


def test_axes_with_one_value_are_no_dimension_but_fixed(space: Space) -> None:
    """One GPU taken, only the models and algorithms are left to vary."""
    grid = Grid(space, gpu="mi250")
    assert [dim.names for dim in grid.dims] == [("model",), ("algorithm",)]
    assert grid.fixed["gpu"] == "mi250"
    assert _kept(grid) == [("a", "gemm"), ("a", "winograd"), ("b", "gemm"), ("b", "direct")]


def test_merged_values_keep_what_any_of_them_keeps(space: Space) -> None:
    """FFT, which one GPU lacks, stays; every combination is there once."""
    grid = Grid(space, rehearse="cpu")
    assert len(_kept(grid)) == grid.count == 5
    assert ("a", "fft") in _kept(grid)


def test_a_combination_is_found_by_its_values(space: Space) -> None:
    """Kept ones only: neither what is excluded, nor another rule's, nor unknown values."""
    grid = Grid(space)
    point = {**DEFAULTS, "model": "a", "algorithm": "gemm", "gpu": "l40"}
    assert grid.holds(point)
    assert not grid.holds({**point, "algorithm": "fft", "gpu": "mi250"})
    assert not grid.holds({**point, "algorithm": "direct"})
    assert not grid.holds({**point, "algorithm": "auto"})
    assert not grid.holds({**point, "seed": 1})


def test_ten_million_combinations_are_counted_from_a_handful_of_classes() -> None:
    """The number of states depends on the rules and not on the values."""
    space = Space(
        {"model": ["a"], "input_size": range(1, 5001), "seed": range(2000)},
        DEFAULTS,
        excludes=({"input_size": Predicate(bounds=(("gt", 4990),)), "seed": _is(7, 8)},),
    )
    grid = Grid(space)
    assert grid.count == 5000 * 2000 - 10 * 2
    assert len(list(grid.ways(grid.dims))) == 2  # excluded or not


@pytest.mark.parametrize("seed", range(4))
def test_hundreds_of_conditions_match_what_each_of_them_matches_alone(seed: int) -> None:
    """Overlapping ranges, lists and negations on three axes, counted one combination at a time."""
    random = Random(seed)
    axes = {name: [*range(9)] for name in ("model", "input_size", "seed")}
    excludes = [_drawn(random, axes) for _ in range(200)]
    rules = [When({"seed": _is(*range(4))}, {"algorithm": ["gemm", "fft"]})] if seed % 2 else []
    probes = [_drawn(random, axes) for _ in range(20)]
    space = Space(axes, DEFAULTS, excludes=tuple(excludes), whens=tuple(rules))
    listed = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    ways = {i: 2 if rules and point["seed"] < 4 else 1 for i, point in enumerate(listed)}
    hit = [[i for i, point in enumerate(listed) if _met(e, point)] for e in excludes]
    kept = set(ways).difference(*hit)
    grid = Grid(space, probes=probes)
    assert grid.count == len(_kept(grid)) == sum(ways[i] for i in kept)
    assert [grid.matches(i) for i in range(200)] == [bool(one) for one in hit]
    for i, probe in enumerate(probes, 200 + len(rules)):
        assert grid.matches(i) is any(_met(probe, listed[k]) for k in kept)


def _drawn(random: Random, names: Iterable[str]) -> dict[str, Predicate]:
    """Return a condition on each axis: values, all but a value, or a range."""
    low = random.randrange(8)
    tests = [
        _is(*random.sample(range(9), 3)),
        Predicate(frozenset({low}), negate=True),
        Predicate(bounds=(("ge", low), ("lt", low + random.uniform(0, 4)))),
        Predicate(bounds=(("gt", low + 4), ("le", 7.5))),
    ]
    return {name: random.choice(tests) for name in names}


def _met(condition: dict[str, Predicate], point: dict[str, int]) -> bool:
    return all(test(point[name]) for name, test in condition.items())


def test_without_axes_there_is_no_combination() -> None:
    """Not even the one that has all defaults."""
    grid = Grid(Space({}, DEFAULTS))
    assert grid.count == 0
    assert _kept(grid) == []
    assert not grid.holds(DEFAULTS)
