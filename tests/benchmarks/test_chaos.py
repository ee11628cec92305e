"""The faults of the benchmark happen, and its reader of results finds what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from benchmarks.chaos import faults, reading
from paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the library that makes calls fail."""
    return faults.build(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize(
    ("call", "code", "error"),
    [
        ("open", "open('{path}', 'w')", "EIO"),
        (
            "write",
            "import os; os.write(os.open('{path}', os.O_WRONLY | os.O_CREAT), b'x')",
            "ENOSPC",
        ),
        ("fsync", "import os; os.fsync(os.open('{path}', os.O_WRONLY | os.O_CREAT))", "EDQUOT"),
        ("rename", "import os; open('{path}.a', 'w'); os.replace('{path}.a', '{path}')", "ESTALE"),
        ("lock", "import fcntl; fcntl.flock(open('{path}', 'w'), fcntl.LOCK_EX)", "EACCES"),
    ],
)
def test_one_call_fails_in_a_real_process(library, tmp_path, call, code, error):
    """With its errno, on files under the folder alone."""
    env = {"LD_PRELOAD": str(library), "CHAOS_CALL": call, "CHAOS_NTH": "1", "CHAOS_TIMES": "1"}
    env["CHAOS_ERRNO"] = str(getattr(faults.errno, error))
    words = [sys.executable, "-c", code.format(path=tmp_path / "file")]
    for under, status in ((str(tmp_path), 1), ("/elsewhere", 0)):
        done = subprocess.run(
            words, env={**os.environ, **env, "CHAOS_UNDER": under}, check=False, capture_output=True
        )
        assert done.returncode == status, done.stderr
        assert (f"[Errno {env['CHAOS_ERRNO']}]".encode() in done.stderr) == bool(status)


def test_the_clock_of_one_process_is_ahead(library):
    """Its wall clock, not the one that measures."""
    code = "import time; print(time.time(), time.clock_gettime(time.CLOCK_MONOTONIC))"
    env = {**os.environ, "LD_PRELOAD": str(library), "CHAOS_CLOCK": "86400"}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    wall, monotonic = map(float, done.stdout.split())
    assert 86_000 < wall - faults.time.time() < 87_000
    assert abs(monotonic - faults.time.monotonic()) < 600


def test_the_reader_counts_rows_without_hpcsweep(tmp_path):
    """A torn line is no row; a point in two shards was measured twice."""
    shards = tmp_path / "shards" / "s"
    shards.mkdir(parents=True)
    (shards / "0.0.overall.csv").write_text("point_id,status\na,ok\nb,failed\nc,ok\n")
    (shards / "1.0.overall.csv").write_text("point_id,status\na,ok\nd,ok")
    (tmp_path / "overall.csv").write_text("point_id,status\na,ok\nb,failed\n")
    assert reading.measured(tmp_path) == {"a": 2, "c": 1}
    assert reading.merged(tmp_path) == {"a": 1}


@pytest.mark.slow
def test_a_few_faults_break_nothing():
    """The whole driver, with real processes."""
    command = (sys.executable, "-m", "benchmarks.chaos", "--faults", "2", "--points", "10")
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
