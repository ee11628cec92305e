"""Makes the row of a point, and writes the log of an attempt.

A row has the point's axes, the machine, the status and the times. Rows matter more than the log: an
attempt goes on when its log cannot be written.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TextIO

from hpcsweep import environment
from hpcsweep.catalog.columns import CLOCKED, SCHEMA_VERSION, SUSPENDED, Row, undeclared
from hpcsweep.catalog.record import row_of
from hpcsweep.catalog.row_records import (
    AttemptCells,
    KeyCells,
    MachineCells,
    OriginCells,
    OutcomeCells,
    WallCells,
)
from hpcsweep.store.state import PointStatus
from hpcsweep.version import revision

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.node.protocol import Outcome
    from hpcsweep.point import Point
    from hpcsweep.store.folders import ShardPath
    from hpcsweep.store.manifest import Manifest


class Reports:
    """The log of one attempt, and its news for a local launcher: a JSON object a line.

    The news are `ended`, the status and doubts of points, and `begins`, the label of the point that
    follows them. Lines about points that begin or end wait for `flush`, or for `say`. The times of
    these lines are UTC in ISO format.
    """

    def __init__(self, log: Path) -> None:
        self._to_launcher = os.environ.get(environment.PROGRESS) == "json"
        self._log = log
        self._fd = -1
        self._lines: list[str] = []
        self._ended: list[tuple[str, str]] = []
        self._begins = ""

    def begins(self, when: str, text: str, label: str) -> None:
        """Keep that a point begins; the worker's output up to its end belongs to this point."""
        self._begins = label
        self._lines.append(_line(when, text))

    def ended(self, when: str, trace: str, text: str, status: str, doubts: str) -> None:
        """Keep the trace of an exception, and the line about a point's end."""
        self._ended.append((status, doubts))
        self._lines += [trace, _line(when, text)]

    def say(self, text: str) -> None:
        """Write a line, after those that wait."""
        self._lines.append(_line(now(), text))
        self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        lines = "".join(self._lines)
        self._lines = []
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.write(self._fd, lines.encode())
        if not self._to_launcher:
            show(lines, sys.stdout)
        elif self._ended or self._begins:
            news = {"ended": self._ended, "begins": self._begins}
            sys.stdout.write(f"{json.dumps(news)}\n")
            sys.stdout.flush()
            self._ended = []
            self._begins = ""


def show(text: str, stream: TextIO) -> None:
    """Write to the job's output; after an error, such as a full disk, to /dev/null."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def now() -> str:
    """Return the UTC time in ISO format, to the millisecond."""
    return utc(time.time())


def utc(seconds: float) -> str:
    """Return a time since the epoch in the same format."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _line(when: str, text: str) -> str:
    return f"{when} {' '.join(text.split())}\n"


def of_attempt(manifest: Manifest, shard: ShardPath, machine: Row) -> Row:
    """Return the cells that all rows of an attempt have in common; `machine` is the worker's."""
    attempt = AttemptCells(
        schema_version=SCHEMA_VERSION,
        sweep=manifest.sweep,
        workload=manifest.workload,
        profile=manifest.profile,
        submission=shard.submission,
        chunk=shard.chunk,
        attempt=shard.attempt,
    )
    origin = OriginCells(
        hpcsweep_version=revision(),
        git_sha=manifest.git_sha,
        git_dirty=manifest.git_dirty,
        slurm_job_id=os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID")),
        slurm_array_task_id=os.environ.get("SLURM_ARRAY_TASK_ID"),
    )
    known = MachineCells(**{name: machine.get(name) for name in MachineCells.declared})
    return row_of(attempt, origin, known, MachineCells(node=node()))


def of_point(point: Point, outcome: Outcome, started_at: str, wall: float, place: Row) -> Row:
    """Return the cells of one point: its outcome and times, and those of its `place` in the chunk.

    `started_at` is a UTC time in ISO format. `wall` are the seconds from the point's request to its
    outcome: the start of a worker where it needs one, the network, warm-up, all passes, and their
    proof.
    """
    row = row_of(
        KeyCells(point_id=point.point_id, status=outcome.status),
        OutcomeCells(
            status_reason=outcome.reason or None,
            valid=outcome.row.get("valid", outcome.status is PointStatus.OK),
        ),
        WallCells(
            started_at=started_at,
            wall_s=wall,
            timed_share=None if outcome.timed_s is None else outcome.timed_s / wall,
        ),
    )
    return {**place, **outcome.row, **row}


def declared(outcome: Outcome) -> tuple[Outcome, set[str]]:
    """Return an outcome without the cells that no record declares, and their names.

    A worker refuses to make such cells; one of another version may send them, after an update of
    hpcsweep while the job runs. What else it measured is not lost for them.
    """
    unknown = undeclared(outcome.row, "overall")
    row = {name: value for name, value in outcome.row.items() if name not in unknown}
    layers = []
    for layer in outcome.layers:
        odd = undeclared(layer, "layers")
        layers.append({n: value for n, value in layer.items() if n not in odd} if odd else layer)
        unknown |= odd
    if not unknown:
        return outcome, unknown
    return replace(outcome, row=row, layers=layers), unknown


def suspended(outcome: Outcome, seconds: float) -> Outcome:
    """Return the outcome of a point in whose times the job was suspended, unless by 0 seconds."""
    if not seconds:
        return outcome
    flags = ";".join(filter(None, (outcome.row.get("flags"), SUSPENDED)))
    cells = row_of(OutcomeCells(flags=flags, valid=False), WallCells(suspended_s=seconds))
    return replace(outcome, row={**outcome.row, **cells})


def without_times(row: Row, wrapper: str) -> Row:
    """Return the row of a point under a profiler: its status and memory, without times."""
    is_ok = row["status"] == PointStatus.OK
    profiled = OutcomeCells(
        status_reason="" if is_ok else f"{row['status']}: {row['status_reason'] or ''}",
        profiler=wrapper,
        flags=";".join(filter(None, (row.get("flags"), "profiled"))),
        valid=False,
    )
    without = {name: value for name, value in row.items() if name not in CLOCKED}
    return {**without, **row_of(KeyCells(status=PointStatus.PROFILED), profiled)}


def node() -> str:
    """Return the node's name as Slurm knows it, or the host's."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename
