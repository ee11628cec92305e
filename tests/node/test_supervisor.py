"""One attempt on the node: nothing is measured twice, whatever other attempts do."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from attempts import SLOW, attempt, ids, prepared, wait_for_rows
from hpcsweep.errors import ResultsError
from hpcsweep.store import row_reader
from hpcsweep.store.folders import ShardPath


def test_a_newer_attempt_fences_an_older_one_off(desk):
    """A node that was declared dead but lives on writes nothing more, and asks for no requeue."""
    submission = prepared(desk, SLOW)
    old = attempt(submission)
    wait_for_rows(submission, 2)
    newer = ShardPath(submission.shards, 0, 1)
    newer.overall.write_text("")
    rows = len([*row_reader.read_rows([ShardPath(submission.shards, 0, 0)])])
    old.communicate(timeout=120)
    assert old.returncode == 0
    assert len([*row_reader.read_rows([ShardPath(submission.shards, 0, 0)])]) <= rows + 1


def test_an_attempt_fences_the_older_ones_off_before_it_reads_them(desk):
    """So a row that an older attempt writes at that moment is not measured again."""
    submission = prepared(desk, SLOW)
    os.mkfifo(ShardPath(submission.shards, 0, 0).overall)  # it cannot be read
    young = attempt(submission)
    young.communicate(timeout=300)
    assert young.returncode == ResultsError.exit_code
    assert ShardPath(submission.shards, 0, 1).overall.exists()
    assert not [*row_reader.read_rows([ShardPath(submission.shards, 0, 1)])]


def test_output_that_cannot_be_written_costs_no_point(desk):
    """The disk of the logs is full, and so is that of the job's own output."""
    submission = prepared(desk, SLOW)
    submission.log(0, 0).symlink_to("/dev/full")
    with Path("/dev/full").open("w") as full:
        running = attempt(submission, stdout=full)
        running.communicate(timeout=300)
    assert (running.returncode, len(ids(submission))) == (0, 20)


def test_a_full_disk_has_its_exit_code_even_if_nobody_can_be_told(desk):
    """The file of rows cannot grow, and neither can the job's own output."""
    submission = prepared(desk, SLOW)
    words = shlex.join(
        [sys.executable, "-m", "hpcsweep.node.supervisor", str(submission.path), "0"]
    )
    limited = f"ulimit -f 4; exec {words} </dev/null >/dev/full 2>&1"
    done = subprocess.run(["bash", "-c", limited], timeout=60, check=False)
    assert done.returncode == ResultsError.exit_code
    assert 0 < len(ids(submission)) < 20


def test_a_profiler_of_another_job_makes_no_row_profiled(desk, monkeypatch):
    """Its variable is left over; the manifest says whether this job is profiled."""
    monkeypatch.setenv("HPCSWEEP_WRAPPER", "nsys")
    submission = prepared(desk, SLOW)
    attempt(submission).communicate(timeout=300)
    keys = [*row_reader.read_rows([ShardPath(submission.shards, 0, 0)])]
    assert {key["status"] for key in keys} == {"ok"}
