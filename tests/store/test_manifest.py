"""Manifests of every version are read; what cannot be read is told with what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep import files
from hpcsweep.errors import ResultsError
from hpcsweep.store import manifest
from hpcsweep.store.manifest import LAYOUT, Manifest, RunSettings
from paths import LAYOUT_1

if TYPE_CHECKING:
    from pathlib import Path

OLD = sorted(LAYOUT_1.glob("demo/submissions/*/manifest.json"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a manifest lies."""
    folder = tmp_path / "20250304-050607-l40"
    folder.mkdir()
    return folder / "manifest.json"


@pytest.mark.parametrize("old", OLD, ids=lambda old: old.parent.name)
def test_what_the_first_release_wrote_is_written_again_as_it_was(old: Path, path: Path) -> None:
    """No key is lost or renamed, their order stays, and a checksum is added."""
    found = manifest.read(old)
    manifest.write(path, found)
    then, now = json.loads(old.read_text()), json.loads(path.read_text())
    assert (now.pop("crc"), now) == (files.read_json(path)["crc"], then)
    assert found.is_local is (then["launcher"] == "local")
    assert found.is_profiled is (then["profile_fields"]["wrapper"] == "nsys")
    assert found.profile_path == then["profile_fields"]["path"]


def test_a_manifest_that_has_next_to_nothing_takes_the_defaults(path: Path) -> None:
    """As one of a version before these keys; its folder names it."""
    files.write_json(path, {"layout": LAYOUT, "run": {"kill_wait": None}, "of a later one": 1})
    found = manifest.read(path)
    assert found == Manifest(id="20250304-050607-l40", run=RunSettings())
    assert (found.round, found.is_profiled, found.run.point_timeout) == (0, False, 600.0)


def test_what_serves_the_skipping_of_points_stands_there_if_it_is_wanted(path: Path) -> None:
    """With the axes of the points that ran out of memory."""
    wanted = RunSettings(skip_dominated=True, known_oom=({"model": "a", "batch_size": 8},))
    manifest.write(path, Manifest(id=path.parent.name, run=wanted))
    assert manifest.read(path).run == wanted
    manifest.write(path, replace(manifest.read(path), run=RunSettings()))
    assert json.loads(path.read_text())["run"].keys().isdisjoint({"skip_dominated", "known_oom"})


def test_a_newer_layout_is_refused(path: Path) -> None:
    """It says which, and what to do; whatever its keys have become."""
    files.write_json(path, {"layout": LAYOUT + 1, "round": "seven"})
    with pytest.raises(ResultsError, match=r"written by a newer hpcsweep .*update hpcsweep"):
        manifest.read(path)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"round": "seven"}, "`round` cannot be 'seven'"),
        ({"round": True}, "`round` cannot be True"),
        ({"chunks": 1.5}, "`chunks` cannot be 1.5"),
        ({"layout": [1]}, "`layout` cannot be [1]"),
        ({"run": []}, "`run` cannot be []"),
        ({"run": {"kill_wait": "long"}}, "`kill_wait` cannot be 'long'"),
        ({"run": {"known_oom": [1]}}, "`known_oom` cannot be [1]"),
        ({"profile_fields": "x" * 500}, "`profile_fields` cannot be 'xxx"),
    ],
)
def test_damage_is_told_in_two_lines(path: Path, record: dict[str, Any], words: str) -> None:
    """What is wrong in which file, then what to do."""
    files.write_json(path, record)
    with pytest.raises(ResultsError) as caught:
        manifest.read(path)
    what, remedy = str(caught.value).splitlines()
    assert what.startswith(f"{path}: damaged: ")
    assert words in what
    assert remedy.startswith("restore it, or remove the file")
    assert len(what) < len(str(path)) + 150


def test_a_manifest_that_was_changed_is_damaged(tmp_path: Path) -> None:
    """Also where a bit makes its layout one of the future; one without a checksum is older."""
    path = tmp_path / "a" / "manifest.json"
    path.parent.mkdir()
    manifest.write(path, manifest.Manifest(id="a", launcher="local", round=3))
    text = path.read_text()
    for before, after in (('"local"', '"locam"'), ('"layout": 1', '"layout": 3')):
        path.write_text(text.replace(before, after))
        with pytest.raises(ResultsError, match="damaged: its checksum does not fit") as caught:
            manifest.read(path)
        assert not isinstance(caught.value, manifest.NewerLayout)
    path.write_text(text.replace('"round": 3', '"round": 7'))
    assert manifest.round_of(path, 1) == 1
    path.write_text(text.replace('"crc"', '"checksum"').replace('"round": 3', '"round": 7'))
    assert manifest.read(path).round == manifest.round_of(path, 1) == 7
