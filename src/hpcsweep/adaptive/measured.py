"""What the rows of a sweep say to the next round: times, what failed, what it cost, the noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcsweep.records import dataclass, field
from hpcsweep.store import shards
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from hpcsweep.store.rundir import RunDir


@dataclass(frozen=True)
class Known:
    """The rows of points, by id."""

    times: Mapping[str, Sequence[float]]  # ms, the oldest first; only those that are valid
    rows: Mapping[str, int]  # how many, of any status
    failed: Collection[str] = frozenset()  # no row is ok
    seconds: float = 0.0  # that all rows of the rounds took
    doubtful: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # no ok row is valid
    controls: Sequence[float] = ()  # of valid rows, ms, the oldest first

    @cached_property
    def ms(self) -> Mapping[str, float]:
        """The last time of each point that has one."""
        return {name: times[-1] for name, times in self.times.items()}

    @cached_property
    def done(self) -> frozenset[str]:
        """The points that need no prediction: they have a time, or failed."""
        return frozenset({*self.ms, *self.failed})

    @cached_property
    def differences(self) -> list[float]:
        """By what share two times of the same point differ, of those that have two."""
        return [abs(t[-1] / t[0] - 1) for t in self.times.values() if len(t) > 1]


@dataclass
class _Read:
    times: dict[str, list[float]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    ok: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # the last one
    seconds: float = 0.0
    controls: list[tuple[str, float]] = field(default_factory=list)  # begin of the row, ms


def read(run: RunDir, points: Collection[str], rounds: Collection[str]) -> Known:
    """Return what is known of some points, and what those of the rounds cost.

    Raises:
        ResultsError: a shard cannot be read.
    """
    found = _Read()
    for shard in run.shards():
        for row in shards.read(shard).rows:
            name = row["point_id"]
            if name not in points or row["status"] == PointStatus.PROFILED:
                continue
            found.rows[name] += 1
            found.seconds += float(row.get("wall_s") or 0) if name in rounds else 0.0
            if row["status"] == PointStatus.OK:
                found.ok[name] = row
                if _is_valid(row):
                    found.times.setdefault(name, []).append(float(row["median_ms"]))
                    if control := float(row.get("control_ms") or 0):
                        found.controls.append((row["started_at"], control))
    failed = found.rows.keys() - found.ok.keys()
    doubtful = {name: row for name, row in found.ok.items() if name not in found.times}
    controls = [ms for _, ms in sorted(found.controls)]
    return Known(found.times, found.rows, failed, found.seconds, doubtful, controls)


def _is_valid(row: Mapping[str, Any]) -> bool:
    return row.get("valid") != "false" and float(row.get("median_ms") or 0) > 0
