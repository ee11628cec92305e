"""Reports a collected training sweep: throughput, and where the time of a step goes.

Rows are configurations. `step` is the median of the training pass. The phases are means of the
phase pass, so they add up to a mean step, which differs from `step` where steps are noisy. Where an
algorithm did not do all convolutions, a column says how much of the forward pass it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset
from hpcsweep.analysis.formats import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcsweep.analysis.dataset import Dataset

_ALWAYS: Final = ("model", "batch_size")
PHASES: Final = ("data", "h2d", "forward", "loss", "backward", "optimizer")
# column, heading, format: of one step, in milliseconds
STEP: Final = (
    ("throughput_sps", "samples/s", ".1f"),
    ("median_ms", "step", ".3f"),
    *((f"phase_{part}_ms", part, ".3f") for part in PHASES),
    ("algorithm_coverage_pct", "covered", ""),
    ("mem_peak_bytes", "MiB", ".0f"),
    ("params", "Mparams", ".1f"),
    ("val_accuracy_before", "acc before", ".3f"),
    ("val_accuracy_after", "acc after", ".3f"),
)
# the same parts over the whole training, in seconds
WHOLE: Final = (
    *((f"{part}_total_s", part, ".3f") for part in PHASES),
    ("train_s", "all", ".3f"),
    ("epoch_s", "epoch", ".3f"),
)
_COVERAGE: Final = "algorithm_coverage_pct"
_UNITS: Final = {"mem_peak_bytes": 1 << 20, "params": 1_000_000}


@dataclass(frozen=True)
class TrainingReport:
    """The figures of one training sweep: a row per configuration, which `keys` tell apart."""

    data: Dataset
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def views(self) -> list[View]:
        """Return the tables of a step and of the whole training; the first has all values."""
        heading = f"{self.data.run.name}: training, ms of a step ({self.data.counts()})"
        partial = any(row.get(_COVERAGE) not in {None, 100.0} for row in self.rows)
        step = [column for column in STEP if partial or column[0] != _COVERAGE]
        notes = [f"covered: {dataset.COVERAGE} (forward pass)"] if partial else []
        notes += self.data.notes()
        record = {**self.data.record(self.rows), "notes": notes}
        frame = pd.DataFrame(self.rows, dtype=object)
        left = len(self.keys)
        return [
            View(heading, frame, self._texts(step), left, record=record),
            View(
                "seconds of the whole training", frame, self._texts(WHOLE), left, notes,
                marks=dataset.unreliable(self.data.rows),
            ),
        ]  # fmt: skip

    def _texts(self, columns: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
        keys = {
            key: [dataset.format_value(key, row[key]) for row in self.rows] for key in self.keys
        }
        cells = {
            head: [_cell(row, name, form) for row in self.rows] for name, head, form in columns
        }
        return pd.DataFrame({**keys, **cells})


def make(data: Dataset) -> TrainingReport:
    """Return the report of measured training points."""
    varying = dataset.varying_axes(data.rows)
    keys = tuple(axis for axis in catalog.AXES if axis in _ALWAYS or axis in varying)
    columns = [*keys, *(name for name, _, _ in (*STEP, *WHOLE) if name in data.rows)]
    ordered = data.rows.sort_values(list(keys))
    doubtful = dataset.doubtful(ordered) | ~dataset.valid(ordered)
    rows = tuple(
        {**{name: dataset.to_json(name, row[name]) for name in columns}, "doubtful": bool(bad)}
        for row, bad in zip(ordered.to_dict("records"), doubtful, strict=True)
    )
    return TrainingReport(data, keys, rows)


def _cell(row: dict[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    if value is None:
        return "-"
    if name == _COVERAGE:
        return dataset.share(value).strip() or "100 %"
    text = format(value / _UNITS.get(name, 1), form)
    return f"{text}?" if row["doubtful"] and name == "median_ms" else text
