"""How mistakes are told, and the JSON Schemas; what each mistake is told is in test_sweep_file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from hpcsweep.catalog import AXES, ON_NODE, SETTINGS, VISIT
from hpcsweep.errors import SpecError
from hpcsweep.spec import profile, sweep_file, sweep_keys
from hpcsweep.spec.document import read_document
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


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


def complaints(folder: Path, text: str) -> list[str]:
    """Return the lines about a sweep file, without its path."""
    path = folder / "a.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        sweep_file.load(path)
    return str(caught.value).replace(f"{path}:", "").splitlines()


def test_every_mistake_has_a_line(tmp_path: Path) -> None:
    """In order of the file, whatever order the fields have; of very many, the first ones."""
    found = complaints(tmp_path, f"point_timeout: x\nzip: 1\n{HEAD}name: 5\n")
    assert [line[:9] for line in found] == ["1: point_", "2: zip: f", "6: name: "]
    found = complaints(tmp_path, HEAD + "".join(f"key{number}: 1\n" for number in range(30)))
    assert (len(found), found[-1]) == (21, "and 10 more")


def test_a_misspelt_key_comes_before_the_one_that_is_missing_for_it(tmp_path: Path) -> None:
    """The second complaint follows from the first, and is not told."""
    (found,) = complaints(tmp_path, "workload: noop\ninclude: [{modl: a}]\n")
    assert found.endswith("did you mean 'model'?")


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
    assert list(axes) == sorted(AXES.keys() - {VISIT, ON_NODE})  # a file says `repeats`
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
