"""The catalogue is the one place for axes, algorithms and columns: a line adds one everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.catalog import AXES, SETTINGS, axes_of, axis_defaults, settings_of
from hpcsweep.spec import sweep_file
from hpcsweep.spec.expansion import expand
from paths import ROOT, TESTS

if TYPE_CHECKING:
    from pathlib import Path

# What a program that was changed knows: run in the copy's folder, with the copy on PYTHONPATH.
TELL = """
import importlib.util, json
from hpcsweep.catalog import columns
from hpcsweep.spec import sweep_file, sweep_keys
from hpcsweep.spec.expansion import expand

found = importlib.util.spec_from_file_location("generate", "docs/generate.py")
generate = importlib.util.module_from_spec(found)
found.loader.exec_module(generate)
plain, varied = (list(expand(sweep_file.load(f"{name}.yaml"))) for name in ("plain", "varied"))
print(json.dumps({
    "plain": [point.point_id for point in plain],
    "ids": [point.point_id for point in varied],
    "axes": [dict(point.axes) for point in varied],
    "overall": columns.OVERALL_COLUMNS,
    "shard": columns.SHARD_COLUMNS,
    "schema": json.loads(sweep_keys.schema()),
    "tables": {name: table() for name, table in generate.TABLES.items() if name in TABLES},
}))
"""
PLAIN = "workload: inference\naxes: {model: [resnet18], batch_size: [1, 2]}\n"


def _copied(folder: Path, module: str, after: str, line: str) -> None:
    """Make a copy of the program in which `line` stands behind the line `after`."""
    shutil.copytree(
        ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "_data")
    )
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "generate.py", folder / "docs")
    changed = folder / "src" / "hpcsweep" / module
    lines = changed.read_text().splitlines()
    (place,) = (i for i, text in enumerate(lines, start=1) if text.lstrip().startswith(after))
    changed.write_text("\n".join([*lines[:place], line, *lines[place:], ""]))


def _told(folder: Path, module: str, after: str, line: str, varied: str) -> dict[str, Any]:
    """Return what a copy of the program tells once `line` stands behind the line `after`."""
    _copied(folder, module, after, line)
    (folder / "plain.yaml").write_text(PLAIN)
    (folder / "varied.yaml").write_text(varied)
    tables = ("axes", "algorithms", "detail axes", "detail columns")
    return _said(folder, f"TABLES = {tables}\n{TELL}")


def _said(folder: Path, program: str) -> dict[str, Any]:
    """Return what a program prints that runs on the copy in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{TESTS / 'support'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def plain_ids(tmp_path: Path) -> list[str]:
    """Return the ids of a sweep that the unchanged program gives."""
    path = tmp_path / "before.yaml"
    path.write_text(PLAIN)
    return [point.point_id for point in expand(sweep_file.load(path))]


def test_an_axis_is_one_line(tmp_path: Path, plain_ids: list[str]) -> None:
    """Points, ids, column, JSON Schema and documentation follow; ids of the default stay."""
    told = _told(
        tmp_path,
        "catalog/axes.csv",
        "tf32,",
        "padding_of_images,int,3,2,,inference training noop,setting,pixels around an image",
        PLAIN.replace("}", ", padding_of_images: [3, 5]}"),
    )
    assert told["plain"] == plain_ids
    assert [axes["padding_of_images"] for axes in told["axes"]] == [3, 5, 3, 5]
    assert told["ids"][::2] == plain_ids
    assert len(set(told["ids"])) == 4
    assert "padding_of_images" in told["overall"]
    assert "padding_of_images" in told["shard"]
    axis = told["schema"]["$defs"]["Axes"]["properties"]["padding_of_images"]
    assert axis["description"] == "pixels around an image; default 3"
    assert axis["oneOf"][0]["items"] == {"type": "integer", "minimum": 2}
    row = "| `padding_of_images` | whole number from 2 | `3` | all | pixels around an image |"
    assert row in told["tables"]["axes"]
    assert "`padding_of_images`" in told["tables"]["detail axes"]


def test_a_name_of_an_algorithm_is_one_line(tmp_path: Path, plain_ids: list[str]) -> None:
    """The axis takes it, alone and in a map of layers; so do the JSON Schema and the table."""
    told = _told(
        tmp_path,
        "catalog/algorithms.csv",
        "winograd_nonfused,",
        "strassen,11,plain,1,,,,,seven products instead of eight",
        PLAIN.replace("}", ", algorithm: [auto, strassen, {'layer1.*': strassen}]}"),
    )
    assert told["plain"] == plain_ids
    found = [axes["algorithm"] for axes in told["axes"]]
    assert found[:3] == ["auto", "strassen", {"layer1.*": "strassen"}]
    assert "strassen" in json.dumps(told["schema"]["$defs"]["Axes"]["properties"]["algorithm"])
    assert "| `strassen` | seven products instead of eight |" in told["tables"]["algorithms"]


def test_a_column_is_one_line(tmp_path: Path, plain_ids: list[str]) -> None:
    """Tables, shards and documentation have it; points do not change."""
    told = _told(
        tmp_path,
        "catalog/row_records.py",
        "timer: str",
        '    mood: str | None = cell("of the operator")',
        PLAIN,
    )
    assert told["plain"] == told["ids"] == plain_ids
    assert "mood" in told["overall"]
    assert "mood" in told["shard"]
    assert "| `mood` | str | of the operator |" in told["tables"]["detail columns"]


# What a point, its headline and the documentation say of a check; run as `TELL` is.
MEASURE = """
import importlib.util, json, pathlib
from hpcsweep.catalog import columns
from hpcsweep.measure import measure_point
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.checks import room
from hpcsweep.store import outcomes
from hpcsweep.store.folders import SweepDir
from measuring import point

found = importlib.util.spec_from_file_location("generate", "docs/generate.py")
generate = importlib.util.module_from_spec(found)
found.loader.exec_module(generate)
measure_point.COOLING_S = 0.0
pathlib.Path("thermometer").write_text("31")
called = []
for method in ("begin", "settled", "look", "disturbed", "end", "after"):
    def noting(check, *about, name=method, run=getattr(room.CHECK, method)):
        called.append(name)
        return run(check, *about)
    setattr(room.CHECK, method, noting)
row = on_device("inference").measure(point(measure={"layers": False})).row | {"status": "ok"}
print(json.dumps({
    "called": called,
    "row": row,
    "disturbance": outcomes.disturbance(SweepDir(pathlib.Path("results/s")), [row]),
    "shard": columns.SHARD_COLUMNS,
    "tables": {name: generate.TABLES[name]() for name in ("checks", "flags", "detail columns")},
}))
"""


def test_a_check_is_a_name_and_two_files(tmp_path: Path) -> None:
    """Its methods are called in their order; column, flag, headline and documentation follow."""
    _copied(tmp_path, "catalog/checks/__init__.py", '"host",', '    "room",')
    shutil.copytree(TESTS / "fixtures" / "check", tmp_path / "src" / "hpcsweep", dirs_exist_ok=True)
    told = _said(tmp_path, MEASURE)
    timed = ["settled", "look", "disturbed"]
    assert list(dict.fromkeys(told["called"])) == ["begin", *timed, "end", "after"]
    assert [name for name in told["called"] if name != "look"] == [
        "begin", "settled", "disturbed", "settled", "end", "after", "disturbed"
    ]  # fmt: skip
    assert told["row"]["room_c_max"] == 31
    assert "warm_room" in told["row"]["flags"]
    assert told["row"]["valid"] is False
    assert "a room of 31 degrees" in told["disturbance"]
    assert "room_c_max" in told["shard"]
    assert "| `room` | a room that is too warm | `warm_room` |" in told["tables"]["checks"]
    assert (
        "| `warm_room` | the room was warmer than 27 degrees | false |" in told["tables"]["flags"]
    )
    assert "| `room_c_max` | float | highest temperature" in told["tables"]["detail columns"]


@pytest.mark.parametrize("workload", ["inference", "training", "noop"])
def test_a_workload_has_the_axes_and_settings_that_name_it(workload: str) -> None:
    """In the order of the catalogue, each with its default."""
    assert list(axes_of(workload)) == [n for n, a in AXES.items() if workload in a.workloads]
    assert list(settings_of(workload)) == [
        n for n, s in SETTINGS.items() if workload in s.workloads
    ]
    assert axis_defaults(workload)["input_size"] == 224
