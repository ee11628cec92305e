"""The study of the peers, with the one tool that needs no other environment."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from benchmarks.peers import watching
from paths import ROOT


@pytest.mark.parametrize(
    "more", [("--kill",), pytest.param(("--runs", "1"), marks=pytest.mark.slow)]
)
def test_the_study_runs_with_hpcsweep(tmp_path, more):
    """To a table with all rows, also after a kill."""
    command = (sys.executable, "-m", "benchmarks.peers", "--points", "8", "--only", "hpcsweep")
    done = subprocess.run(
        (*command, "--environments", tmp_path, *more),
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    name, *cells = done.stdout.splitlines()[-1].split("\t")
    assert name == "hpcsweep"
    if "--kill" in more:
        assert cells[1:] == ["8", "0"]
    else:
        assert all(float(cell.split()[0]) > 0 for cell in cells)


def test_a_tool_that_does_not_end_is_ended_with_all_that_it_started(tmp_path):
    """A grandchild, too; and a command that fails is no figure."""
    script = "sleep 60 & echo $! > pid; sleep 60"
    with pytest.raises(watching.TooLongError):
        watching.run([["sh", "-c", script]], tmp_path, {}, limit=0.5)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while watching.psutil.pid_exists(pid) and time.monotonic() < deadline:
        watching.reap_orphans()
        time.sleep(0.05)
    assert not watching.psutil.pid_exists(pid)
    with pytest.raises(subprocess.CalledProcessError):
        watching.run([["false"]], tmp_path, {}, limit=60)
