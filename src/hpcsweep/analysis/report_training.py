"""One table of a collected training sweep: throughput, and where a step's time goes.

Rows are configurations. `step` is the median of the training pass; the phases are means of the
phase pass, so their sum is near to a mean step, and not to `step` where steps are noisy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import catalog
from hpcsweep.analysis import dataset
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcsweep.analysis.dataset import Dataset

TRAINING: Final = "training"
_ALWAYS: Final = ("model", "batch_size")
# column, heading, format
_SHOWN: Final = (
    ("throughput_sps", "samples/s", ".1f"),
    ("median_ms", "step", ".3f"),
    ("phase_data_ms", "data", ".3f"),
    ("phase_h2d_ms", "h2d", ".3f"),
    ("phase_forward_ms", "forward", ".3f"),
    ("phase_loss_ms", "loss", ".3f"),
    ("phase_backward_ms", "backward", ".3f"),
    ("phase_optimizer_ms", "optimizer", ".3f"),
    ("mem_peak_bytes", "MiB", ".0f"),
    ("params", "Mparams", ".1f"),
    ("val_accuracy_before", "acc before", ".3f"),
    ("val_accuracy_after", "acc after", ".3f"),
)
# the same parts over the whole training, seconds
_TOTALS: Final = (
    ("data_total_s", "data", ".3f"),
    ("h2d_total_s", "h2d", ".3f"),
    ("forward_total_s", "forward", ".3f"),
    ("loss_total_s", "loss", ".3f"),
    ("backward_total_s", "backward", ".3f"),
    ("optimizer_total_s", "optimizer", ".3f"),
    ("train_s", "all", ".3f"),
    ("epoch_s", "epoch", ".3f"),
)
_UNITS: Final = {"mem_peak_bytes": 1 << 20, "params": 1_000_000}


@dataclass(frozen=True)
class TrainingReport:
    """The table of one training sweep, ready to be shown."""

    data: Dataset
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    files: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plain record: a row has its axes, and the columns by their own names."""
        return {
            "sweep": self.data.run.name,
            "statuses": self.data.statuses,
            "orphans": self.data.orphans,
            "rows": list(self.rows),
            "files": [str(path) for path in self.files],
        }

    def text(self) -> str:
        """Return the table for a terminal."""
        heading = f"{self.data.run.name}: training, ms of a step ({self.data.counts()})"
        table = [
            *self._table(_SHOWN),
            "",
            "seconds of the whole training",
            "",
            *self._table(_TOTALS),
        ]
        notes = ["?  doubtful: the column `flags` says why"]
        doubts = notes if any(row["doubtful"] for row in self.rows) else []
        return "\n".join([heading, "", *table, "", *doubts, *dataset.files(self.data.run)])

    def _table(self, shown: Sequence[tuple[str, str, str]]) -> list[str]:
        """Return the lines of some columns, one row per configuration."""
        head = [*self.keys, *(name for _, name, _ in shown)]
        body = [
            [*(dataset.shown(row[key]) for key in self.keys), *_cells(row, shown)]
            for row in self.rows
        ]
        return aligned([head, *body], left=len(self.keys))


def make(data: Dataset) -> TrainingReport:
    """Return the report of measured training points."""
    varying = dataset.varying_axes(data.rows)
    keys = tuple(axis for axis in catalog.AXES if axis in _ALWAYS or axis in varying)
    columns = [*keys, *(name for name, _, _ in (*_SHOWN, *_TOTALS) if name in data.rows)]
    ordered = data.rows.sort_values(list(keys))
    doubtful = dataset.doubtful(ordered)
    rows = tuple(
        {**{name: dataset.plain(name, row[name]) for name in columns}, "doubtful": bool(bad)}
        for row, bad in zip(ordered.to_dict("records"), doubtful, strict=True)
    )
    run = data.run
    files = tuple(path for path in (run.overall, run.layers, run.samples) if path.exists())
    return TrainingReport(data, keys, rows, files)


def _cells(row: dict[str, Any], shown: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the texts of the shown columns; unknown is a dash."""
    return [_cell(row, name, form) for name, _, form in shown]


def _cell(row: dict[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    if value is None:
        return "-"
    text = format(value / _UNITS.get(name, 1), form)
    return f"{text}?" if row["doubtful"] and name == "median_ms" else text
