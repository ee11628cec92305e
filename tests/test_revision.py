"""The version has its commit between releases, in a checkout and in a wheel of one."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from hpcsweep import __version__
from paths import ROOT

ASK = "from hpcsweep.revision import revision; print(revision())"


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


def asked(folder, place="src"):
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
    assert asked(checkout) == f"{__version__}+g{sha}"
    git(checkout, "tag", f"v{__version__}")
    assert asked(checkout) == __version__
    with (checkout / "src" / "hpcsweep" / "text.py").open("a") as file:
        file.write("\n")
    assert asked(checkout) == f"{__version__}+g{sha}.dirty"
    git(checkout, "commit", "-qam", "second")
    assert asked(checkout) == f"{__version__}+g{git(checkout, 'rev-parse', '--short=7', 'HEAD')}"


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
    assert asked(checkout, "site") == wanted


def test_commands_that_measure_nothing_ask_no_git(desk):
    """`--help` and `status` stay as fast as they are."""
    ask = "from hpcsweep.cli import main; import sys; sys.exit('hpcsweep.revision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", ask], cwd=desk.folder, check=False).returncode == 0
