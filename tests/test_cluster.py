"""Launchers: the table, the protocols, and one more that is added as CONTRIBUTING says."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcsweep
from hpcsweep.catalog import LAUNCHERS
from hpcsweep.cluster import RunsHere, SendsToSlurm, launcher_here, launcher_to_slurm
from hpcsweep.spec import profile

SOURCE = Path(hpcsweep.__file__).parent
ONE_FILE = '''\
"""Runs the chunks of a submission one after the other."""

import subprocess
import sys

from hpcsweep.cluster.local.supervisors import LaunchResult
from hpcsweep.store.outcomes import PointTally
from hpcsweep.store.row_reader import read_rows


def run(submission, profile, progress):
    for chunk in range(submission.read_manifest().chunks):
        command = [sys.executable, "-m", "hpcsweep.node.supervisor", submission.path, str(chunk)]
        subprocess.run(command, check=True)
    tally = PointTally()
    for row in read_rows(submission.sweep_dir.shards_of(submission.id)):
        tally.add(row["status"])
    return LaunchResult(tally)
'''
ONE_LINE = '    "in_turn": Launcher(module="in_turn"),\n'


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_of_the_table_satisfies_its_protocol(name: str, tmp_path: Path):
    """Its module has the protocol's functions, with the same arguments."""
    path = tmp_path / "site.yaml"
    path.write_text(f"gpu: v100\nlauncher: {name}\ntime: 60\n")
    chosen = profile.load(path)
    protocol = SendsToSlurm if chosen.in_slurm else RunsHere
    module = (launcher_to_slurm if chosen.in_slurm else launcher_here)(chosen)
    for function, wanted in inspect.getmembers(protocol, inspect.isfunction):
        if not function.startswith("_"):
            own = inspect.signature(getattr(module, function))
            assert ["self", *own.parameters] == list(inspect.signature(wanted).parameters)


@pytest.mark.slow
def test_a_launcher_is_added_in_one_file_and_one_line(tmp_path: Path):
    """A copy of the program gets both; a sweep is submitted through it, status knows its chunks."""
    package = tmp_path / "src" / "hpcsweep"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "cluster" / "in_turn.py").write_text(ONE_FILE)
    table = package / "catalog" / "__init__.py"
    head, begin, rest = table.read_text().partition("Mapping[str, Launcher]] = {\n")
    table.write_text(head + begin + ONE_LINE + rest)
    (tmp_path / "mine.yaml").write_text("launcher: in_turn\nworkers: 2\n")
    (tmp_path / "s.yaml").write_text("workload: noop\naxes: {model: [a, b], input_size: [1, 2]}\n")

    def hpcsweep(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpcsweep", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = hpcsweep("submit", "s.yaml", "--cluster", "mine.yaml")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(hpcsweep("status", "s", "--json").stdout)["sweeps"][0]["profiles"]
    assert (told["by_status"], told["chunks"]) == ({"ok": 4}, {"done": 2})
    assert (
        "nothing to measure (4 ok)" in hpcsweep("submit", "s.yaml", "--cluster", "mine.yaml").stdout
    )
