"""Attempts as a job script starts them, of chunks that nobody has launched."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import IO, TYPE_CHECKING

import resultsfolder
from drafts import written
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import attempt as record
from hpcsweep.store import chunk_file, row_reader
from hpcsweep.store.folders import ShardPath
from hpcsweep.submit import request
from waiting import wait_for

if TYPE_CHECKING:
    from hpcsweep.store.folders import SubmissionDir
    from localruns import Desk

SLOW = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 20, num: 20}}
measure: {sleep_ms: 50}
"""
HANGS_FIRST = """\
workload: noop
axes: {model: [a], input_size: [1, 2, 3, 4, 5, 6]}
measure: {fail: [{when: {input_size: 1}, how: hang}]}
"""


def prepared(desk: Desk, text: str) -> SubmissionDir:
    """Return a submission of one chunk, recorded as `submit` does and not launched."""
    asked = request.make(sweep_file.load(desk.spec(text)), profile.load("local"))
    return written(desk.sweep(), asked).submission


def in_order_of_sizes(submission: SubmissionDir) -> SubmissionDir:
    """Let a submission measure its points in this order, so that a test knows which comes when."""
    chunk = chunk_file.read_chunk(submission.chunks, 0)
    points = tuple(sorted(chunk.points, key=lambda point: point.axes["input_size"]))
    chunk_file.write_chunks(submission.chunks, [replace(chunk, points=points)])
    return submission


def attempt(
    submission: SubmissionDir, stdout: int | IO[str] = subprocess.PIPE, **env: str
) -> subprocess.Popen[str]:
    """Start an attempt as a job script does."""
    return subprocess.Popen(
        [sys.executable, "-m", "hpcsweep.node.supervisor", str(submission.path), "0"],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def ids(submission: SubmissionDir) -> list[str]:
    """Return the point of every row, over all attempts."""
    return [
        key["point_id"] for shard in submission.attempts(0) for key in row_reader.read_rows([shard])
    ]


def wait_for_rows(submission: SubmissionDir, count: int) -> None:
    """Wait until some rows are there."""
    wait_for(f"{count} rows", lambda: len(ids(submission)), enough=lambda found: found >= count)


def in_short_jobs(submission: SubmissionDir, kill_wait: float, signal_lead: float = 0) -> None:
    """Let the jobs of a submission have other times around their end."""
    manifest = submission.read_manifest()
    run = replace(manifest.run, kill_wait=kill_wait, signal_lead=signal_lead)
    submission.write_manifest(replace(manifest, run=run))


def wait_for_a_worker(submission: SubmissionDir, number: int = 0) -> None:
    """Wait until an attempt has a worker, which measures the first point then."""
    shard = ShardPath(submission.shards, 0, number)
    wait_for("worker", lambda: record.read_record(shard), enough=lambda said: said and said.row)


def statuses(submission: SubmissionDir) -> list[list[str]]:
    """Return the status of every row, by attempt."""
    every = [resultsfolder.read_shard(shard).rows for shard in submission.attempts(0)]
    return [[row["status"] for row in rows] for rows in every]
