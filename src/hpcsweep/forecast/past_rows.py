"""What rows tell of how long points took: to an estimate, and to the next round of a sweep."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final

from hpcsweep.catalog import AUTOTUNE, AXES, VISIT, Role, axes_of
from hpcsweep.catalog.columns import cell
from hpcsweep.catalog.limits import is_impossible
from hpcsweep.catalog.sharing import network_of
from hpcsweep.errors import ResultsError
from hpcsweep.forecast import passes
from hpcsweep.store import folders, shards
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.state import PointStatus

Row = Mapping[str, Any]

Kind = tuple[str, ...]

# roles of axes whose values do not make another kind of point: the device is known otherwise
_WITHIN_A_KIND: Final = Role.AMOUNT | Role.NUMBERS | Role.REPETITION | Role.PLACE
_MOST: Final = 5_000  # rows that are read, which takes about a second
_MOST_OF_OTHERS: Final = 2_000  # fewer than of the sweep's own rows, which tell more
_PANDAS: Final = {"True": "true", "False": "false"}


@dataclass(frozen=True, kw_only=True)
class PointTime:
    """One row; `extra_s` are the seconds beside its passes, None where it has no wall time.

    `fresh` is what had to be made for it first: "worker" (with torch), "network" (another worker of
    the same job, with its network), or nothing.
    """

    sweep: str
    kind: Kind
    work: float
    pass_s: float
    by_table: float  # seconds of a pass
    extra_s: float | None = None
    fresh: str = ""
    n: float = 0.0
    layer_factor: float | None = None
    width: float = 1.0  # of the interval of a predicted pass


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


def names_of_kind(workload: str) -> tuple[str, ...]:
    """Return the axes that make the kind of a point; model and algorithm come first."""
    axes = axes_of(workload)
    kinds = {name for name, axis in axes.items() if not axis.role & _WITHIN_A_KIND}
    return ("model", "algorithm", *sorted(kinds - {"model", "algorithm"}))


def kind_of(names: Iterable[str], axes: Mapping[str, Any]) -> Kind:
    """Return the kind of a point, or of a row; one that is older than an axis has its default."""
    return tuple(cell(axes.get(name, AXES[name].default)) for name in names)


def measured(sweep_dir: SweepDir, workload: str, device: str) -> list[PointTime]:
    """Return what was measured on a device, this sweep's first: the newest rows of each."""
    own = _of_run(sweep_dir, workload, device, _MOST)
    others = list[PointTime]()
    for other in folders.all_sweeps(sweep_dir.path.parent):
        if other.path != sweep_dir.path and len(others) < _MOST_OF_OTHERS:
            with suppress(ResultsError):  # another sweep need not be in order
                others += _of_run(other, workload, device, _MOST_OF_OTHERS - len(others))
    return own + others


def predicted(sweep_dir: SweepDir, workload: str, device: str) -> list[PointTime]:
    """Return what `hpcsweep predict` wrote for this sweep about a device."""
    names = names_of_kind(workload)
    try:
        with sweep_dir.file("predicted.csv").open(newline="", encoding="utf-8") as file:
            rows = [{name: _PANDAS.get(text, text) for name, text in row.items()}
                    for row in islice(csv.DictReader(file), 4 * _MOST)
                    if row.get("gpu") == device and row.get("status") == "predicted"]  # fmt: skip
    except OSError:
        return []
    return [
        replace(point, width=passes.upper_factor(row))
        for row in rows
        for point in _took(sweep_dir.name, names, workload, row, "")
    ]


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
        and passes.number(row, "median_ms", 0)
        and not is_impossible(row)
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


def walls(sweep_dir: SweepDir) -> list[float]:
    """Return the seconds that the measured points of a sweep took."""
    ok = (row for row in _rows(sweep_dir) if row["status"] == PointStatus.OK)
    return [passes.number(row, "wall_s", 0) for row in ok]


def controls(sweep_dir: SweepDir, gpu: str) -> list[float]:
    """Return the times of the control at the valid points that a sweep has on a GPU so far."""
    return _controls(
        row for row in _rows(sweep_dir) if row["gpu"] == gpu and row["valid"] == "true"
    )


def _rows(sweep_dir: SweepDir) -> Iterator[Row]:
    return (row for shard in sweep_dir.shards() for row in shards.scan_shard(shard)[1])


def _controls(rows: Iterable[Row]) -> list[float]:
    """Return the times of the control, the oldest first."""
    ms_of = ((row, float(row.get("control_ms") or 0)) for row in rows)
    return [ms for _, ms in sorted((row["started_at"], ms) for row, ms in ms_of if ms)]


def _of_run(sweep_dir: SweepDir, workload: str, device: str, most: int) -> list[PointTime]:
    names = names_of_kind(workload)
    times = list[PointTime]()
    read = 0
    for shard in _shards(sweep_dir, workload, device):
        before = None
        for row in shards.read_shard(shard).rows:
            read += 1
            now = row.get(VISIT), network_of(row), row.get("algorithm") == AUTOTUNE
            other_visit = before is None or before[0] != now[0]
            fresh = "worker" if other_visit else "" if before == now else "network"
            before = now
            mine = row.get("gpu") == device and row.get("workload") == workload
            if mine and row["status"] == PointStatus.OK and not is_impossible(row):
                times += _took(sweep_dir.name, names, workload, row, fresh)
        if read >= most:
            break
    return times


def _shards(sweep_dir: SweepDir, workload: str, device: str) -> Iterator[ShardPath]:
    """Return the shards in which such rows can be, the newest first."""
    others = {
        manifest.id
        for manifest in sweep_dir.manifests()
        if (manifest.workload or workload, manifest.gpu or device) != (workload, device)
    }
    return (shard for shard in reversed(sweep_dir.shards()) if shard.submission not in others)


def _took(
    sweep: str, names: Iterable[str], workload: str, row: Row, fresh: str
) -> Iterator[PointTime]:
    """Yield what a row tells, if it has a time."""
    pass_s = passes.pass_seconds(workload, row)
    if math.isnan(pass_s):
        return
    extra = passes.number(row, "wall_s") - pass_s * passes.of_row(workload, row)
    yield PointTime(
        sweep=sweep,
        kind=kind_of(names, row),
        work=passes.work(row),
        pass_s=pass_s,
        by_table=passes.table(row)(passes.work(row)),
        extra_s=None if math.isnan(extra) else max(extra, 0.0),
        fresh=fresh,
        n=float(row.get("n") or 0),
        layer_factor=passes.layer_factor(row),
    )
