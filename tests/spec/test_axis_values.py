"""Values of one axis and conditions on it; whole files are in `test_spec`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.catalog import AXES
from hpcsweep.errors import SpecError
from hpcsweep.spec import axis_values, document
from hpcsweep.spec.space import Spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HAVE = {"input_size": [64, 128], "algorithm": ["gemm", "fft"], "tf32": [False], "model": ["a"]}


@pytest.fixture
def doc(tmp_path: Path) -> document.Document:
    """Return a document for complaints to point into."""
    path = tmp_path / "a.yaml"
    path.write_text("here: 1\n")
    return document.read(path, SpecError)


@pytest.fixture
def condition(doc: document.Document) -> Callable[[dict[str, Any]], Any]:
    """Return the reader of a condition on the axes of `HAVE`."""

    def exists(name: str, value: object) -> list[Any] | None:
        return None if value in HAVE[name] else HAVE[name]

    def read(raw: dict[str, Any]) -> Any:
        return axis_values.condition(doc, (), raw, lambda _, name: AXES[name], exists)

    return read


def _values(doc: document.Document, name: str, raw: object, *, any_model: bool = False) -> Any:
    return axis_values.values(doc, ("axes", name), AXES[name], raw, any_model=any_model)


def test_ranges_stay_ranges(doc: document.Document) -> None:
    """What is lazy in the file is lazy in memory."""
    assert _values(doc, "seed", {"start": 0, "stop": 9, "step": 3}) == range(0, 10, 3)
    sizes = _values(doc, "input_size", {"start": 224, "stop": 512, "num": 100})
    assert isinstance(sizes, Spread)
    assert (sizes[0], sizes[1], sizes[-1], len(sizes)) == (224, 226, 512, 100)


def test_a_range_of_one_value_is_its_start(doc: document.Document) -> None:
    """By number one, whatever the stop is; by step, where the next one is beyond."""
    assert list(_values(doc, "seed", {"start": 7, "stop": 7, "num": 1})) == [7]
    assert list(_values(doc, "seed", {"start": 7, "stop": 9, "num": 1})) == [7]
    assert list(_values(doc, "seed", {"start": 7, "stop": 9, "step": 5})) == [7]


@pytest.mark.parametrize("last", ["num", "step"])
def test_a_million_values_are_the_most_of_an_axis(doc: document.Document, last: str) -> None:
    """One more is refused before any is made."""
    number = {"num": 1_000_000, "step": 1}[last]
    assert len(_values(doc, "seed", {"start": 1, "stop": 1_000_000, last: number})) == 1_000_000
    more = number + 1 if last == "num" else number
    with pytest.raises(SpecError, match="1,000,001 values, at most 1,000,000"):
        _values(doc, "seed", {"start": 1, "stop": 1_000_001, last: more})


def test_model_names_are_free_where_nothing_is_built(doc: document.Document) -> None:
    """A no-op names its models as it likes, on one line."""
    assert _values(doc, "model", ["any thing"], any_model=True) == ["any thing"]
    with pytest.raises(SpecError, match="torchvision classifier or package"):
        _values(doc, "model", ["any thing"])
    with pytest.raises(SpecError, match="a model's name"):
        _values(doc, "model", ["two\nlines"], any_model=True)


@pytest.mark.parametrize("name", ["a.b:c", "package:make", "_p.q_1.r:Net50"])
def test_a_factory_is_a_module_and_a_name(doc: document.Document, name: str) -> None:
    """As Python spells them."""
    assert _values(doc, "model", [name]) == [name]


@pytest.mark.parametrize("name", ["a.b", "a b:c", "a:b:c", ":c", "a:", "1a:b", "a..b:c"])
def test_what_python_could_not_import_is_no_factory(doc: document.Document, name: str) -> None:
    """It is told on the login node instead of on the compute node."""
    with pytest.raises(SpecError, match=r"package\.module:factory"):
        _values(doc, "model", [name])


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
    ],
)
def test_a_condition_says_which_values_it_means(
    condition: Callable[[dict[str, Any]], Any], raw: dict[str, Any], passes: Any, fails: Any
) -> None:
    """A value, a list, what is not so, a comparison of numbers."""
    ((_, predicate),) = condition(raw).items()
    assert predicate(passes)
    assert not predicate(fails)


def test_a_condition_on_several_axes_asks_each(
    condition: Callable[[dict[str, Any]], Any],
) -> None:
    """All of them must hold; which, is up to the caller."""
    asked = condition({"algorithm": "gemm", "input_size": {"ge": 64}})
    assert set(asked) == {"algorithm", "input_size"}


def test_a_value_that_the_axis_lacks_is_told_with_those_it_has(
    condition: Callable[[dict[str, Any]], Any],
) -> None:
    """A rule that could never match is a mistake."""
    with pytest.raises(SpecError, match="input_size has no 65, it has 64, 128"):
        condition({"input_size": 65})
    with pytest.raises(SpecError, match="tf32 has no true, it has false"):
        condition({"tf32": True})
