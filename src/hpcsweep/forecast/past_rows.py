"""What rows tell the next round of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hpcsweep.catalog import limits
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import PointStatus

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """The rows of points, by id."""

    times: Mapping[str, Sequence[float]]  # ms, the oldest first; only those that are valid
    rows: Mapping[str, int]  # how many, of any status
    failed: Collection[str] = frozenset()  # no row is ok
    too_large: Collection[str] = frozenset()  # ran out of memory, or would
    seconds: float = 0.0  # that all rows of the rounds took
    doubtful: Mapping[str, Row] = field(default_factory=dict)  # no ok row is valid
    controls: Sequence[float] = ()  # of valid rows, ms, the oldest first

    @cached_property
    def ms(self) -> Mapping[str, float]:
        """The last time of each point that has one."""
        return {name: times[-1] for name, times in self.times.items()}

    @cached_property
    def done(self) -> frozenset[str]:
        """The points that need no prediction: they have a time, failed, or are too large."""
        return frozenset({*self.ms, *self.failed, *self.too_large})


def known_points(sweep_dir: SweepDir, points: Collection[str], rounds: Collection[str]) -> Known:
    """Return what is known of some points, and what those of the rounds cost.

    Raises:
        ResultsError: a shard cannot be read.
    """
    every = [row for row in _rows(sweep_dir) if row["point_id"] in points]
    rows = [row for row in every if row["status"] != PointStatus.PROFILED]
    ok = [row for row in rows if row["status"] == PointStatus.OK]
    valid = [
        row
        for row in ok
        if row.get("valid") != "false"
        and limits.number(row, "median_ms")
        and not limits.is_impossible(row)
    ]
    times: dict[str, list[float]] = {}
    for row in valid:
        times.setdefault(row["point_id"], []).append(float(row["median_ms"]))
    counts = Counter(row["point_id"] for row in rows)
    failed = counts.keys() - {row["point_id"] for row in ok}
    newest = {row["point_id"]: row["status"] for row in rows}
    return Known(
        times,
        counts,
        failed=failed,
        too_large={name for name in failed if newest[name] == PointStatus.OOM},
        seconds=sum(float(row.get("wall_s") or 0) for row in rows if row["point_id"] in rounds),
        doubtful={row["point_id"]: row for row in ok if row["point_id"] not in times},
        controls=_controls(valid),
    )


def controls(sweep_dir: SweepDir, gpu: str) -> list[float]:
    """Return the times of the control at the valid points that a sweep has on a GPU so far."""
    return _controls(
        row for row in _rows(sweep_dir) if row["gpu"] == gpu and row["valid"] == "true"
    )


def _rows(sweep_dir: SweepDir) -> Iterator[Row]:
    return read_rows(sweep_dir.shards(), columns=None)


def _controls(rows: Iterable[Row]) -> list[float]:
    """Return the times of the control, the oldest first."""
    ms_of = ((row, float(row.get("control_ms") or 0)) for row in rows)
    return [ms for _, ms in sorted((row["started_at"], ms) for row, ms in ms_of if ms)]
