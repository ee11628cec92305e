"""Builds the wheel, and installs it without any extra into an environment of its own.

The packages are those that the wheel's own metadata asks for, and what these ask for in turn. They
are linked from the environment of the tests, which takes no network and no time; `--all` installs
them from PyPI instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from paths import ROOT


def build(out: Path) -> Path:
    """Build the wheel as a release does, but with the hatchling that is installed here."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    command += ["--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (path,) = out.glob("*.whl")
    return path


# Runs command lines one after the other, each as the console script would.
_MANY = """\
import contextlib, io, json, sys, traceback
from hpcsweep import cli
for words in json.load(sys.stdin):
    out, errors, sys.argv, code = io.StringIO(), io.StringIO(), ["hpcsweep", *words], 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            cli.run()
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            code = traceback.print_exc() or 1
    print(json.dumps([code, out.getvalue(), errors.getvalue()]))
"""


@dataclass(frozen=True)
class Environment:
    """An environment in which hpcsweep is installed."""

    home: Path

    @property
    def site(self) -> Path:
        """Return where its packages are."""
        return next((self.home / "lib").glob("python*")) / "site-packages"

    @property
    def python(self) -> Path:
        """Return its interpreter."""
        return self.home / "bin" / "python"

    def run(self, folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run its hpcsweep in a folder."""
        return self.call(folder, str(self.home / "bin" / "hpcsweep"), *arguments, **env)

    def many(
        self, folder: Path, *commands: str
    ) -> list[tuple[str, subprocess.CompletedProcess[str]]]:
        """Run several command lines of its hpcsweep in one process."""
        words = json.dumps([command.split() for command in commands])
        done = self.call(folder, str(self.python), "-c", _MANY, stdin=words)
        ends = map(json.loads, done.stdout.splitlines())
        return [
            (command, subprocess.CompletedProcess(command, *end))
            for command, end in zip(commands, ends, strict=True)
        ]

    def call(
        self, folder: Path, *command: str, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command without what belongs to the Python of the tests."""
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HPCSWEEP"))}
        return subprocess.run(
            command,
            cwd=folder,
            input=stdin,
            env={**outer, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def light(home: Path, wheel: Path) -> Environment:
    """Install a wheel into a new environment, and link the packages that it asks for."""
    made = empty(home)
    pip = [sys.executable, "-m", "pip", f"--python={made.python}", "install", "--quiet"]
    command = [*pip, "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (own,) = metadata.distributions(name="hpcsweep", path=[str(made.site)])
    for found in _wanted(own).values():
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (made.site / top).exists():
                (made.site / top).symlink_to(Path(str(found.locate_file(top))))
    return made


def empty(home: Path) -> Environment:
    """Return a new environment without any package."""
    venv.create(home)
    return Environment(home)


def _wanted(own: metadata.Distribution) -> dict[str, metadata.Distribution]:
    """Return what a distribution needs without extras, and what that needs."""
    found: dict[str, metadata.Distribution] = {}
    left = [own]
    while left:
        for line in left.pop().requires or ():
            one = Requirement(line)
            if one.name not in found and (not one.marker or one.marker.evaluate({"extra": ""})):
                found[one.name] = metadata.distribution(one.name)
                left.append(found[one.name])
    return found
