"""The guests, `forecast` and `importing`: where one is deleted, all but its commands works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from localruns import COMMAND, TEN
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# each guest with its own commands
GUESTS = {
    "forecast": (
        ["predict", "demo.yaml", "--cluster", "local"],
        ["predict", "demo", "--check"],
        ["submit", "demo.yaml", "--cluster", "local", "--until-error", "10%"],
    ),
    "importing": (["import", "times.csv", "--as", "theirs"],),
}
IMPORTS_ALL = """
import importlib, pkgutil, hpcsweep
print(hpcsweep.__file__)
for module in pkgutil.walk_packages(hpcsweep.__path__, "hpcsweep."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""


class Without:
    """An installation that lacks guests, in a folder with a sweep file."""

    def __init__(self, folder: Path, *guests: str) -> None:
        self.folder = folder
        self.package = folder / "installed/hpcsweep"
        leave_out = shutil.ignore_patterns(*guests, "__pycache__")
        shutil.copytree(ROOT / "src/hpcsweep", self.package, ignore=leave_out)
        shutil.copytree(ROOT / "cluster_profiles", folder / "cluster_profiles")
        (folder / "demo.yaml").write_text(TEN)
        (folder / "times.csv").write_text("model,time\n")

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python with this installation."""
        env = {**os.environ, "PYTHONPATH": str(self.package.parent)}
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def hpcsweep(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this installation."""
        return self.python(*COMMAND[1:], *words)


@pytest.fixture(params=GUESTS, scope="module")
def guest(request: pytest.FixtureRequest) -> str:
    """Return the name of the package that is deleted."""
    return request.param


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory, guest: str) -> Without:
    """Return an installation that lacks the guest."""
    return Without(tmp_path_factory.mktemp(guest), guest)


def test_every_other_module_imports(tmp_path):
    """Without both, since import contracts say that neither guest imports the other."""
    without = Without(tmp_path, *GUESTS)
    imported = without.python("-c", IMPORTS_ALL)
    assert imported.returncode == 0, imported.stderr
    file, *names = imported.stdout.splitlines()
    assert file == str(without.package / "__init__.py")
    assert "hpcsweep.analysis.report" in names
    assert {f"hpcsweep.{guest}" for guest in GUESTS}.isdisjoint(names)


def test_a_sweep_is_measured_collected_and_shown(without):
    """From the help to the report."""
    for words in (
        ["--help"],
        ["submit", "demo.yaml", "--cluster", "local", "--dry-run"],
        ["submit", "demo.yaml", "--cluster", "local", "--collect"],
        ["report", "demo"],
    ):
        ran = without.hpcsweep(*words)
        assert ran.returncode == 0, ran.stderr
    status = json.loads(without.hpcsweep("status", "demo", "--json").stdout)
    assert status["sweeps"][0]["profiles"][0]["by_status"] == {"ok": 10}


def test_its_own_commands_say_in_a_line_that_it_is_not_there(without, guest):
    """With the exit code of what is not installed."""
    for words in GUESTS[guest]:
        ran = without.hpcsweep(*words)
        line = f"hpcsweep: hpcsweep {words[0]}: this installation has no package hpcsweep.{guest}\n"
        assert (ran.stderr, ran.returncode) == (line, 9)
