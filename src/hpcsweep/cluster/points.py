"""The points of a sweep: status of each, its reason, its node, and its lines of the log."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from hpcsweep import files
from hpcsweep.errors import SpecError, UsageError, suggest
from hpcsweep.point import Point, varying
from hpcsweep.store import chunk_file, outcomes, runs
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.outcomes import PointTally, doubts_of
from hpcsweep.store.state import PointStatus
from hpcsweep.text import aligned, count, folded, in_columns, shown

WAITING: Final = "waiting"  # no row yet
_HEAD: Final = ("point", "status", "what", "median ms", "node", "why")
# Characters of an id in the table: `show SWEEP POINT` takes as few as tell a point apart
_DIGITS: Final = 8
# cells of a row that the table shows: whole rows of 200,000 points take a gigabyte
_IN_TABLE: Final = ("median_ms", "node", "valid", "flags", "status_reason", "checks_missing")
# Of a point the last lines: a traceback fits, and the screen shows the rest, too.
_LOG_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class PointState:
    """A point, and its row if it has one: of the table only the cells that it shows."""

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


def read_points(sweep_dir: SweepDir, *, whole: bool = True) -> list[PointState]:
    """Return the points in the order of the sweep file, then those that left the file.

    Their rows are not `whole` where only the table is wanted.
    """
    rows = outcomes.rows_of(sweep_dir.shards(), kept=dict if whole else _in_table)
    telling = varying(point for point, _manifest in _sent(sweep_dir))
    labels: dict[str, str] = {}
    ids: dict[str, dict[str, None]] = {}  # by checksum of the sweep file that sent them, in order
    for point, manifest in _sent(sweep_dir):
        labels[point.point_id] = point.label(manifest.maps, telling)
        ids.setdefault(manifest.spec_sha256, {})[point.point_id] = None
    orphans = runs.known_orphans(sweep_dir, ids.items())
    order: Iterable[str] = labels
    with suppress(SpecError):  # without a valid sweep file: in the order of submission
        order = {**dict.fromkeys(runs.points_of_file(sweep_dir)), **dict.fromkeys(labels)}
    states = []
    for name in order:
        if name in labels:
            row = rows.get(name, {})
            log = _log(sweep_dir, row) if whole else None
            states.append(PointState(name, labels[name], row, log, name in orphans))
    return states


def _sent(sweep_dir: SweepDir) -> Iterator[tuple[Point, Manifest]]:
    """Yield the points of all submissions, oldest first, with the manifests of these."""
    for submission in sweep_dir.submissions():
        manifest = submission.read_manifest()
        for chunk in chunk_file.read_chunks(submission.chunks, manifest.chunks):
            for point in chunk.points:
                yield point, manifest


def _in_table(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the cells of a row that the table shows; equal texts share their memory."""
    cells = {"status": row["status"], "_shard": row["_shard"]}
    for name in _IN_TABLE:
        if row.get(name):
            cells[name] = sys.intern(row[name])
    return cells


def whole(sweep_dir: SweepDir, point: PointState) -> PointState:
    """Return a point with all cells of its row, and its log."""
    if not point.row:
        return point
    row = outcomes.rows_of([point.row["_shard"]])[point.point_id]
    return replace(point, row=row, log=_log(sweep_dir, row))


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
) -> Iterator[str]:
    """Yield a line for each point, folded where it is longer than `width`."""
    points = of_status(every, statuses)
    counts = PointTally()
    for point in points or every:
        if not point.orphan:
            counts.add(point.status, doubts_of(point.row))
    if not points:
        yield f"{name}: no point is {' or '.join(statuses) or 'there'} ({counts})"
        return
    orphans = sum(point.orphan for point in points)
    beside = f"; {count(orphans, 'orphan')}" if orphans else ""
    yield f"{name}: {counts}{beside}"
    yield ""
    # twice the same cells: those of all points would be the largest part of the memory
    widths = [len(cell) for cell in _HEAD]
    for point in points:
        widths = [*map(max, widths, map(len, _cells(point)))]
    for cells in chain([_HEAD], map(_cells, points)):
        yield from folded([in_columns(cells, widths)], width)


def _cells(point: PointState) -> list[str]:
    time = _rounded(point.row.get("median_ms"))
    node = str(point.row.get("node") or "")
    cells = (point.point_id[:_DIGITS], point.status, point.label, time, node, point.why)
    return [*map(shown, cells)]


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
