"""The faults of the benchmark happen, and its reader of results finds what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from benchmarks.chaos import faults, reading
from paths import ROOT

pytestmark = [
    pytest.mark.no_second_try,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)"),
]


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
        ("rename", "import os; open('{path}.a', 'w'); os.replace('{path}.a', '{path}')", "ESTALE"),
        ("stat", "import os; open('{path}', 'w'); os.stat('{path}')", "ESTALE"),
        ("list", "import os; os.mkdir('{path}'); os.listdir('{path}')", "ETIMEDOUT"),
    ],
)
def test_one_call_fails_in_a_real_process(library, tmp_path, call, code, error):
    """With its errno, on files under the folder alone."""
    env = {"LD_PRELOAD": str(library), "CHAOS_CALL": call, "CHAOS_NTH": "1", "CHAOS_TIMES": "1"}
    env["CHAOS_ERRNO"] = str(getattr(faults.errno, error))
    env["CHAOS_TOLD"] = str(tmp_path / "told")
    for name, under, status in (("one", str(tmp_path), 1), ("two", "/elsewhere", 0)):
        words = [sys.executable, "-c", code.format(path=tmp_path / name)]
        done = subprocess.run(
            words, env={**os.environ, **env, "CHAOS_UNDER": under}, check=False, capture_output=True
        )
        assert done.returncode == status, done.stderr
        assert (f"[Errno {env['CHAOS_ERRNO']}]".encode() in done.stderr) == bool(status)
    assert (tmp_path / "told").exists()


@pytest.mark.parametrize("step", ["0", "4000"])  # milliseconds; Python has begun long before
def test_the_clock_of_one_process_steps(library, step):
    """Its wall clock, not the one that measures; at once, or in mid-run."""
    code = (
        "import time; now = time.time(), time.clock_gettime(time.CLOCK_MONOTONIC); "
        f"time.sleep({step} / 1000); print(*now, time.time())"
    )
    env = {**os.environ, "LD_PRELOAD": str(library), "CHAOS_CLOCK": "86400", "CHAOS_STEP": step}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    wall, monotonic, later = map(float, done.stdout.split())
    ahead = wall - time.time()
    assert 86_000 < ahead < 87_000 if step == "0" else -600 < ahead < 1
    assert 86_000 < later - time.time() < 87_000
    assert abs(monotonic - time.monotonic()) < 600


def test_the_reader_counts_rows_without_hpcsweep(tmp_path):
    """A torn line is no row; a point in two shards was measured twice."""
    shards = tmp_path / "shards" / "s"
    shards.mkdir(parents=True)
    head = "point_id,status,started_at\n"
    (shards / "0.0.overall.csv").write_text(f"{head}a,ok,1\nb,failed,2\nc,ok,3\n")
    (shards / "1.0.overall.csv").write_text(f"{head}a,ok,4\nd,ok,5")
    (tmp_path / "overall.csv").write_text(f"{head}a,ok,4\nb,failed,2\ne,ok,6\n")
    assert reading.measured(tmp_path) == {"a": 2, "c": 1}
    assert reading.merged(tmp_path) == {"a": 1, "e": 1}
    assert reading.whole_rows(tmp_path) == {("a", "1"), ("b", "2"), ("c", "3"), ("a", "4")}
    assert reading.invented(tmp_path) == {("e", "6")}


@pytest.mark.slow
def test_a_few_faults_break_nothing():
    """The whole driver, with real processes and a real Slurm where there is one."""
    words = (sys.executable, "-m", "benchmarks.chaos", "--faults", "4", "--points", "10")
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| lost | 0 |" in done.stdout
