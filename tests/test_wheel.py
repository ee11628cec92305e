"""The built wheel works installed elsewhere: templates, profiles and sweeps come with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import click
import pytest

from paths import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel as a release does, but with the hatchling that is installed here."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_carries_what_the_commands_look_up(wheel):
    """Every file of the three folders, and the mark of a typed package."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("sweeps", "cluster_profiles", "jobs/templates"):
        for path in (ROOT / folder).glob("*.*"):
            assert f"hpcsweep/_data/{folder}/{path.name}" in names
    assert "hpcsweep/py.typed" in names


def test_an_installed_wheel_runs_a_shipped_sweep_anywhere(wheel, tmp_path):
    """In an environment of its own, from a folder that holds nothing."""
    home = tmp_path / "env"
    venv.create(home)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", wheel], check=True, capture_output=True, timeout=120
    )
    site = next((home / "lib").glob("python*")) / "site-packages"
    # The dependencies of this environment come after the installed wheel. Its editable hpcsweep
    # does not: that is found through a .pth file, and Python follows no .pth file from here.
    (site / "zz_dependencies.pth").write_text(f"{Path(click.__file__).parents[1]}\n")
    desk = tmp_path / "elsewhere"
    desk.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HPCSWEEP"))}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [home / "bin" / "hpcsweep", *arguments],
            cwd=desk,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(run("expand", "quickstart", "--json"))["points_total"] == 12
    (desk / "noop.yaml").write_text("workload: noop\naxes: {model: [a, b]}\n")
    assert "2 ok" in run("submit", "noop.yaml", "--cluster", "local")
    assert "2 points (2 ok)" in run("collect", "noop")
    where = subprocess.run(
        [python, "-c", "import hpcsweep; print(hpcsweep.__file__)"],
        cwd=desk,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(home) in where
