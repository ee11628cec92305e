"""The lock of submit and collect, and who a process is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpcsweep.errors import Busy, ResultsError
from hpcsweep.store import locks
from hpcsweep.store.rundir import RunDir

HOLD = """\
import sys
from pathlib import Path
from hpcsweep.store import locks
from hpcsweep.store.rundir import RunDir
with locks.held(RunDir(Path(sys.argv[1])), "hpcsweep collect"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_that_holds_the_lock_is_named(tmp_path):
    """After the time-out; and its death frees the lock."""
    run = RunDir(tmp_path / "s")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"held\n"
    words = f"hpcsweep collect, process {other.pid} on"
    with pytest.raises(Busy, match=words), locks.held(run, "hpcsweep submit", timeout=0.1):
        pass
    other.kill()
    other.communicate()
    with locks.held(run, "hpcsweep submit", timeout=5):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    """One line, not an OSError."""
    (tmp_path / "file").write_text("")
    run = RunDir(tmp_path / "file" / "s")
    with pytest.raises(ResultsError, match="cannot be written"), locks.held(run, "submit"):
        pass
