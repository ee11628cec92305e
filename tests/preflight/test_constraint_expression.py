"""Constraint expressions: names, and which nodes fit, as Slurm reads them."""

from __future__ import annotations

import pytest

from hpcsweep.preflight import constraint_expression


@pytest.mark.parametrize(
    ("expression", "node", "fit"),
    [
        ("a", "a", True),
        ("a&b", "a", False),
        ("a,b", "ab", True),
        ("a|b", "b", True),
        ("[a|b]", "b", True),
        ("(a|b)&c", "bc", True),
        ("(a|b)&c", "b", False),
        # Measured on Slurm 22.05: no operator binds more tightly than another.
        ("a|b&c", "a", False),
        ("b&c|a", "a", True),
        ("a*2", "a", True),
        ("[a*1&b*2]", "b", True),
        ("[a*1&b*2]", "c", False),
    ],
)
def test_a_node_fits_as_slurm_says(expression: str, node: str, fit: bool):  # noqa: FBT001
    """Each letter is a feature of the node."""
    assert constraint_expression.fits(expression, set(node)) is fit


@pytest.mark.parametrize("expression", ["a|", "|a", "(a", "a)", "a&&b", "a**", "[a)", "a(b)", ""])
def test_what_is_no_expression_is_told_with_the_forms(expression: str):
    """The complaint says how expressions are written."""
    with pytest.raises(ValueError, match=r"written as a, a&b, a\|b"):
        constraint_expression.fits(expression, {"a"})


def test_names_are_found_whatever_is_around_them():
    """Counts are no names; hyphens and dots are part of one."""
    assert constraint_expression.names("[gpu-a*2&b.1*1]|(c,d)&c") == ("gpu-a", "b.1", "c", "d")


def test_only_whole_names_are_replaced():
    """`a100` stays where `a` is written anew."""
    assert constraint_expression.replaced("[a|a100]&a", "a", "b") == "[b|a100]&b"
