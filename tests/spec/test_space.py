"""Ranges, and what a constraint asks of one axis."""

from __future__ import annotations

import pytest

from hpcsweep.spec.space import Predicate, Space, Spread, When

DEFAULTS = {"model": None, "input_size": 224, "batch_size": 1, "gpu": None}


def test_a_spread_holds_its_ends_and_even_steps_between_them() -> None:
    """The seed's hundred sizes, to the integer."""
    sizes = Spread(224, 512, 100)
    assert list(sizes) == [224 + int(i * (512 - 224) / 99) for i in range(100)]
    assert list(sizes) == [sizes[i] for i in range(100)] == sizes[:]


@pytest.mark.parametrize(("start", "stop", "num"), [(1, 9, 5), (9, 1, 5), (7, 7, 1), (3, 90, 1)])
def test_a_spread_finds_exactly_its_own_values(start: int, stop: int, num: int) -> None:
    """Membership and index agree with the list, downwards too."""
    spread = Spread(start, stop, num)
    values = list(spread)
    assert [value in spread for value in range(100)] == [value in values for value in range(100)]
    assert [spread.index(value) for value in values] == list(range(num))
    assert "7" not in spread


def test_a_spread_of_ten_to_the_eleven_values_costs_nothing() -> None:
    """Length, ends and membership are computed, not enumerated."""
    spread = Spread(0, 2 * 10**11 - 2, 10**11)
    assert len(spread) == 10**11
    assert spread[-1] == 2 * 10**11 - 2
    assert 10**11 + 1 not in spread
    assert 10**11 in spread


def test_an_index_outside_a_spread_is_an_error() -> None:
    """As with any sequence, so that loops over it end."""
    with pytest.raises(IndexError):
        Spread(1, 9, 5)[5]


@pytest.mark.parametrize(
    ("test", "passes", "fails"),
    [
        (Predicate(frozenset({"gemm", "fft"})), ["gemm", "fft"], ["auto", None, {"conv1": "gemm"}]),
        (Predicate(frozenset({"gemm"}), negate=True), ["auto", {"conv1": "gemm"}], ["gemm"]),
        (Predicate(bounds=(("ge", 224), ("lt", 300))), [224, 299], [223, 300, None]),
        (Predicate(frozenset({None})), [None], [1]),
    ],
)
def test_a_constraint_takes_values_lists_their_negation_and_comparisons(
    test: Predicate, passes: list[object], fails: list[object]
) -> None:
    """A map of algorithms is no listed value; an unset number compares with nothing."""
    assert all(test(value) for value in passes)
    assert not any(test(value) for value in fails)


def test_the_model_varies_slowest_and_zipped_axes_move_as_one() -> None:
    """Groups come in order of declaration, but for the model."""
    axes = {"batch_size": [1, 2], "gpu": ["l40"], "model": ["a"], "input_size": [8, 16]}
    space = Space(axes, DEFAULTS, zips=(("batch_size", "input_size"),))
    assert space.groups() == [("model",), ("batch_size", "input_size"), ("gpu",)]
    assert space.size() == 2


def test_an_axis_that_rules_set_ranges_over_all_of_its_sources() -> None:
    """Its own values (or the default) come first, then each rule's."""
    rule = When({"model": Predicate(frozenset({"a"}))}, {"batch_size": [4, 8]})
    space = Space({"model": ["a", "b"]}, DEFAULTS, whens=(rule,))
    assert space.names() == ["model", "batch_size"]
    assert list(space.values("batch_size")) == [1, 4, 8]
    assert space.conditional() == ["batch_size"]
