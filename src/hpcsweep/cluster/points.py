"""The points of a sweep: status of each, its reason, its node, and its lines of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hpcsweep import files
from hpcsweep.errors import SpecError, UsageError, suggest
from hpcsweep.point import Point, varying
from hpcsweep.store import chunk_file, outcomes, runs
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.outcomes import PointTally, doubts_of
from hpcsweep.store.state import PointStatus
from hpcsweep.text import aligned, count, folded

WAITING: Final = "waiting"  # no row yet
# Characters of an id in the table: `show SWEEP POINT` takes as few as tell a point apart
_DIGITS: Final = 8
# Of a point the last lines: a traceback fits, and the screen shows the rest, too.
_LOG_LINES: Final = 40


@dataclass(frozen=True)
class PointState:
    """A point, and its row if it has one."""

    point_id: str
    label: str
    row: Mapping[str, Any]
    log: Path | None
    orphan: bool = False  # the sweep, as last submitted, no longer has it

    @property
    def status(self) -> str:
        return str(self.row.get("status", WAITING))

    @property
    def why(self) -> str:
        """Why the point failed, else the flags of its row, and the checks that it lacks."""
        reason = self.row.get("status_reason")
        if reason:
            return str(reason)
        missing = self.row.get("checks_missing")
        lacks = f"without {missing}" if missing else ""
        orphan = "orphan" if self.orphan else ""
        words = [orphan, self.row.get("flags") or "", lacks]
        return " ".join(word for word in words if word)

    def log_text(self) -> list[str]:
        """Return the log's lines about the point, up to the line that ends it."""
        with suppress(OSError):
            if self.log:
                return _lines_about(self.point_id, self.log)
        return []

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        record = {"point_id": self.point_id, "label": self.label, "status": self.status}
        record |= {name: cell for name, cell in self.row.items() if cell and isinstance(cell, str)}
        if self.log:
            record["log"] = str(self.log)
        if self.orphan:
            record["orphan"] = "true"
        return record

    def text(self) -> str:
        """Return the point's cells, then its lines of the log."""
        cells = {name: str(value) for name, value in self.to_json().items()}
        lines = aligned([*cells.items()])
        return "\n".join([*lines, "", *self.log_text()] if self.log else lines)


def of_status(every: Sequence[PointState], statuses: Sequence[str]) -> list[PointState]:
    """Return the points with one of `statuses` (none means all); `UsageError` for a wrong name."""
    existing = [*PointStatus, WAITING]
    for name in statuses:
        if name not in existing:
            raise UsageError(f"no status '{name}'{suggest(name, existing)} ({', '.join(existing)})")
    return [point for point in every if not statuses or point.status in statuses]


def read_points(sweep_dir: SweepDir) -> list[PointState]:
    """Return the points in the order of the sweep file, then those that left the file."""
    rows = outcomes.rows_of(sweep_dir.shards())
    sent: dict[str, tuple[Point, Mapping[str, str]]] = {}
    ids: list[tuple[str, list[str]]] = []
    for submission in sweep_dir.submissions():
        manifest = submission.read_manifest()
        for index in range(manifest.chunks):
            own: list[str] = []
            for point in chunk_file.read_chunk(submission.chunks, index).points:
                sent[point.point_id] = (point, manifest.maps)
                own.append(point.point_id)
            ids.append((manifest.spec_sha256, own))
    orphans = runs.known_orphans(sweep_dir, ids)
    telling = varying(point for point, _maps in sent.values())
    states = {}
    for name, (point, maps) in sent.items():
        row = rows.get(name, {})
        label = point.label(maps, telling)
        states[name] = PointState(name, label, row, _log(sweep_dir, row), name in orphans)
    order = [*states]
    with suppress(SpecError):  # without a valid sweep file: in the order of submission
        order = [*runs.points_of_file(sweep_dir), *states]
    return [states[name] for name in dict.fromkeys(order) if name in states]


def named(points: Iterable[PointState], prefix: str) -> PointState:
    """Return the point whose id begins with `prefix`; `UsageError` unless there is exactly one."""
    fits = [point for point in points if point.point_id.startswith(prefix)]
    if len(fits) != 1:
        first_three = ", ".join(point.point_id for point in fits[:3])
        which = f"is the beginning of {len(fits)}: {first_three}" if fits else "is no point's id"
        raise UsageError(f"'{prefix}' {which}; `hpcsweep show SWEEP` lists them")
    return fits[0]


def table(
    name: str, every: Sequence[PointState], statuses: Sequence[str], width: int | None
) -> str:
    """Return a line for each point, folded where it is longer than `width`."""
    points = of_status(every, statuses)
    counts = PointTally()
    for point in points or every:
        if not point.orphan:
            counts.add(point.status, doubts_of(point.row))
    if not points:
        return f"{name}: no point is {' or '.join(statuses) or 'there'} ({counts})"
    orphans = sum(point.orphan for point in points)
    beside = f"; {count(orphans, 'orphan')}" if orphans else ""
    rows: list[tuple[str, ...]] = [("point", "status", "what", "median ms", "node", "why")]
    for point in points:
        time = _rounded(point.row.get("median_ms"))
        node = str(point.row.get("node") or "")
        rows.append((point.point_id[:_DIGITS], point.status, point.label, time, node, point.why))
    return "\n".join([f"{name}: {counts}{beside}", "", *folded(aligned(rows), width)])


def _lines_about(point_id: str, log: Path) -> list[str]:
    """Return the last lines of what a log, which may be larger than the memory, says of a point."""
    name = point_id.encode()
    with log.open("rb") as file:
        first = files.find(file, name)
        last = files.find(file, name, files.find(file, b"\n", first))
        end = files.find(file, b"\n", last)
        if first == end:  # the log does not name it
            return []
        before = files.last_bytes(file, end=first)
        begin = first - len(before) + before.rfind(b"\n") + 1
        return files.last_lines(file, begin, end)[-_LOG_LINES:]


def _rounded(time: object) -> str:
    """Return a time with three digits; a damaged cell as it is."""
    try:
        return f"{float(str(time)):.3f}" if time else ""
    except ValueError:
        return str(time)


def _log(sweep_dir: SweepDir, row: Mapping[str, Any]) -> Path | None:
    if not row:
        return None
    shard: ShardPath = row["_shard"]
    return sweep_dir.submission(shard.submission).log(shard.chunk, shard.attempt)
