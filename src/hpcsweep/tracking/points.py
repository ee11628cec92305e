"""The points of a sweep one by one: how each ended, why, where, and the line of its log."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.errors import SpecError, UsageError, suggest
from hpcsweep.point import varying
from hpcsweep.store import chunk_file, outcomes, runs
from hpcsweep.store.outcomes import PointTally, doubts_of
from hpcsweep.store.state import PointStatus
from hpcsweep.text import aligned, cut, folded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hpcsweep.point import Point
    from hpcsweep.store.rundir import RunDir, ShardPath

WAITING: Final = "waiting"  # no row yet
_DIGITS: Final = 8  # of an id, in the table
_LOG_LINES: Final = 40
_NODE: Final = 4  # column of the table


@dataclass(frozen=True)
class PointState:
    """A point, and its row if it has one."""

    point_id: str
    label: str
    row: Mapping[str, Any]
    log: Path | None

    @property
    def status(self) -> str:
        return str(self.row.get("status", WAITING))

    @property
    def why(self) -> str:
        """Return the reason of a point that failed, else the flags of its row."""
        return str(self.row.get("status_reason") or self.row.get("flags") or "")

    def log_line(self) -> int:
        """Return the line of the log where the point begins; 0 if it is not there."""
        return next((n for n, line in enumerate(self._lines, 1) if self.point_id in line), 0)

    def log_text(self) -> list[str]:
        """Return what the log says of the point, up to the line that ends it."""
        found: list[str] = []
        for line in self._lines:
            if found or self.point_id in line:
                found.append(line)
                if len(found) > 1 and self.point_id in line:
                    break
        return found[-_LOG_LINES:]

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        row = {name: cell for name, cell in self.row.items() if cell and isinstance(cell, str)}
        where = {"log": str(self.log), "log_line": self.log_line()} if self.log else {}
        named = {"point_id": self.point_id, "label": self.label, "status": self.status}
        return {**named, **row, **where}

    def text(self) -> str:
        """Return all that is known of the point: its cells, then its log."""
        cells = {name: str(value) for name, value in self.to_json().items()}
        lines = aligned([*cells.items()])
        return "\n".join([*lines, "", *self.log_text()] if self.log else lines)

    @cached_property
    def _lines(self) -> list[str]:
        if self.log is None:
            return []
        with suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return []


def of_status(every: Sequence[PointState], statuses: Sequence[str]) -> list[PointState]:
    """Return the points that have one of some statuses, or all; `UsageError` for what is none."""
    known = [*PointStatus, WAITING]
    for name in statuses:
        if name not in known:
            raise UsageError(f"no status '{name}'{suggest(name, known)} ({', '.join(known)})")
    return [point for point in every if not statuses or point.status in statuses]


def read(run: RunDir) -> list[PointState]:
    """Return the points of a sweep in its order; those it lost come last."""
    rows = outcomes.rows_of(run.shards())
    sent: dict[str, tuple[Point, Mapping[str, str]]] = {}
    for submission in run.submissions():
        manifest = submission.read_manifest()
        for index in range(manifest.chunks):
            for point in chunk_file.read_chunk(submission.chunks, index).points:
                sent[point.point_id] = point, manifest.maps
    telling = varying(point for point, _maps in sent.values())
    found = {
        name: PointState(name, point.label(maps, telling), row, _log(run, row))
        for name, (point, maps) in sent.items()
        for row in [rows.get(name, {})]
    }
    order = dict.fromkeys(found)
    with suppress(SpecError):  # then as they were sent
        order = dict.fromkeys((*filter(found.__contains__, runs.points_of_file(run)), *found))
    return list(map(found.__getitem__, order))


def named(found: Iterable[PointState], prefix: str) -> PointState:
    """Return the point whose id begins so; `UsageError` if none does, or several do."""
    fits = [one for one in found if one.point_id.startswith(prefix)]
    if len(fits) != 1:
        some = ", ".join(one.point_id for one in fits[:3])
        raise UsageError(f"{len(fits)} points begin with '{prefix}'{f' ({some})' if fits else ''}")
    return fits[0]


def table(
    name: str, every: Sequence[PointState], statuses: Sequence[str], width: int | None
) -> str:
    """Return a line for each point; with a width, one that fits a terminal, and reasons below."""
    found = of_status(every, statuses)
    counts = PointTally()
    for one in found or every:
        counts.add(one.status, doubts_of(one.row))
    if not found:
        return f"{name}: no point is {' or '.join(statuses) or 'there'} ({counts})"
    rows = [("point", "status", "what", "median ms", "node", "why")]
    for one in found:
        time, node = one.row.get("median_ms"), str(one.row.get("node") or "")
        rows.append((one.point_id[:_DIGITS], one.status, one.label, _rounded(time), node, one.why))
    one_node = len({row[_NODE] for row in rows[1:]}) < 2
    if width and one_node:  # more room for the reason
        told = [[*row[:_NODE], *row[_NODE + 1 :]] for row in rows]
    else:
        told = [[*row] for row in rows]
    return "\n".join([f"{name}: {counts}", "", *_fitted(told, width)])


def _fitted(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Yield the lines of a table; a reason that a line has no room for stands in the next ones."""
    begin = max(map(len, aligned([row[:-1] for row in rows]))) + 2
    for line in aligned(rows):
        if width is None or len(line) <= width:
            yield line
        else:
            yield cut(line[:begin].rstrip(), width)
            yield from folded([f"   {line[begin:]}"] if line[begin:] else [], width)


def _rounded(time: object) -> str:
    """Return a time with three digits; what is none, since its row was damaged, as it is."""
    try:
        return f"{float(str(time)):.3f}" if time else ""
    except ValueError:
        return str(time)


def _log(run: RunDir, row: Mapping[str, Any]) -> Path | None:
    if not row:
        return None
    shard: ShardPath = row["_shard"]
    return run.submission(shard.submission).log(shard.chunk, shard.attempt)
