"""The study of the peers, with the one tool that needs no other environment."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.peers import watching
from paths import ROOT
from waiting import given_time


def _study(tmp_path, *words):
    command = (sys.executable, "-m", "benchmarks.peers", *words, "--only", "hpcsweep")
    return subprocess.run(
        (*command, "--environments", tmp_path),
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip


def _rows(done):
    """Return the rows of its tables below their heads, as lists of cells."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("| hpcsweep")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.slow
def test_a_killed_study_goes_on_with_hpcsweep(tmp_path):
    """All rows are there in the end, and none was measured twice."""
    done = _study(tmp_path, "kill", "--points", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    ((*_, rows, twice, _),) = _rows(done)
    assert (rows, twice) == ("8", "0")


@pytest.mark.slow
def test_the_study_runs_with_hpcsweep(tmp_path):
    """To a table with all rows; at a limit to what was done until then."""
    done = _study(tmp_path, "small", "--points", "8", "--runs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    ((_, *figures),) = _rows(done)
    assert all(float(figure) > 0 for figure in figures)
    done = _study(tmp_path, "large", "--points", "100000", "--limit-s", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    ((_, wall, *_),) = _rows(done)
    assert wall.startswith("**ended after 2 s, ")


def test_a_tool_that_does_not_end_is_ended_with_all_that_it_started(tmp_path):
    """A grandchild in a session of its own, too; and its figures are told as incomplete ones."""
    script = "setsid sh -c 'echo $$ > pid; touch begun; exec sleep 600' & sleep 600"
    before = time.monotonic()

    def run(seconds: float) -> watching.Cost:
        return watching.run([["sh", "-c", script]], tmp_path, {}, limit=seconds)

    seconds, cost = given_time(run, (tmp_path / "begun").exists)
    assert not cost.complete
    assert cost.wall >= seconds
    assert time.monotonic() - before < 300  # or it would have waited for the end
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
