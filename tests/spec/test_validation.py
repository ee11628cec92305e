"""pydantic's findings in our words, about a model made for the purpose."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hpcsweep.catalog import AXES, SETTINGS, VISIT
from hpcsweep.errors import ProfileError, SpecError
from hpcsweep.spec import document, profile, sweep_file, sweep_keys
from hpcsweep.spec.document import read_document
from hpcsweep.spec.validation import check, integral
from paths import ROOT

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
    return check(Bicycle, document.read_document(path, ProfileError))


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
    [(224.0, 224), (1e300, 1e300), (224.5, 224.5), (True, True), ("x", "x"), (None, None)],
)
def test_only_whole_floats_become_integers(value: object, wanted: object) -> None:
    """Everything else is left for the type to judge."""
    found = integral(value)
    assert found == wanted
    assert isinstance(found, float) == isinstance(wanted, float)


HEAD = "workload: inference\naxes:\n  model: [resnet18]\n"


def validator(text: str) -> Draft202012Validator:
    """Return a validator of a schema that is one itself."""
    schema = json.loads(text)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def sweeps() -> Draft202012Validator:
    """Return the validator of sweep files."""
    return validator(sweep_keys.schema())


@pytest.fixture(scope="module")
def profiles() -> Draft202012Validator:
    """Return the validator of profiles."""
    return validator(profile.schema())


def data_of(folder: Path, text: str) -> dict[str, Any]:
    """Return a text's data as the loader reads it."""
    path = folder / "a.yaml"
    path.write_text(text)
    return read_document(path, SpecError).data


def test_the_committed_schemas_are_those_of_the_code() -> None:
    """After a change: `python docs/generate.py`."""
    assert (ROOT / "sweeps" / "schema.json").read_text() == sweep_keys.schema()
    assert (ROOT / "cluster_profiles" / "schema.json").read_text() == profile.schema()


@pytest.mark.parametrize("path", sorted(ROOT.glob("sweeps/*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_sweeps_are_valid_and_name_their_schema(
    sweeps: Draft202012Validator, path: Path
) -> None:
    """An editor that opens them completes them."""
    assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")
    sweeps.validate(read_document(path, SpecError).data)


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("cluster_profiles/*.yaml")), ids=lambda path: path.stem
)
def test_the_shipped_profiles_are_valid_and_name_their_schema(
    profiles: Draft202012Validator, path: Path
) -> None:
    """An editor that opens them completes them."""
    assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")
    profiles.validate(read_document(path, SpecError).data)


@pytest.mark.parametrize(
    "more",
    [
        "",
        "  algorithm: [gemm, {'layer1.*': fft, default: auto}]\n",
        "  seed: {start: 0, stop: 9, step: 3}\n  num_threads: [null, 2]\n",
        "  model_: []\n".replace("model_: []", "weights: [random, some/path.pt]"),
        "  gpu: [l40, mine]\nwhen:\n  - {if: {gpu: [l40]}, axes: {input_size: [32]}}\n",
        "  seed: [1, 2]\nexclude:\n  - {seed: {gt: 1, le: 5}}\n",
        "  dtype: [float32, float16]\nexclude:\n  - {dtype: {not: [float32]}}\n",
        "include:\n  - {model: alexnet, algorithm: {default: gemm}}\n",
        "measure: {stop: adaptive, target: 0.02, warmup: 0}\npoint_timeout: 5\n",
    ],
)
def test_what_loads_is_valid(sweeps: Draft202012Validator, tmp_path: Path, more: str) -> None:
    """The schema must not call a right file wrong."""
    data = data_of(tmp_path, HEAD + more)
    sweep_file.load(tmp_path / "a.yaml")
    sweeps.validate(data)


@pytest.mark.parametrize(
    "more",
    [
        "exlude: []\n",
        "  inputsize: [224]\n",
        "  algorithm: [wingrad]\n",
        "  algorithm: [{'*': wingrad}]\n",
        "  dtype: [float23]\n",
        "  batch_size: [true]\n",
        "  batch_size: ['1']\n",
        "  batch_size: [0]\n",
        "  batch_size: []\n",
        "  batch_size: 1\n",
        "  batch_size: {start: 1, stop: 3}\n",
        "  dtype: {start: 1, stop: 3, num: 2}\n",
        "zip: [[model]]\n",
        "zip: [[model, modle]]\n",
        "exclude: [{}]\n",
        "exclude: [{model: {like: resnet}}]\n",
        "include: [{batch_size: 1}]\n",
        "when: [{if: {model: resnet18}}]\n",
        "measure: {warmups: 1}\n",
        "measure: {stop: never}\n",
        "measure: {iterations: 0}\n",
        "point_timeout: 0\n",
        "name: 5\n",
    ],
)
def test_what_an_editor_could_see_is_wrong_is_invalid(
    sweeps: Draft202012Validator, tmp_path: Path, more: str
) -> None:
    """And the loader agrees."""
    data = data_of(tmp_path, HEAD + more)
    assert not sweeps.is_valid(data)
    with pytest.raises(SpecError):
        sweep_file.load(tmp_path / "a.yaml")


def test_every_axis_and_setting_is_completed_with_its_meaning() -> None:
    """What the catalogue knows, the editor shows."""
    schema = json.loads(sweep_keys.schema())
    axes = schema["$defs"]["Axes"]["properties"]
    assert list(axes) == sorted(AXES.keys() - {VISIT})  # a file says `repeats`
    assert all(AXES[name].doc in axes[name]["description"] for name in axes)
    settings = schema["$defs"]["Measure"]["properties"]
    assert {name: item["description"] for name, item in settings.items()} == {
        name: item.doc for name, item in SETTINGS.items()
    }


@pytest.mark.parametrize(
    "text",
    ["gpu: l40\nlaunch: sbatch\n", "launcher: slurm\n", "workers: 0\n", "env: [A]\n", "setup: x\n"],
)
def test_wrong_profiles_are_invalid(
    profiles: Draft202012Validator, tmp_path: Path, text: str
) -> None:
    """A misspelt key, a wrong choice, a wrong type."""
    assert not profiles.is_valid(data_of(tmp_path, text))
