"""Whatever a file holds, it is read, or refused in our own words: a place and a line or two."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcsweep.catalog import ALGORITHMS, AXES, SETTINGS, WORKLOADS
from hpcsweep.errors import BadInput, ProfileError, SpecError
from hpcsweep.spec import document, profile, sweep_file, sweep_keys
from hpcsweep.spec.document import MOST_SHOWN
from hpcsweep.spec.expansion import expand
from paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SWEEP_KEYS = list(sweep_keys.SweepFile.model_fields)
PROFILE_KEYS = list(profile.ProfileFile.model_fields)
WORDS = [*AXES, *SETTINGS, *ALGORITHMS, *WORKLOADS, *SWEEP_KEYS, "if", "not", "lt", "how", "when"]
WORDS += [
    "start",
    "stop",
    "num",
    "step",
    "resnet18",
    "vit_b_16",
    "l40",
    "a",
    "",
    " ",
    "é\n",
    "..",
    "/",
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.just(10**17)
    | st.sampled_from([0.5, 1e300, 224.0, -1.0])
    | st.sampled_from(WORDS)
)
keys = st.sampled_from(WORDS) | st.sampled_from(PROFILE_KEYS)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


def _shaped(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), anything, max_size=5)


axes = st.dictionaries(
    st.sampled_from([*AXES, "modl"]),
    st.lists(scalars, max_size=3)
    | st.fixed_dictionaries(
        {"start": scalars, "stop": scalars}, optional={"num": scalars, "step": scalars}
    )
    | anything,
    max_size=4,
)
sweeps = st.fixed_dictionaries(
    {"workload": st.sampled_from([*WORKLOADS]), "axes": axes},
    optional={
        "zip": st.lists(st.lists(st.sampled_from(list(AXES)), max_size=3), max_size=2),
        "exclude": st.lists(_shaped(list(AXES)), max_size=2),
        "include": st.lists(_shaped(list(AXES)), max_size=2),
        "when": st.lists(
            st.fixed_dictionaries({"if": _shaped(list(AXES)), "axes": axes}), max_size=2
        ),
        "measure": _shaped(list(SETTINGS)),
        "name": scalars,
        "point_timeout": scalars,
    },
)


def _read(load: Callable[[Path], Any], path: Path, error: type[BadInput]) -> Any:
    """Return what was loaded, or None where it was refused as it should be."""
    try:
        return load(path)
    except error as refused:
        text = str(refused)
        lines = text.splitlines()
        assert lines[0].startswith(str(path))
        named = [line for line in lines if line.startswith(str(path))]
        # a line per mistake, which has one more line at most, and the number of those not shown
        assert len(lines) <= 2 * len(named) + 1, text
        assert len(named) <= MOST_SHOWN, text
        return None


@pytest.mark.slow
@given(data=st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    """Of sweeps and of profiles."""
    path = tmp_path / "drawn.yaml"
    path.write_bytes(data)
    assert _read(sweep_file.load, path, SpecError) is None
    _read(profile.load, path, ProfileError)


@given(data=anything | _shaped(SWEEP_KEYS) | sweeps)
def test_any_data_is_a_sweep_or_refused(tmp_path: Path, data: Any) -> None:
    """A sweep that was accepted has points, and can be told as JSON."""
    path = tmp_path / "drawn.yaml"
    path.write_text(json.dumps(data))
    sweep = _read(sweep_file.load, path, SpecError)
    if sweep is not None:
        expansion = expand(sweep)
        assert len(expansion) > 0
        record = expansion.to_json(limit=3)
        json.dumps({**record, "points": [*record["points"]]}, allow_nan=False)


def _told(model: type[sweep_keys.SweepFile], data: Any) -> str | None:
    """Return what a model reads, None where it refuses."""
    try:
        file = model.model_validate(data)
    except ValidationError:
        return None
    return repr({name: getattr(file, name) for name in sorted(file.model_fields_set)})


@pytest.mark.slow
@given(data=anything | _shaped(SWEEP_KEYS) | sweeps)
def test_the_model_of_some_axes_reads_what_the_whole_one_reads(tmp_path: Path, data: Any) -> None:
    """A file without mistakes is checked against a model of its own axes only."""
    path = tmp_path / "drawn.yaml"
    path.write_text(json.dumps(data))
    try:
        doc = document.read_document(path, SpecError)
    except SpecError:
        return
    names = frozenset(AXES).intersection(re.findall(r'"(\w+)": ', json.dumps(data)))
    given = doc.data.get("workload")
    # it may be a list or a map; the axes of a command are its own
    workload = given if given in [*WORKLOADS] and given != "command" else ""
    whole = _told(sweep_keys.model(workload), doc.data)
    assert _told(sweep_keys.model(workload, names), doc.data) == whole


@given(data=_shaped(PROFILE_KEYS))
def test_any_data_is_a_profile_or_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    """A profile that was accepted can be written down."""
    path = tmp_path / "drawn.yaml"
    path.write_text(json.dumps(data))
    found = _read(profile.load, path, ProfileError)
    if found is not None:
        json.dumps(found.model_dump(mode="json"), allow_nan=False)


@given(data=st.data())
def test_a_shipped_file_with_one_part_broken_is_read_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Characters lost, doubled or replaced anywhere, as an editor or a merge leaves them."""
    files = sorted([*ROOT.glob("sweeps/*.yaml"), *ROOT.glob("cluster_profiles/*.yaml")])
    original = data.draw(st.sampled_from(files))
    text = original.read_text()
    at = data.draw(st.integers(0, len(text) - 1))
    cut = data.draw(st.integers(0, 12))
    text = (
        text[:at] + data.draw(st.text("\t\n -[]{}:,&*!|>'\"%@`#ax1", max_size=4)) + text[at + cut :]
    )
    path = tmp_path / original.name
    path.write_text(text)
    load, error = (
        (sweep_file.load, SpecError)
        if original.parent.name == "sweeps"
        else (profile.load, ProfileError)
    )
    _read(load, path, error)
    path.unlink()  # or the next drawn profile would extend this one


@pytest.mark.parametrize("depth", [40, 20_000])
@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_bottomless_nesting_is_refused(tmp_path: Path, depth: int, opening: str) -> None:
    """Without a recursion error."""
    path = tmp_path / "deep.yaml"
    path.write_text("axes: " + ("\n" if opening == "- " else "") + opening * depth)
    assert _read(sweep_file.load, path, SpecError) is None
