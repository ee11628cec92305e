"""Manifests are read as they were written; what cannot be read is told with what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep import files
from hpcsweep.errors import ResultsError
from hpcsweep.store import manifest
from hpcsweep.store.manifest import LAYOUT, Manifest, RunSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a manifest lies."""
    folder = tmp_path / "20250304-050607-l40"
    folder.mkdir()
    return folder / "manifest.json"


def test_what_was_written_is_read(path: Path) -> None:
    """With the axes of the points that ran out of memory, and a checksum."""
    wanted = RunSettings(skip_dominated=True, known_oom=({"model": "a", "batch_size": 8},))
    record = Manifest(id=path.parent.name, run=wanted, profile_fields={"wrapper": "nsys"})
    manifest.write_manifest(path, record)
    assert manifest.read_manifest(path) == record
    assert (record.is_profiled, "crc" in json.loads(path.read_text())) == (True, True)


def test_a_manifest_that_has_next_to_nothing_takes_the_defaults(path: Path) -> None:
    """As one that a person mended; its folder names it."""
    files.write_json(path, {"layout": LAYOUT, "run": {"kill_wait": None}, "of a later one": 1})
    found = manifest.read_manifest(path)
    assert found == Manifest(id="20250304-050607-l40", run=RunSettings())
    assert (found.round, found.is_profiled, found.run.point_timeout) == (0, False, 600.0)


def test_a_newer_layout_is_refused(path: Path) -> None:
    """It says which, and what to do; whatever its keys have become."""
    files.write_json(path, {"layout": LAYOUT + 1, "round": "seven"})
    with pytest.raises(ResultsError, match=r"written by a newer hpcsweep .*update hpcsweep"):
        manifest.read_manifest(path)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"round": "seven"}, "`round` cannot be 'seven'"),
        ({"round": True}, "`round` cannot be True"),
        ({"chunks": 1.5}, "`chunks` cannot be 1.5"),
        ({"layout": [1]}, "`layout` cannot be [1]"),
        ({"seconds": 10**400}, "`seconds` cannot be 1000"),
        ({"run": []}, "`run` cannot be []"),
        ({"run": {"kill_wait": "long"}}, "`kill_wait` cannot be 'long'"),
        ({"run": {"known_oom": [1]}}, "`known_oom` cannot be [1]"),
        ({"profile_fields": "x" * 500}, "`profile_fields` cannot be 'xxx"),
        ({"layout": 1, "chunks": 2, "nodes": {"n1\nrm": 1}}, "`nodes` cannot have"),
        ({"layout": 1, "chunks": 2, "nodes": {"n1": 3}}, "`nodes` cannot have 'n1': 3"),
    ],
)
def test_damage_is_told_in_two_lines(path: Path, record: dict[str, Any], words: str) -> None:
    """What is wrong in which file, then what to do."""
    files.write_json(path, record)
    with pytest.raises(ResultsError) as caught:
        manifest.read_manifest(path)
    what, remedy = str(caught.value).splitlines()
    assert what.startswith(f"{path}: damaged: ")
    assert words in what
    assert remedy.startswith("restore it, or remove the file")
    assert len(what) < len(str(path)) + 150


def test_a_manifest_that_was_changed_is_damaged(tmp_path: Path) -> None:
    """Also where a bit makes its layout one of the future; one without a checksum is older."""
    path = tmp_path / "a" / "manifest.json"
    path.parent.mkdir()
    manifest.write_manifest(path, manifest.Manifest(id="a", launcher="local", round=3))
    text = path.read_text()
    for before, after in (('"local"', '"locam"'), ('"layout": 1', '"layout": 3')):
        path.write_text(text.replace(before, after))
        with pytest.raises(ResultsError, match="damaged: its checksum does not fit") as caught:
            manifest.read_manifest(path)
        assert not isinstance(caught.value, manifest.NewerLayout)
    path.write_text(text.replace('"crc"', '"checksum"').replace('"round": 3', '"round": 7'))
    assert manifest.read_manifest(path).round == 7
