"""The reports of the workloads that compare no algorithms: training steps, and commands.

Of training, `step` is the median of the training pass. The phases are means of the phase pass, so
they add up to a mean step, which differs from `step` where steps are noisy.

Of commands it is what each said, and how long it ran: of several visits a number is their median,
of anything else the last. `report` chooses which one a sweep has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset, formats, reliability
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.formats import View
from hpcsweep.catalog.columns import FOREIGN
from hpcsweep.store.state import PointStatus

_COVERAGE: Final = "algorithm_coverage_pct"
_MEDIAN: Final = "median_ms"
_STEP_KEYS: Final = ("model", "batch_size")
PHASES: Final = ("data", "h2d", "forward", "loss", "backward", "optimizer")
_HEADS: Final = {"optimizer": "optim."}  # an axis has the whole word
# column, heading, format: of one step, in milliseconds
STEP: Final = (
    ("throughput_sps", "samples/s", ".1f"), (_MEDIAN, "step", ".3f"),
    *((f"phase_{part}_ms", _HEADS.get(part, part), ".3f") for part in PHASES),
    (_COVERAGE, "covered", ""), ("mem_peak_bytes", "MiB", ".0f"), ("params", "Mparams", ".1f"),
    ("val_accuracy_before", "acc before", ".3f"), ("val_accuracy_after", "acc after", ".3f"),
)  # fmt: skip
# the same parts over the whole training, in seconds
WHOLE: Final = (
    *((f"{part}_total_s", _HEADS.get(part, part), ".3f") for part in PHASES),
    ("train_s", "all", ".3f"), ("epoch_s", "epoch", ".3f"),
)  # fmt: skip
READ: Final = tuple(name for name, _head, _form in (*STEP, *WHOLE))
_UNITS: Final = {"mem_peak_bytes": 1 << 20, "params": 1_000_000}
_SAID: Final = "what the command said; only the time of the run was measured here"


@dataclass(frozen=True)
class TrainingReport:
    """The figures of one training sweep: a row per configuration, which `keys` tell apart."""

    data: Dataset
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def views(self) -> list[View]:
        """Return the tables of a step and of the whole training; the first has all values."""
        heading = f"{self.data.sweep_dir.name}: training, ms of a step ({self.data.counts()})"
        partial = any(row.get(_COVERAGE) not in {None, 100.0} for row in self.rows)
        step = [column for column in STEP if partial or column[0] != _COVERAGE]
        notes = [f"covered: {formats.COVERAGE} (forward pass)"] if partial else []
        notes += self.data.notes()
        record = {**self.data.record(self.rows), "notes": notes}
        frame = pd.DataFrame(self.rows, dtype=object)
        left = len(self.keys)
        marks = reliability.unreliable(self.data.rows)
        whole = View(
            "seconds of the whole training", frame, self._texts(WHOLE), left, notes, marks=marks
        )
        return [View(heading, frame, self._texts(step), left, record=record), whole]

    def _texts(self, columns: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
        texts = formats.texts(pd.DataFrame(self.rows, dtype=object), self.keys)
        for name, head, form in columns:
            texts[head] = [_step_cell(row, name, form) for row in self.rows]
        return pd.DataFrame(texts)


def of_training(data: Dataset) -> TrainingReport:
    """Return the report of a sweep that trains."""
    every = data.every
    varying = dataset.varying_axes(every)
    keys = tuple(axis for axis in catalog.AXES if axis in _STEP_KEYS or axis in varying)
    columns = [*keys, *(name for name in READ if name in data.rows), "status"]
    ordered = every.sort_values(list(keys))
    ok = ordered["status"] == PointStatus.OK
    doubtful = ok & (reliability.doubtful(ordered) | ~reliability.valid(ordered))
    rows = []
    for cells, is_doubtful in zip(ordered.to_dict("records"), doubtful, strict=True):
        row = {name: formats.to_json(name, cells[name]) for name in columns}
        rows.append({**row, "doubtful": bool(is_doubtful)})
    return TrainingReport(data, keys, tuple(rows))


def _step_cell(row: dict[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    if value is None:
        return row["status"] if name == _MEDIAN else "-"
    if name == _COVERAGE:
        return formats.share(value).strip() or "100 %"
    text = format(value / _UNITS.get(name, 1), form)
    return f"{text}?" if row["doubtful"] and name == _MEDIAN else text


@dataclass(frozen=True)
class CommandReport:
    """The results of one sweep of commands; `keys` tell the rows apart."""

    data: Dataset
    keys: tuple[str, ...]
    table: pd.DataFrame

    def views(self) -> list[View]:
        """Return the table."""
        left = len(self.keys)
        texts = formats.texts(self.table, self.keys)
        for name in map(str, self.table.columns[left:]):
            texts[formats.label(name)] = [*map(_said_cell, self.table[name])]
        view = View(
            title=f"{self.data.sweep_dir.name}: what the command said ({self.data.counts()})",
            frame=self.table, texts=pd.DataFrame(texts), left=left + 1, notes=self.data.notes(),
            marks=[f"   {FOREIGN}: {_SAID}"],
        )  # fmt: skip
        return [replace(view, record=self.data.record(view.rows()))]


def of_command(data: Dataset, metric: str = "") -> CommandReport:
    """Return the report, of one column if `metric` names it; `UsageError` if it has no numbers."""
    if metric:
        data.numbers(data.rows, metric)
    every = data.every
    keys = tuple(axis for axis in dataset.varying_axes(every) if axis != catalog.VISIT)
    # the constant is a key where no axis varies
    grouped = every.assign(_all=0).groupby(["_all", *keys], dropna=False)
    names = [metric] if metric else [*dataset.own_results(data.rows), _MEDIAN]
    columns = {"status": grouped["status"].last()}
    for name in names:
        cells = grouped[name]
        columns[name] = cells.median() if dataset.is_quantity(name, every) else cells.last()
    table = pd.DataFrame(columns).reset_index()
    return CommandReport(data, keys, table[[*keys, "status", *names]])


def _said_cell(value: Any) -> str:  # noqa: ANN401 - a cell
    if pd.isna(value):
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
