"""Masks of values and sets of classes, asked for one by one."""

from __future__ import annotations

import pytest

from hpcsweep.spec.masks import Classes, ones, value_masks
from hpcsweep.spec.space import Predicate

TESTS = {
    1: Predicate(bounds=(("ge", 3), ("lt", 6))),
    4: Predicate(bounds=(("gt", 2.5), ("le", 5))),
    5: Predicate(frozenset({0, 5, 9})),
    7: Predicate(frozenset({4}), negate=True),
    8: Predicate(bounds=(("gt", 6), ("lt", 6))),
}


@pytest.mark.parametrize("column", [range(0, 10, 3), range(12), [7, 5, None, 0, 3, 6.0, 5]])
def test_a_value_contradicts_the_conditions_whose_test_it_does_not_pass(column) -> None:
    """Ranges, lists, and what compares with nothing; bits of other axes are always there."""
    expected = [~sum(1 << bit for bit, test in TESTS.items() if not test(v)) for v in column]
    assert list(value_masks(TESTS, column)) == expected


def test_classes_are_counted_as_sets() -> None:
    """The classes that have a bit, in either of two alternatives, and their combinations."""
    classes = Classes({(0b01,): 10, (0b11,): 200, (0b10, 0b01): 3000}, bits=2)
    first, second = classes.layers
    assert [first, second] == [[0b011, 0b110], [0b111, 0b010]]
    assert classes.number(first[0]) == 210
    assert classes.number(classes.all) == 3210
    assert list(ones(0b10110)) == [1, 2, 4]
