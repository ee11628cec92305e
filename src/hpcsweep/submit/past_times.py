"""What valid rows tell of how long points took: on one device, this sweep's first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from hpcsweep.catalog import AUTOTUNE, AXES, VISIT, Role, axes_of
from hpcsweep.catalog.columns import cell
from hpcsweep.catalog.limits import is_impossible, number
from hpcsweep.catalog.sharing import network_of
from hpcsweep.errors import ResultsError
from hpcsweep.store import folders, shards
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import passes
from hpcsweep.submit.passes import Peaks

Row = Mapping[str, Any]
Kind = tuple[str, ...]

# Roles of axes whose values do not make another kind of point; the device is known otherwise.
_WITHIN_A_KIND: Final = Role.AMOUNT | Role.NUMBERS | Role.REPETITION | Role.PLACE
_MOST: Final = 5_000  # rows that are read, which takes about a second
WORKER: Final = "worker"  # what had to be made for a row first: a process that imports torch
NETWORK: Final = "network"  # or another worker of the same job, with its network


@dataclass(frozen=True, kw_only=True)
class PastTime:
    """A valid row: how long its passes took, and what came beside them."""

    sweep: str
    kind: Kind
    work: float
    slower: float  # its passes than planned, as a factor
    beside_s: float | None  # None: the row has no wall time, as of an imported table
    planned_s: float  # beside its passes
    made_first: str  # `WORKER`, `NETWORK`, or nothing
    n: float


def names_of_kind(workload: str) -> tuple[str, ...]:
    """Return the axes that make the kind of a point; the model comes first."""
    axes = axes_of(workload)
    kinds = {name for name, axis in axes.items() if not axis.role & _WITHIN_A_KIND}
    return ("model", *sorted(kinds - {"model"}))


def kind_of(names: Iterable[str], axes: Mapping[str, Any]) -> Kind:
    """Return the kind of a point, or of a row; one that is older than an axis has its default."""
    return tuple([cell(axes.get(name, AXES[name].default)) for name in names])


def measured(sweep_dir: SweepDir, peaks: Peaks) -> list[PastTime]:
    """Return what was measured on a device, in this sweep and those beside it; the newest rows."""
    others = folders.all_sweeps(sweep_dir.path.parent)
    times = list[PastTime]()
    for each in (sweep_dir, *(other for other in others if other.path != sweep_dir.path)):
        if len(times) < _MOST:
            with suppress(ResultsError):  # who needs its rows says that they cannot be read
                times += _of_sweep(each, peaks, _MOST - len(times))
    return times


def walls(sweep_dir: SweepDir) -> dict[str, float]:
    """Return the seconds that the points of a sweep took when they were last measured, by id."""
    rows = (row for shard in sweep_dir.shards() for row in shards.scan_shard(shard)[1])
    return {row["point_id"]: number(row, "wall_s") for row in rows if _is_valid(row)}


def _is_valid(row: Row) -> bool:
    return row["status"] == PointStatus.OK and row.get("valid") != "false"


def _of_sweep(sweep_dir: SweepDir, peaks: Peaks, most: int) -> Iterator[PastTime]:
    names = names_of_kind(peaks.workload)
    before = last_network = None
    for shard, row in islice(_rows(sweep_dir, peaks), most):
        visit = shard, row.get(VISIT)
        network = network_of(row), row.get("algorithm") == AUTOTUNE
        made_first = ""
        if visit != before:
            made_first = WORKER
        elif network != last_network:
            made_first = NETWORK
        before = visit
        last_network = network
        is_alike = row.get("gpu") == peaks.device and row.get("workload") == peaks.workload
        pass_s = (number(row, "mean_ms") or number(row, "median_ms")) / 1000
        if not is_alike or not _is_valid(row) or is_impossible(row) or not pass_s:
            continue
        wall_s = number(row, "wall_s")
        beside_s = max(wall_s - passes.made(peaks.workload, row) * pass_s, 0.0)
        yield PastTime(
            sweep=sweep_dir.name,
            kind=kind_of(names, row),
            work=passes.work(row),
            slower=pass_s / peaks.pass_s(row),
            beside_s=beside_s if wall_s else None,
            planned_s=peaks.beside_s(row, pass_s),
            made_first=made_first,
            n=number(row, "n"),
        )


def _rows(sweep_dir: SweepDir, peaks: Peaks) -> Iterator[tuple[ShardPath, Row]]:
    """Yield the rows of submissions to a device, the newest first; no other shard is read."""
    asked = peaks.workload, peaks.device
    for manifest in reversed(sweep_dir.manifests()):
        if (manifest.workload or peaks.workload, manifest.gpu or peaks.device) == asked:
            for shard in sweep_dir.shards_of(manifest.id):
                for row in shards.read_shard(shard).rows:
                    yield shard, row
