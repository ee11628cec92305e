"""What a sweep declares, and what a constraint asks of one axis."""

from __future__ import annotations

import pytest

from hpcsweep.spec.space import Predicate, Space, When

DEFAULTS = {"model": None, "input_size": 224, "batch_size": 1, "gpu": None}


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
