"""What rows tell of how long points took: seconds of a pass, and what a point takes beside them.

Rows of the sweep itself come first, the newest first; then those of other sweeps of the same
results folder; then what `hpcsweep predict` wrote for the sweep, which has times of passes only.
"""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import AXES, VISIT, Role, axes_of
from hpcsweep.catalog.columns import cell
from hpcsweep.errors import ResultsError
from hpcsweep.forecast import passes
from hpcsweep.records import dataclass, replace
from hpcsweep.store import rundir, shards
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpcsweep.store.rundir import RunDir, ShardPath

    Row = Mapping[str, Any]

Kind = tuple[str, ...]

# roles of axes whose values do not make another kind of point: the device is known otherwise
_WITHIN_A_KIND: Final = Role.AMOUNT | Role.NUMBERS | Role.REPETITION | Role.PLACE
_MOST: Final = 5_000  # rows that are read, which takes about a second
_MOST_OF_OTHERS: Final = 2_000
_PANDAS: Final = {"True": "true", "False": "false"}


@dataclass(frozen=True, kw_only=True)
class PointTime:
    """One row; `extra_s` are the seconds beside its passes, None where it has no wall time.

    `fresh` is what had to be made for it first: "worker" (and the network), "network", or nothing.
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


def names_of_kind(workload: str) -> tuple[str, ...]:
    """Return the axes that make the kind of a point; model and algorithm come first."""
    axes = axes_of(workload)
    kinds = {name for name, axis in axes.items() if not axis.role & _WITHIN_A_KIND}
    return ("model", "algorithm", *sorted(kinds - {"model", "algorithm"}))


def kind_of(names: Iterable[str], axes: Mapping[str, Any]) -> Kind:
    """Return the kind of a point, or of a row; one that is older than an axis has its default."""
    return tuple(cell(axes.get(name, AXES[name].default)) for name in names)


def measured(run: RunDir, workload: str, device: str) -> list[PointTime]:
    """Return what was measured on a device, this sweep's first: the newest rows of each."""
    found, left = _of_run(run, workload, device, _MOST), _MOST_OF_OTHERS
    for other in rundir.all_runs(run.path.parent):
        if other.path != run.path and left > 0:
            with suppress(ResultsError):  # another sweep need not be in order
                more = _of_run(other, workload, device, left)
                found, left = [*found, *more], left - len(more)
    return found


def predicted(run: RunDir, workload: str, device: str) -> list[PointTime]:
    """Return what `hpcsweep predict` wrote for this sweep about a device."""
    names = names_of_kind(workload)
    try:
        with run.file("predicted.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in islice(csv.DictReader(file), 4 * _MOST)
                    if row.get("gpu") == device and row.get("status") == "predicted"]  # fmt: skip
    except OSError:
        return []
    texts = ({name: _PANDAS.get(text, text) for name, text in row.items()} for row in rows)
    return [
        replace(found, width=passes.upper_factor(row))
        for row in texts
        for found in _took(run.name, names, workload, row, "")
    ]


def _of_run(run: RunDir, workload: str, device: str, most: int) -> list[PointTime]:
    names, found, read = names_of_kind(workload), list[PointTime](), 0
    for shard in _shards(run, workload, device):
        before = None
        for row in shards.read(shard).rows:
            read += 1
            now = row.get(VISIT), row.get("model")
            other_visit = before is None or before[0] != now[0]
            fresh = "worker" if other_visit else "" if before == now else "network"
            before = now
            mine = row.get("gpu") == device and row.get("workload") == workload
            if mine and row["status"] == PointStatus.OK:
                found += _took(run.name, names, workload, row, fresh)
        if read >= most:
            break
    return found


def _shards(run: RunDir, workload: str, device: str) -> Iterator[ShardPath]:
    """Yield the shards in which such rows can be, the newest first."""
    about = {one.id: (one.workload or workload, one.gpu or device) for one in run.manifests()}
    for shard in reversed(run.shards()):
        if about.get(shard.submission, (workload, device)) == (workload, device):
            yield shard


def _took(
    sweep: str, names: Iterable[str], workload: str, row: Row, fresh: str
) -> Iterator[PointTime]:
    """Yield what a row tells, if it has a time."""
    pass_s = passes.pass_seconds(workload, row)
    if math.isnan(pass_s):
        return
    extra = passes.wall_seconds(row) - pass_s * passes.of_row(workload, row)
    yield PointTime(
        sweep=sweep,
        kind=kind_of(names, row),
        work=passes.work(row),
        pass_s=pass_s,
        by_table=passes.by_table(row),
        extra_s=None if math.isnan(extra) else max(extra, 0.0),
        fresh=fresh,
        n=float(row.get("n") or 0),
        layer_factor=passes.layer_factor(row),
    )
