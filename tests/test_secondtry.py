"""The second try of what failed, and what it forgives."""

import subprocess
import sys

import pytest

from paths import SUPPORT

LUCK = """\
from pathlib import Path
import pytest

def lucky():
    tried = Path("tried")
    count = int(tried.read_text()) if tried.exists() else 0
    tried.write_text(str(count + 1))
    assert count, "the first try fails"
"""
CONFTEST = f"""\
import sys
sys.path.insert(0, {str(SUPPORT)!r})
pytest_plugins = ["secondtry"]
"""


def run(folder, test, *options):
    """Run pytest on one test in a folder that is a project of its own."""
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = no_second_try\n")
    (folder / "tests/conftest.py").write_text(CONFTEST)
    (folder / "tests/test_luck.py").write_text(LUCK + test)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "tests"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_what_passes_alone_is_listed_and_fails_nothing(tmp_path, processes):
    """The line stands before the summary, with what the first try saw, and the file keeps it."""
    test = "\ndef test_by_chance(): lucky()\n\ndef test_sound(): pass\n"
    done = run(tmp_path, test, "--second-try", *processes)
    assert done.returncode == 0, done.stdout + done.stderr
    *before, last = done.stdout.strip().splitlines()
    assert "flaky: tests/test_luck.py::test_by_chance" in before
    assert "the first try fails" in done.stdout
    assert "1 passed, 1 flaky" in last
    assert (tmp_path / "tests/flaky.txt").read_text() == "tests/test_luck.py::test_by_chance\n"


def test_what_fails_twice_fails(tmp_path):
    """A test that is broken is not saved by a lucky neighbour."""
    test = "\ndef test_by_chance(): lucky()\n\ndef test_broken(): assert 0\n"
    done = run(tmp_path, test, "--second-try")
    assert done.returncode == 1
    last = done.stdout.strip().splitlines()[-1]
    assert "1 failed" in last
    assert "1 flaky" in last


def test_a_test_of_loss_has_no_second_try(tmp_path):
    """Work that is lost once in a while is lost."""
    test = "\n@pytest.mark.no_second_try\ndef test_nothing_is_lost(): lucky()\n"
    done = run(tmp_path, test, "--second-try")
    assert done.returncode == 1
    assert (tmp_path / "tried").read_text() == "1"
    assert "flaky" not in done.stdout


def test_without_the_option_a_failure_is_one(tmp_path):
    """A person who runs tests sees the first failure."""
    done = run(tmp_path, "\ndef test_by_chance(): lucky()\n")
    assert done.returncode == 1
    assert (tmp_path / "tried").read_text() == "1"


def test_a_fixture_that_fails_is_tried_again(tmp_path):
    """An error before or after a test counts as its failure."""
    test = "\n@pytest.fixture\ndef luck(): lucky()\n\ndef test_it(luck): pass\n"
    done = run(tmp_path, test, "--second-try")
    assert done.returncode == 0, done.stdout
    assert "flaky: tests/test_luck.py::test_it" in done.stdout
