"""What rows tell the next round of a sweep."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hpcsweep.catalog import limits
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import PointStatus

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Known:
    """The rows of points, by id."""

    ms: Mapping[str, float]  # the last valid time
    tried: Collection[str]  # have a row, of any status
    failed: Collection[str] = frozenset()  # no row is ok
    too_large: Collection[str] = frozenset()  # ran out of memory, or would
    doubtful: Mapping[str, Row] = field(default_factory=dict)  # the last ok row, none is valid
    seconds: float = 0.0  # that all rows of the rounds took

    @cached_property
    def done(self) -> frozenset[str]:
        """The points that need no prediction: they have a time, failed, or are too large."""
        return frozenset({*self.ms, *self.failed, *self.too_large})


def known_points(sweep_dir: SweepDir, points: Collection[str], rounds: Collection[str]) -> Known:
    """Return what is known of some points, and what those of the rounds cost.

    Raises:
        ResultsError: a shard cannot be read.
    """
    newest: dict[str, PointStatus] = {}
    ok: dict[str, Row] = {}
    valid: dict[str, float] = {}
    seconds = 0.0
    for row in _rows(sweep_dir):
        name = row["point_id"]
        if name not in points or row["status"] == PointStatus.PROFILED:
            continue
        newest[name] = row["status"]
        if name in rounds:
            seconds += limits.number(row, "wall_s")
        if row["status"] != PointStatus.OK:
            continue
        ok[name] = row
        ms = limits.number(row, "median_ms")
        if row.get("valid") != "false" and ms and not limits.is_impossible(row):
            valid[name] = ms
    failed = newest.keys() - ok.keys()
    return Known(
        ms=valid,
        tried=newest.keys(),
        failed=failed,
        too_large={name for name in failed if newest[name] == PointStatus.OOM},
        doubtful={name: row for name, row in ok.items() if name not in valid},
        seconds=seconds,
    )


def controls(sweep_dir: SweepDir, gpu: str) -> list[float]:
    """Return the control's times at a sweep's valid points on a GPU so far, the oldest first."""
    found = []
    for row in _rows(sweep_dir):
        ms = limits.number(row, "control_ms")
        if ms and row["gpu"] == gpu and row["valid"] == "true":
            found.append((row["started_at"], ms))
    return [ms for _, ms in sorted(found)]


def _rows(sweep_dir: SweepDir) -> Iterator[Row]:
    return read_rows(sweep_dir.shards(), columns=None)
