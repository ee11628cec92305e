"""The version has its commit between releases, in a checkout and in a wheel of one."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from hpcsweep.version import __version__
from paths import ROOT

ASK = "from hpcsweep.version import revision; print(revision())"


def git(folder, *words):
    """Run git as somebody; return what it prints."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout of one commit."""
    (tmp_path / "src").mkdir()
    shutil.copytree(ROOT / "src" / "hpcsweep", tmp_path / "src" / "hpcsweep")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def said(folder, place="src"):
    """Return what a program of the package in a folder calls its revision."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={"PYTHONPATH": str(folder / place), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_checkout_has_its_commit_and_a_release_has_none(checkout):
    """Changes that are in no commit are told; a commit after the release is none."""
    sha = git(checkout, "rev-parse", "--short=7", "HEAD")
    assert said(checkout) == f"{__version__}+g{sha}"
    git(checkout, "tag", f"v{__version__}")
    assert said(checkout) == __version__
    with (checkout / "src" / "hpcsweep" / "text.py").open("a") as file:
        file.write("\n")
    assert said(checkout) == f"{__version__}+g{sha}.dirty"
    git(checkout, "commit", "-qam", "second")
    assert said(checkout) == f"{__version__}+g{git(checkout, 'rev-parse', '--short=7', 'HEAD')}"


def test_a_wheel_keeps_the_commit_of_its_checkout(checkout):
    """Installed elsewhere, inside of another project's checkout, too."""
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in ("jobs", "cluster_profiles", "sweeps"):
        shutil.copytree(ROOT / name, checkout / name)
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "all")
    build = "from hatchling.build import build_wheel; print(build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=checkout, check=True, capture_output=True)
    (wheel,) = (checkout / "dist").glob("*.whl")
    shutil.unpack_archive(wheel, checkout / "site", "zip")
    wanted = f"{__version__}+g{git(checkout, 'rev-parse', '--short=7', 'HEAD')}"
    assert said(checkout, "site") == wanted


@pytest.fixture
def asks(tmp_path):
    """Return a function that runs the package's code, and returns what that asked git."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    asked = tmp_path / "asked"
    asked.touch()
    program.write_text(f"#!/bin/sh\necho \"$@\" >> '{asked}'\nexit 1\n")
    program.chmod(0o755)

    def asks_git(*words):
        env = {"PYTHONPATH": str(ROOT / "src"), "PATH": f"{program.parent}:/usr/bin:/bin"}
        command = [sys.executable, *words]
        subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
        return asked.read_text().splitlines()

    return asks_git


@pytest.mark.parametrize("command", ["--help", "--version", "status"])
def test_commands_that_measure_nothing_ask_no_git(asks, command):
    """They stay as fast as they are; who measures does ask."""
    assert not asks("-m", "hpcsweep", command)
    assert asks("-c", ASK)


def test_a_run_here_asks_git_for_its_revision_once(asks, tmp_path):
    """However many supervisors it has: each of them would wait for git before its first point."""
    sweep = "workload: noop\naxes: {model: [a], input_size: [1, 2]}\n"
    (tmp_path / "sweep.yaml").write_text(sweep)
    run = ("-m", "hpcsweep", "submit", "sweep.yaml", "--cluster", "local", "--workers", "2")
    questions = [words for words in asks(*run) if "--tags" in words]
    assert len(questions) == 1
    assert len([*tmp_path.glob("results/sweep/shards/*/*.env.json")]) == 2
