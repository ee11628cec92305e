"""Counting and finding combinations without listing them; the laws are in properties/."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.spec.grid import Grid, grid_of
from hpcsweep.spec.space import Predicate, Space, When

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULTS = {"model": None, "input_size": 224, "algorithm": "auto", "gpu": None, "seed": 0}


def _is(*values: Any) -> Predicate:
    return Predicate(frozenset(values))


def _kept(grid: Grid, *names: str) -> list[tuple[Any, ...]]:
    """Return the values of some axes of every kept combination."""
    places = [
        (i, dim.names.index(n)) for n in names for i, dim in enumerate(grid.dims) if n in dim.names
    ]
    return [tuple(grid.dims[i].columns[j][rows[i]] for i, j in places) for rows in grid.walk()]


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
    assert _kept(grid_of(space), "model", "gpu", "algorithm") == [
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
    """Kept combinations, and of each exclude and rule whether it matches something."""
    grid = grid_of(space)
    assert grid.count == 9
    assert grid.met() & 0b11 == 0b11
    useless = {"gpu": _is("mi250"), "algorithm": _is("direct"), "model": _is("a")}
    grid = grid_of(replace(space, excludes=(*space.excludes, useless)))
    assert grid.count == 9
    assert grid.met() & 0b111 == 0b101


def test_one_more_condition_leaves_the_combinations_that_meet_it(space: Space) -> None:
    """One GPU taken, only the models and algorithms are left to vary."""
    grid = grid_of(space).where({"gpu": _is("mi250")})
    left = [("a", "gemm"), ("a", "winograd"), ("b", "gemm"), ("b", "direct")]
    assert _kept(grid, "model", "algorithm") == left
    assert grid.count == 4
    first = grid.first()
    assert first == {**DEFAULTS, "model": "a", "gpu": "mi250", "algorithm": "gemm"}
    assert grid.where({"algorithm": _is("fft")}).first() is None


def test_merged_values_keep_what_any_of_them_keeps(space: Space) -> None:
    """FFT, which one GPU lacks, stays; every combination is there once."""
    grid = grid_of(space).on("cpu")
    kept = _kept(grid, "model", "algorithm")
    assert len(kept) == len(set(kept)) == grid.count == 5
    assert ("a", "fft") in kept


def test_a_combination_is_found_by_its_values(space: Space) -> None:
    """Kept ones only: neither what is excluded, nor another rule's, nor unknown values."""
    grid = grid_of(space)
    point = {**DEFAULTS, "model": "a", "algorithm": "gemm", "gpu": "l40"}
    assert grid.holds(point)
    assert not grid.holds({**point, "algorithm": "fft", "gpu": "mi250"})
    assert not grid.holds({**point, "algorithm": "direct"})
    assert not grid.holds({**point, "algorithm": "auto"})
    assert not grid.holds({**point, "seed": 1})


def test_the_time_depends_on_rules_and_points_and_not_on_combinations() -> None:
    """Of ten to the ten combinations, an exclude leaves twenty, which are found at once."""
    axes = {"model": ["a"], "input_size": range(100_000), "seed": range(100_000)}
    few = {"input_size": Predicate(bounds=(("lt", 99_998),))}
    rest = {"seed": Predicate(bounds=(("ge", 10),))}
    grid = grid_of(Space(axes, DEFAULTS, excludes=(few, rest)))
    assert grid.count == len(_kept(grid, "seed")) == 20
    grid = grid_of(Space(axes, DEFAULTS, excludes=({**few, **rest},)))
    assert grid.count == 10**10 - 99_998 * 99_990


@pytest.mark.parametrize("seed", range(4))
def test_hundreds_of_conditions_match_what_each_of_them_matches_alone(seed: int) -> None:
    """Overlapping ranges, lists and negations on three axes, counted one combination at a time."""
    random = Random(seed)
    axes = {name: [*range(9)] for name in ("model", "input_size", "seed")}
    excludes = [_drawn(random, axes) for _ in range(200)]
    rules = [When({"seed": _is(*range(4))}, {"algorithm": ["gemm", "fft"]})] if seed % 2 else []
    more = [_drawn(random, axes) for _ in range(20)]
    space = Space(axes, DEFAULTS, excludes=tuple(excludes), whens=tuple(rules))
    listed = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    ways = {i: 2 if rules and point["seed"] < 4 else 1 for i, point in enumerate(listed)}
    hit = [[i for i, point in enumerate(listed) if _met(e, point)] for e in excludes]
    kept = set(ways).difference(*hit)
    grid = grid_of(space)
    assert grid.count == len(_kept(grid)) == sum(ways[i] for i in kept)
    met = grid.met()
    assert [bool(met >> i & 1) for i in range(200)] == [bool(one) for one in hit]
    for one in more:
        assert grid.where(one).count == sum(ways[i] for i in kept if _met(one, listed[i]))


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
    grid = grid_of(Space({}, DEFAULTS))
    assert grid.count == 0
    assert _kept(grid) == []
    assert not grid.holds(DEFAULTS)
