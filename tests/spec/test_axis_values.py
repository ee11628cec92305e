"""Types of an axis's values and of conditions on it; whole files are in `test_sweep_file`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from hpcsweep.catalog import AXES
from hpcsweep.spec.axis_values import condition_on, values_of

if TYPE_CHECKING:
    from hpcsweep.catalog import Axis


def _values(name: str, raw: object, axis: Axis | None = None) -> Any:
    return TypeAdapter(values_of(axis or AXES[name])).validate_python(raw, strict=True)


def _asked(name: str, raw: object) -> Any:
    return TypeAdapter(condition_on(AXES[name])).validate_python(raw, strict=True)


def test_a_range_by_step_is_not_listed() -> None:
    """What is lazy in the file is lazy in memory."""
    assert _values("seed", {"start": 0, "stop": 9, "step": 3}) == range(0, 10, 3)


def test_a_range_of_one_value_is_its_start() -> None:
    """By number one, whatever the stop is; by step, where the next one is beyond."""
    assert list(_values("seed", {"start": 7, "stop": 7, "num": 1})) == [7]
    assert list(_values("seed", {"start": 7, "stop": 9, "num": 1})) == [7]
    assert list(_values("seed", {"start": 7, "stop": 9, "step": 5})) == [7]


@pytest.mark.parametrize("last", ["num", "step"])
def test_a_million_values_are_the_most_of_an_axis(last: str) -> None:
    """One more is refused before any is made."""
    number = {"num": 1_000_000, "step": 1}[last]
    assert len(_values("seed", {"start": 1, "stop": 1_000_000, last: number})) == 1_000_000
    more = number + 1 if last == "num" else number
    with pytest.raises(
        ValueError, match=r"1,000,001 values, at most 1,000,000|or equal to 1000000"
    ):
        _values("seed", {"start": 1, "stop": 1_000_001, last: more})


def test_a_model_is_torchvision_s_or_a_factory() -> None:
    """A word that is neither is refused; as free text it is one line."""
    with pytest.raises(ValueError, match="torchvision classifier, or package"):
        _values("model", ["any thing"])
    free = replace(AXES["model"], kind="str")
    assert _values("model", ["any thing"], free) == ["any thing"]
    with pytest.raises(ValueError, match="needs one line of text"):
        _values("model", ["two\nlines"], free)


@pytest.mark.parametrize("name", ["a.b:c", "package:make", "_p.q_1.r:Net50"])
def test_a_factory_is_a_module_and_a_name(name: str) -> None:
    """As Python spells them."""
    assert _values("model", [name]) == [name]


@pytest.mark.parametrize("name", ["a.b", "a b:c", "a:b:c", ":c", "a:", "1a:b", "a..b:c"])
def test_what_python_could_not_import_is_no_factory(name: str) -> None:
    """It is told on the login node instead of on the compute node."""
    with pytest.raises(ValueError, match=r"package\.module:factory"):
        _values("model", [name])


@pytest.mark.parametrize(
    ("raw", "passes", "fails"),
    [
        ({"algorithm": "gemm"}, "gemm", "fft"),
        ({"algorithm": ["gemm", "fft"]}, "fft", "auto"),
        ({"algorithm": {"not": "gemm"}}, "fft", "gemm"),
        ({"algorithm": {"not": ["gemm", "fft"]}}, "auto", "fft"),
        ({"input_size": {"lt": 65}}, 64, 65),
        ({"input_size": {"gt": 63.5, "le": 64}}, 64, 65),
        ({"input_size": 64.0}, 64, 128),
        ({"tf32": False}, False, True),
        ({"algorithm": {"not": "gemm"}}, {"conv1": "gemm"}, "gemm"),
        ({"num_threads": {"lt": 5}}, 4, None),
        ({"num_threads": [None, 2]}, None, 1),
    ],
)
def test_a_condition_says_which_values_it_means(
    raw: dict[str, Any], passes: Any, fails: Any
) -> None:
    """A value, a list, what is not so, a comparison; no map is listed, nothing is no number."""
    ((name, asked),) = raw.items()
    predicate = _asked(name, asked)
    assert predicate(passes)
    assert not predicate(fails)


@pytest.mark.parametrize("name", AXES)
def test_the_default_of_an_axis_is_one_of_its_values(name: str) -> None:
    """What a sweep leaves out, it could have written; a model has no default."""
    axis = AXES[name]
    if axis.default is not None:
        assert _values(name, [axis.default]) == [axis.default]
