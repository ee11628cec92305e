"""Shards of every schema version that there was are read: each has a results folder in fixtures.

The folder of the first release has tests of its own: `store/test_old_results.py`.
"""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpcsweep.catalog import columns
from hpcsweep.catalog.columns import SCHEMA_VERSION
from hpcsweep.collect.workflow import collect
from hpcsweep.store import shards
from hpcsweep.store.rundir import RunDir
from paths import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDERS = sorted(path.parent for path in TESTS.glob("fixtures/*/demo/shards"))


def versions(run: RunDir) -> Iterator[str]:
    """Yield the schema version of each row."""
    for shard in run.shards():
        for row in shards.read(shard).rows:
            yield row["schema_version"]


def test_every_version_has_a_folder() -> None:
    """Those that the history beside the version names; the last one is that of today."""
    history = re.findall(r"^# (\d+\.\d+)  ", Path(columns.__file__).read_text(), re.MULTILINE)
    assert history[-1] == SCHEMA_VERSION
    assert {one for folder in FOLDERS for one in versions(RunDir(folder))} == {*history}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.parent.name)
def test_its_rows_are_collected_as_they_were_measured(folder: Path, tmp_path: Path) -> None:
    """Cell by cell, with all layers and samples; nothing is left out or named."""
    run = RunDir(tmp_path / "results" / "demo")
    shutil.copytree(folder, run.path)
    report = collect(run)
    assert (report.left_out, report.destroyed, report.damaged) == ([], [], [])
    rows = {
        (row["submission"], row["chunk"], row["attempt"], row["point_id"]): row
        for shard in run.shards()
        for row in shards.read(shard).rows
    }
    with run.overall.open(newline="") as file:
        merged = list(csv.DictReader(file))
    assert {row["point_id"] for row in merged} == {row["point_id"] for row in rows.values()}
    for row in merged:
        own = rows[row["submission"], row["chunk"], row["attempt"], row["point_id"]]
        same = [name for name in own if name in row and name != "flags"]
        assert {name: row[name] for name in same} == {name: own[name] for name in same}
    assert report.layer_rows == sum(int(row["layer_rows"] or 0) for row in merged)
