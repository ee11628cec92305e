"""What is written of a point: its row, and the lines of the attempt's log.

A row says what was asked, on which machine it ran, how it ended, and how long it took. What is
measured counts more than what is said of it: a log that cannot be written ends nothing.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, TextIO

from hpcsweep import __version__, environment
from hpcsweep.catalog.columns import CLOCKED, SCHEMA_VERSION, Row, axis_cells
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.node.protocol import Outcome
    from hpcsweep.point import Point
    from hpcsweep.store.manifest import Manifest
    from hpcsweep.store.rundir import ShardPath


class Reports:
    """The lines of one attempt, and its news for a local launcher: a JSON object a line.

    The news are `begins`, the label of the point in work, and `status` and `doubts` of the one that
    ended before it. What a point's end says is written with what comes next.
    """

    def __init__(self, log: Path) -> None:
        self._to_launcher = os.environ.get(environment.PROGRESS) == "json"
        self._log, self._fd = log, -1
        self._lines: list[str] = []
        self._news: dict[str, str] = {}

    def begins(self, text: str, label: str) -> None:
        """Say which point begins: what the worker prints until it ends is about this one."""
        self._news["begins"] = label
        self.say(text)

    def ended(self, text: str, status: str, doubts: str) -> None:
        """Say how a point ended."""
        self._news |= {"status": status, "doubts": doubts}
        self._lines.append(_line(text))

    def say(self, text: str) -> None:
        """Write a line, and what waits."""
        self._lines.append(_line(text))
        self.flush()

    def flush(self) -> None:
        """Write what waits."""
        lines, self._lines = "".join(self._lines), []
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.write(self._fd, lines.encode())
        if not self._to_launcher:
            show(lines, sys.stdout)
        elif self._news:
            news, self._news = self._news, {}
            sys.stdout.write(json.dumps(news) + "\n")
            sys.stdout.flush()


def show(text: str, stream: TextIO) -> None:
    """Write to the job's output; once that fails, such as on a full disk, to nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def now() -> str:
    """Return the UTC time in ISO format, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _line(text: str) -> str:
    return f"{now()} {' '.join(text.split())}\n"


_SLURM_KEYS: Final = {
    "slurm_job_id": ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID"),
    "slurm_array_task_id": ("SLURM_ARRAY_TASK_ID",),
}


def seconds(outcome: Outcome, wall: float) -> Row:
    """Return the columns about the seconds that a point took, and the part of them that was timed.

    1. `wall` is by the supervisor's clock, from the point's request to its outcome: the start of a
       worker where it needs one, the network, warm-up, all passes, and the proof of them.
    2. `timed_s` are the seconds of the blocks of timed passes in it, as `timing.loop.collect` adds
       them up; of a training its steps, and those of the phase and layer passes.
    """
    share = None if outcome.timed_s is None else outcome.timed_s / wall
    return {"wall_s": wall, "timed_share": share}


def of_attempt(manifest: Manifest, shard: ShardPath, machine: Row) -> Row:
    """Return the cells that all rows of an attempt have in common."""
    return {
        **machine,
        **_slurm_cells(),
        "git_sha": manifest.git_sha,
        "git_dirty": manifest.git_dirty,
        "schema_version": SCHEMA_VERSION,
        "hpcsweep_version": __version__,
        "sweep": manifest.sweep,
        "profile": manifest.profile,
        "submission": shard.submission,
        "chunk": shard.chunk,
        "attempt": shard.attempt,
    }


def of_point(point: Point, outcome: Outcome, started_at: str, wall: float) -> Row:
    """Return the cells of one point: what was asked, and what was measured.

    `started_at` is a UTC time in ISO format, `wall` what the point took in seconds, all included.
    """
    flags = [outcome.row.get("flags"), "left_behind" if outcome.left else ""]
    return {
        **axis_cells(point.axes),
        **outcome.row,
        "flags": ";".join(filter(None, flags)),
        "left_behind": "; ".join(outcome.left)[:1000],
        "workload": point.workload,
        "point_id": point.point_id,
        "status": outcome.status,
        "status_reason": outcome.reason,
        "valid": outcome.row.get("valid", outcome.status is PointStatus.OK),
        "started_at": started_at,
        **seconds(outcome, wall),
    }


def without_times(row: Row, wrapper: str) -> Row:
    """Return the row of a run under a profiler: what happened, and no time that it took."""
    happened = "" if row["status"] == PointStatus.OK else f"{row['status']}: {row['status_reason']}"
    return {
        **{name: value for name, value in row.items() if name not in CLOCKED},
        "status": PointStatus.PROFILED,
        "status_reason": happened,
        "profiler": wrapper,
        "flags": ";".join(filter(None, (row.get("flags"), "profiled"))),
        "valid": False,
    }


def node() -> str:
    """Return the node's name as Slurm knows it, or the host's."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def _slurm_cells() -> Row:
    row: Row = {"node": node()}
    for column, names in _SLURM_KEYS.items():
        row[column] = next((os.environ[name] for name in names if name in os.environ), None)
    return row
