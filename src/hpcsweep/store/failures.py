"""Rows as they lie in the shards: the one that counts of each point, and why points failed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.point import NO_MAPS, Point
from hpcsweep.store import shards
from hpcsweep.store.state import PointStatus, rank
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcsweep.store.rundir import ShardPath

_NUMBER: Final = re.compile(r"\d[\d.,]*")
WELL: Final = frozenset({PointStatus.OK, PointStatus.PROFILED})


@dataclass(frozen=True)
class Failure:
    """Points that were not measured for one reason; `first` is the label of the first one."""

    status: str
    reason: str
    points: int
    first: str

    def __str__(self) -> str:
        others = f" and {count(self.points - 1, 'other')}" if self.points > 1 else ""
        return f"{self.points:,} {self.status}: {self.reason} ({self.first}{others})"


def grouped(rows: Iterable[Mapping[str, Any]], maps: Mapping[str, str] = NO_MAPS) -> list[Failure]:
    """Return the rows of points that were not measured by reason, the most frequent first.

    Reasons that differ in numbers only are one. `maps` has names of maps of algorithms.
    """
    groups: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
    for row in rows:
        reason = row.get("status_reason") or "no reason was given"
        groups.setdefault((row["status"], _NUMBER.sub("#", reason)), []).append((reason, row))
    found = [
        Failure(status, of_one[0][0], len(of_one), Point("", dict(of_one[0][1])).label(maps))
        for (status, _), of_one in groups.items()
    ]
    return sorted(found, key=lambda one: -one.points)


def rows_of(found: Iterable[ShardPath]) -> dict[str, Mapping[str, Any]]:
    """Return the row that counts of each point, in the order of the shards, the oldest first.

    The key `_shard` of a row is where it lies.

    Raises:
        ResultsError: a shard cannot be read.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    for shard in found:
        for row in shards.read(shard).rows:
            row["_shard"] = shard
            before = rows.get(row["point_id"])
            if before is None or _rank(row) >= _rank(before):
                rows[row["point_id"]] = row
    return rows


def of(found: Iterable[ShardPath], maps: Mapping[str, str] = NO_MAPS) -> list[Failure]:
    """Return why points of these shards were not measured.

    It reads whole rows, so callers ask only if a status is not in `WELL`.
    """
    failed = (row for row in rows_of(found).values() if row["status"] not in WELL)
    return grouped(failed, maps)


def _rank(row: Mapping[str, Any]) -> int:
    return rank(PointStatus(row["status"]))
