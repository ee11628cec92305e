"""pydantic's findings in our words, about a model made for the purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hpcsweep.errors import ProfileError
from hpcsweep.spec import document
from hpcsweep.spec.validation import check, integral

if TYPE_CHECKING:
    from pathlib import Path


class Wheel(BaseModel):
    """A part of a part."""

    model_config = ConfigDict(extra="forbid", strict=True)
    spokes: Annotated[int, BeforeValidator(integral), Field(ge=3, description="how many")]


class Bicycle(BaseModel):
    """A file with every kind of field."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)
    color: Literal["red", "green"] = "red"
    wheels: list[Wheel] = Field(default=[], min_length=0)
    owner: str | None = Field(default=None, alias="belongs to")
    weight: Annotated[float, Field(gt=0)] = 9.5
    bell: bool = True
    lights: dict[str, str] = {}


def _check(folder: Path, text: str) -> Bicycle:
    path = folder / "a.yaml"
    path.write_text(text)
    return check(Bicycle, document.read(path, ProfileError))


def test_what_fits_is_returned(tmp_path: Path) -> None:
    """Whole floats are integers, aliases are the file's keys, the rest has defaults."""
    found = _check(tmp_path, "wheels: [{spokes: 32.0}]\nbelongs to: me\nweight: 8\n")
    assert (found.wheels[0].spokes, found.owner, found.weight) == (32, "me", 8.0)
    assert isinstance(found.wheels[0].spokes, int)
    assert found.color == "red"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("colour: red", "1: colour: unknown key, allowed are color, wheels, belongs to, weight"),
        ("colour: red", "; did you mean 'color'?"),
        ("owner: me", "1: owner: unknown key"),
        ("color: rd", "1: color: found 'rd', allowed are red, green; did you mean 'red'?"),
        ("color:", "1: color: found nothing, allowed are red, green"),
        ("wheels:\n- {spokes: 9, spoke: 9}", "2: wheels[0].spoke: unknown key, allowed are spokes"),
        ("wheels:\n- {}", "2: wheels[0].spokes: is missing: how many"),
        ("wheels:\n- {spokes: 9}\n- {spokes: 2}", "3: wheels[1].spokes: found 2, needs at least 3"),
        ("wheels: [{spokes: 9.5}]", "wheels[0].spokes: found 9.5, needs a whole number"),
        ("wheels: [{spokes: true}]", "wheels[0].spokes: found true, needs a whole number"),
        ("wheels: [{spokes: '9'}]", "wheels[0].spokes: found '9', needs a whole number"),
        ("wheels: {spokes: 9}", "wheels: found a map, needs a list"),
        ("wheels: [9]", "wheels[0]: found 9, needs a map of keys to values"),
        ("belongs to: 5", "1: belongs to: found 5, needs text; quote it if it is"),
        ("weight: 0", "weight: found 0, needs more than 0"),
        ("weight: light", "weight: found 'light', needs a number"),
        ("bell: yes", "bell: found 'yes', needs true or false"),
        ("lights: [front]", "lights: found a list, needs a map of keys to values"),
        ("lights: {front: 5}", "1: lights.front: found 5, needs text"),
    ],
)
def test_what_does_not_fit_is_named_found_and_told_what_it_needs(
    tmp_path: Path, text: str, wanted: str
) -> None:
    """One line, in the words of the file and not of the library."""
    with pytest.raises(ProfileError) as caught:
        _check(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'a.yaml'}:")
    assert wanted in said
    assert len(said.splitlines()) == 1


def test_every_mistake_has_a_line(tmp_path: Path) -> None:
    """In order of the file, whatever order the fields have."""
    with pytest.raises(ProfileError) as caught:
        _check(tmp_path, "bell: 1\nweight: x\ncolor: blue\n")
    first, second, third = str(caught.value).splitlines()
    assert ":1: bell: found 1" in first
    assert ":2: weight: found 'x'" in second
    assert ":3: color: found 'blue'" in third


def test_of_very_many_mistakes_the_first_ones_are_told(tmp_path: Path) -> None:
    """A file of another kind does not fill the terminal."""
    with pytest.raises(ProfileError) as caught:
        _check(tmp_path, "".join(f"key{number}: 1\n" for number in range(30)))
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1]) == (21, "and 10 more")


def test_a_misspelt_key_comes_before_the_one_that_is_missing_for_it(tmp_path: Path) -> None:
    """The second complaint follows from the first, and is not told."""
    with pytest.raises(ProfileError, match=r"did you mean 'spokes'\?$"):
        _check(tmp_path, "wheels: [{spoks: 9}]\n")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(224.0, 224), (1e300, 1e300), (224.5, 224.5), (True, True), ("7", "7"), (None, None)],
)
def test_only_whole_floats_become_integers(value: object, wanted: object) -> None:
    """Everything else is left for the type to judge."""
    found = integral(value)
    assert found == wanted
    assert isinstance(found, float) == isinstance(wanted, float)
