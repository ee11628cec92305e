"""Counting and finding combinations without listing them; the laws are in properties/."""

from __future__ import annotations

from typing import Any

import pytest

from hpcsweep.spec.grid import Grid
from hpcsweep.spec.space import Predicate, Space, When

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
        ("a", "gemm", "l40"),
        ("a", "gemm", "mi250"),
        ("a", "fft", "l40"),
        ("a", "winograd", "l40"),
        ("a", "winograd", "mi250"),
        ("b", "gemm", "l40"),
        ("b", "gemm", "mi250"),
        ("b", "direct", "l40"),
        ("b", "direct", "mi250"),
    ]


def test_counts_are_those_of_the_list(space: Space) -> None:
    """Kept combinations, and what each rule matched."""
    grid = Grid(space, probes=[{"algorithm": _is("gemm")}])
    assert grid.count == 9
    assert (grid.excluded_by(0), grid.set_by(0), grid.probed(0)) == (1, 4, 4)


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
    assert len(list(grid.ways(grid.dims))) == 4  # excluded or not, by each of the two axes


def test_without_axes_there_is_no_combination() -> None:
    """Not even the one that has all defaults."""
    grid = Grid(Space({}, DEFAULTS))
    assert grid.count == 0
    assert _kept(grid) == []
    assert not grid.holds(DEFAULTS)
