"""Attempts as a job script starts them, of chunks that nobody has launched."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import chunk_file, shards
from hpcsweep.submit import prepare, request
from waiting import wait_for

if TYPE_CHECKING:
    from hpcsweep.store.folders import SubmissionDir
    from localruns import Desk

SLOW = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 20, num: 20}}
measure: {sleep_ms: 50}
"""


def prepared(desk: Desk, text: str) -> SubmissionDir:
    """Return a submission of one chunk, recorded as `submit` does and not launched."""
    asked = request.make(sweep_file.load(desk.spec(text)), profile.load("local"))
    return prepare.prepare(desk.sweep(), asked).submission


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
        key.point_id for shard in submission.attempts(0) for key in shards.read_keys(shard.overall)
    ]


def wait_for_rows(submission: SubmissionDir, count: int) -> None:
    """Wait until some rows are there."""
    wait_for(f"{count} rows", lambda: len(ids(submission)), enough=lambda found: found >= count)
