"""What rows tell of how long points took: seconds of a pass, and what a point takes beside them.

Rows of the sweep itself come first, the newest first; then those of other sweeps of the same
results folder; then what `hpcsweep predict` wrote for the sweep, which has times of passes only.
"""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import AXES, axis_defaults
from hpcsweep.catalog.columns import cell
from hpcsweep.errors import ResultsError
from hpcsweep.store import rundir, shards
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import passes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpcsweep.store.rundir import RunDir

    Row = Mapping[str, Any]

Kind = tuple[str, ...]

# Axes that say how much is done, or only change numbers; the others make the kind of a point.
AMOUNTS: Final = ("input_size", "batch_size", "dataset", "epochs", "steps_per_epoch")
_NUMBERS: Final = {
    "gpu", "seed", "weights", "input_fill", "lr", "weight_decay", "lr_schedule", "lr_warmup_steps",
    "label_smoothing", "num_classes",
}  # fmt: skip
_MOST: Final = 20_000  # rows, of which 5,000 take a second
_MOST_OF_OTHERS: Final = 2_000
_PANDAS: Final = {"True": "true", "False": "false"}


@dataclass(frozen=True, kw_only=True)
class Took:
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
    rest = axis_defaults(workload).keys() - set(AMOUNTS) - _NUMBERS - {"model", "algorithm"}
    return ("model", "algorithm", *sorted(rest))


def kind_of(names: Iterable[str], axes: Mapping[str, Any]) -> Kind:
    """Return the kind of a point, or of a row; one that is older than an axis has its default."""
    return tuple(cell(axes.get(name, AXES[name].default)) for name in names)


def measured(run: RunDir, workload: str, device: str) -> list[Took]:
    """Return what was measured on a device, this sweep's first, up to some number of rows."""
    others = [one for one in rundir.all_runs(run.path.parent) if one.path != run.path]
    found = (took for one in others for took in _readable(one, workload, device))
    return [*islice(_of_run(run, workload, device), _MOST), *islice(found, _MOST_OF_OTHERS)]


def predicted(run: RunDir, workload: str, device: str) -> list[Took]:
    """Return what `hpcsweep predict` wrote for this sweep about a device."""
    names = names_of_kind(workload)
    try:
        with run.file("predicted.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in islice(csv.DictReader(file), _MOST)
                    if row.get("gpu") == device and row.get("status") == "predicted"]  # fmt: skip
    except OSError:
        return []
    return [
        Took(
            sweep=run.name,
            kind=kind_of(names, {name: _PANDAS.get(text, text) for name, text in row.items()}),
            work=passes.work(row),
            pass_s=float(row["median_ms"]) / 1000,
            by_table=passes.by_table(row),
            width=float(row["predicted_hi_ms"]) / float(row["median_ms"]),
        )
        for row in rows
    ]


def _readable(run: RunDir, workload: str, device: str) -> Iterator[Took]:
    """Yield the rows of another sweep, which need not be in order."""
    with suppress(ResultsError):
        yield from _of_run(run, workload, device)


def _of_run(run: RunDir, workload: str, device: str) -> Iterator[Took]:
    names = names_of_kind(workload)
    for shard in reversed(run.shards()):
        before = None
        for row in shards.read(shard).rows:
            fresh = "worker" if before is None else "" if before == row.get("model") else "network"
            before = row.get("model")
            pass_s = passes.pass_seconds(workload, row)
            mine = row.get("gpu") == device and row.get("workload") == workload
            if not mine or row["status"] != PointStatus.OK or math.isnan(pass_s):
                continue
            extra = passes.wall_seconds(row) - pass_s * passes.of_row(workload, row)
            yield Took(
                sweep=run.name,
                kind=kind_of(names, row),
                work=passes.work(row),
                pass_s=pass_s,
                by_table=passes.by_table(row),
                extra_s=None if math.isnan(extra) else max(extra, 0.0),
                fresh=fresh,
                n=float(row.get("n") or 0),
                layer_factor=passes.layer_factor(row),
            )
