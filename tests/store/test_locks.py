"""The lock of submit and collect, and who a process is."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hpcsweep.errors import Busy, ResultsError
from hpcsweep.store import locks
from hpcsweep.store.folders import SweepDir
from localruns import Desk
from standins import compile_library

HOLD = """\
import sys
from pathlib import Path
from hpcsweep.store import locks
from hpcsweep.store.folders import SweepDir
with locks.held(SweepDir(Path(sys.argv[1])), "hpcsweep collect"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_that_holds_the_lock_is_named(tmp_path):
    """After the time-out; and its death frees the lock."""
    run = SweepDir(tmp_path / "s")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"held\n"
    words = f"hpcsweep collect, process {other.pid} on"
    with pytest.raises(Busy, match=words), locks.held(run, "hpcsweep submit", timeout=0.1):
        pass
    other.kill()
    other.communicate()
    with locks.held(run, "hpcsweep submit", timeout=60):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    """One line, not an OSError."""
    (tmp_path / "file").write_text("")
    run = SweepDir(tmp_path / "file" / "s")
    with pytest.raises(ResultsError, match="cannot be written"), locks.held(run, "submit"):
        pass


SOFT = """\
import sys
from pathlib import Path
from hpcsweep.errors import Busy
from hpcsweep.store import locks
from hpcsweep.store.folders import SweepDir
try:
    with locks.held(SweepDir(Path(sys.argv[1])), "hpcsweep collect", timeout=0.1):
        print("held")
except Busy as busy:
    print(busy)
"""
ELSEWHERE = {
    "what": "hpcsweep submit",
    "since": "2025-03-04T05:06:07+00:00",
    "process": {"host": "login2", "boot": "x", "pid": 77, "start": 5},
}


@pytest.fixture
def no_locks(tmp_path):
    """Return the environment of a process on a file system that has no locks."""
    library = compile_library("filesystem", tmp_path, "-ldl")
    return {"LD_PRELOAD": str(library), "NO_FLOCK": "1"}


@pytest.fixture
def left_behind(tmp_path):
    """Return a sweep with the lock of a process that was killed on another host."""
    desk = Desk(tmp_path)
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    assert desk.run("submit", "sweep.yaml").returncode == 0
    desk.sweep().lock.write_text("77\nlogin2\n5\n")
    desk.sweep().file(".lock-holder").write_text(json.dumps(ELSEWHERE))
    return desk


def test_a_lock_that_was_left_behind_is_told_with_its_holder_and_how_to_break_it(
    left_behind, no_locks
):
    """Where the file is the lock, nobody can know from here whether that process is gone."""
    done = subprocess.run(
        [sys.executable, "-c", SOFT, left_behind.sweep().path],
        env={**os.environ, **no_locks},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "by hpcsweep submit, process 77 on login2, since 2025-03-04T05:06Z;" in done.stdout
    lock = left_behind.sweep().lock
    assert done.stdout.rstrip().endswith(f"If that process is gone, remove {lock}")


def test_a_folder_that_was_made_for_the_lock_goes_with_it(tmp_path):
    """Unless something came in; what was there before stays."""
    run = SweepDir(tmp_path / "results" / "s")
    with locks.held(run, "hpcsweep submit"):
        pass
    assert not run.path.parent.exists()
    with locks.held(run, "hpcsweep submit"):
        run.submissions_dir.mkdir()
    assert run.submissions_dir.is_dir()


@pytest.mark.parametrize("said", ['{"layout": 2}', '{"layout": "1"}', "{", "[]", '{"layout": 0}'])
def test_a_folder_of_another_layout_is_neither_written_nor_read(tmp_path, said):
    """A program that does not know it might replace tables by worse ones."""
    run = SweepDir(tmp_path / "s")
    run.submissions_dir.mkdir(parents=True)
    with locks.held(run, "submit"):
        pass
    layout = run.path / "layout.json"
    assert json.loads(layout.read_text()) == {"layout": 1}
    layout.write_text(said)
    for command in ("collect", "report", "cancel", "status", "retry"):
        done = Desk(tmp_path).run("--results", str(tmp_path), command, "s")
        assert done.returncode != 0
        assert "layout.json: " in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not run.overall.exists()
