"""What the rows of a sweep say to the next round: times, spreads, what failed, what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcsweep.store import failures, shards
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hpcsweep.store.rundir import RunDir


@dataclass(frozen=True)
class Known:
    """Of the points with a row: by id the time and spread of those that are ok and not in doubt."""

    ms: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)  # (q3 - q1) / median of the passes
    settled: Collection[str] = frozenset()  # have a row of any status
    failed: Collection[str] = frozenset()
    seconds: float = 0.0  # that all rows of the rounds took


def read(run: RunDir, points: Collection[str], rounds: Collection[str]) -> Known:
    """Return what is known of some points, and what those of the rounds cost.

    Raises:
        ResultsError: a shard cannot be read.

    """
    found = run.shards()
    rows = {name: row for name, row in failures.rows_of(found).items() if name in points}
    rows = {name: row for name, row in rows.items() if row["status"] != PointStatus.PROFILED}
    good = {name: row for name, row in rows.items() if _is_good(row)}
    spent = [row for one in found for row in shards.read(one).rows if row["point_id"] in rounds]
    return Known(
        ms={name: float(row["median_ms"]) for name, row in good.items()},
        spread={name: float(row.get("iqr_rel") or 0) for name, row in good.items()},
        settled=rows.keys(),
        failed={name for name, row in rows.items() if row["status"] != PointStatus.OK},
        seconds=sum(float(row.get("wall_s") or 0) for row in spent),
    )


def _is_good(row: Mapping[str, Any]) -> bool:
    measured = row["status"] == PointStatus.OK and row.get("valid") != "false"
    return measured and float(row.get("median_ms") or 0) > 0
