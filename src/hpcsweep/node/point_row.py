"""The row of a point: what was asked, on which machine it ran, and how it ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hpcsweep import __version__
from hpcsweep.catalog.columns import CLOCKED, SCHEMA_VERSION, Row, axis_cells
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from hpcsweep.node.protocol import Outcome
    from hpcsweep.point import Point
    from hpcsweep.store.manifest import Manifest
    from hpcsweep.store.rundir import ShardPath

_SLURM_KEYS: Final = {
    "slurm_job_id": ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID"),
    "slurm_array_task_id": ("SLURM_ARRAY_TASK_ID",),
}


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
        "wall_s": wall,
        "timed_share": None if outcome.timed_s is None else outcome.timed_s / wall,
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
