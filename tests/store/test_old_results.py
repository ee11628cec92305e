"""A results folder that the first release wrote stays readable, and its submissions go on.

`tests/fixtures/layout_1/demo` was written by that release (paths and host names are made neutral):
a local run with every kind of failure, a retry, a submission to Slurm with a requeued task and one
task per way to end, one under a profiler, and one whose `submit` was killed. Beside it lies what
the commands said of it then.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.store import ledger, shards
from hpcsweep.tracking import status
from localruns import Desk
from paths import LAYOUT_1

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = LAYOUT_1 / "expected"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a copy that nobody has touched for a long time."""
    desk = Desk(tmp_path)
    shutil.copytree(LAYOUT_1 / "demo", desk.results / "demo")
    for path in desk.results.rglob("*"):
        os.utime(path, (0, 0))
    return desk


def expected(name: str) -> Any:
    """Return what was written down when the folder was new."""
    return json.loads((EXPECTED / name).read_text())


def table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_status_says_of_it_what_it_said_then(desk: Desk) -> None:
    """Points by status, chunks by state, what is wrong, nodes to avoid; later versions say more."""
    (found,) = status.read(desk.results, [])
    told = json.loads(json.dumps(found.to_json()).replace(f"{desk.results}/", ""))
    then = expected("status.json")
    for now, before in zip(told["profiles"], then["profiles"], strict=True):
        assert {key: now[key] for key in before} == before
    told = {name: told[name] for name in then}  # later versions add keys
    assert {**told, "profiles": then["profiles"]} == then


def test_the_ledger_knows_every_point_and_nothing_lives(desk: Desk) -> None:
    """Rows under a profiler have a ledger of their own."""
    for name, profiled in (("measured", False), ("profiled", True)):
        found = ledger.read(desk.sweep("demo"), profiled=profiled)
        assert (found.status, found.live) == (expected("ledger.json")[name], {})


def test_collect_makes_the_same_tables_of_it(desk: Desk) -> None:
    """Cell by cell; later versions may add columns."""
    done = desk.run("collect", "demo", "--json")
    assert done.returncode == 0, done.stderr
    told = {**json.loads(done.stdout)["sweeps"][0], "seconds": 0.0}
    assert {name: told[name] for name in expected("collect.json")} == expected("collect.json")
    for name in ("overall.csv", "layers.csv", "samples.csv"):
        then, now = table(EXPECTED / name), table(desk.results / "demo" / name)
        assert [{column: row[column] for column in then[0]} for row in now] == then


def test_retry_measures_its_points_once_more(desk: Desk) -> None:
    """On the device that the manifest names, whatever is here."""
    done = desk.run("retry", "demo", "--status", "oom", "--cluster", "local")
    assert done.returncode == 0, done.stderr
    (again,) = [row for row in desk.rows("demo") if not row["submission"].startswith("2025")]
    assert (again["status"], again["device"], again["model"]) == ("oom", "cpu", "b")
    assert desk.sweep("demo").submissions()[-1].read_manifest().round == 5


def test_a_task_of_it_that_comes_back_is_measured(desk: Desk) -> None:
    """The supervisor reads its manifest, its chunk file, and the rows of its first attempt."""
    submission = desk.sweep("demo").submission("20250102-090000-l40")
    for chunk in (4, 5):
        command = [sys.executable, "-m", "hpcsweep.node.supervisor", submission.path, str(chunk)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    rows = [shards.read(submission.attempts(chunk)[-1]).rows for chunk in (4, 5)]
    assert [(row["status"], row["attempt"]) for (row,) in rows] == [("oom", "1"), ("ok", "0")]
    assert Counter(row["submission"] for row in desk.rows("demo"))[submission.id] == 6
