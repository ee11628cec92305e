"""Counting and finding combinations without listing them; the laws are in properties/."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.spec.grid import grid_of
from hpcsweep.spec.space import Predicate, Space, When

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULTS = {"model": None, "input_size": 224, "algorithm": "auto", "gpu": None, "seed": 0}


def _is(*values: Any) -> Predicate:
    return Predicate(frozenset(values))


def test_the_time_depends_on_rules_and_points_and_not_on_combinations() -> None:
    """Of ten to the ten combinations, an exclude leaves twenty, which are found at once."""
    axes = {"model": ["a"], "input_size": range(100_000), "seed": range(100_000)}
    few = {"input_size": Predicate(bounds=(("lt", 99_998),))}
    rest = {"seed": Predicate(bounds=(("ge", 10),))}
    grid = grid_of(Space(axes, DEFAULTS, excludes=(few, rest)))
    assert grid.count == len([*grid.walk()]) == 20
    grid = grid_of(Space(axes, DEFAULTS, excludes=({**few, **rest},)))
    assert grid.count == 10**10 - 99_998 * 99_990


@pytest.mark.parametrize("seed", range(2))
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
    assert grid.count == len([*grid.walk()]) == sum(ways[i] for i in kept)
    met = grid.met()
    assert [bool(met >> i & 1) for i in range(200)] == [bool(one) for one in hit]
    for one in more:
        assert grid_of(space, only=one).count == sum(ways[i] for i in kept if _met(one, listed[i]))


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


def test_many_rules_of_the_same_axes_take_no_longer() -> None:
    """Values that all rules have stand once in the grid, and later axes decide between them."""
    rules = [
        When({"input_size": _is(size)}, {"seed": [1, 2, size], "algorithm": ["a"]})
        for size in range(60)
    ]
    axes = {"model": ["a"], "seed": [0], "algorithm": ["b"], "input_size": range(61)}
    assert grid_of(Space(axes, DEFAULTS, whens=tuple(rules))).count == 60 * 3 - 2 + 1
