"""Errors are for people: each class has its exit code, and a misspelling its nearest name."""

from __future__ import annotations

import pytest

from hpcsweep import errors

CLASSES = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.HpcsweepError)
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_the_tree_at_the_top_of_the_module_is_the_tree_of_the_classes(error):
    """With the exit codes; those that are not shown are the parent's."""
    (line,) = [line for line in errors.__doc__.splitlines() if f" {error.__name__} " in f"{line} "]
    shown = f"[{error.exit_code}]" in line
    assert shown != (error.__base__ in CLASSES and error.exit_code == error.__base__.exit_code)


@pytest.mark.parametrize(
    ("found", "allowed", "told"),
    [
        ("resnet81", ["resnet18", "vgg16"], "; did you mean 'resnet18'?"),
        ("GEMM", ["gemm", "fft"], "; did you mean 'gemm'?"),
        ("l4", ["l40", "L40"], "; did you mean 'l40'?"),
        ("tea", ["coffee"], ""),
        ("tea", [], ""),
    ],
)
def test_the_nearest_spelling_is_offered_whatever_its_case(found, allowed, told):
    """Of two spellings the first; nothing where nothing is near."""
    assert errors.suggest(found, allowed) == told


def test_of_an_exception_one_line_is_told():
    """Its first one, or its type where it says nothing."""
    assert errors.first_line(ValueError("\nbroken\nthere")) == "broken"
    assert errors.first_line(ValueError()) == "ValueError"
