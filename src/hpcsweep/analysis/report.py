"""Compares the algorithms of a collected sweep in one table; of a training sweep, where steps go.

Rows are configurations, columns are algorithms, cells are medians in milliseconds, or the values of
another column, or the status of a point that was not measured. A cell says how much of the
convolutions its algorithm did, if not all, since a `winograd` time of a network that mostly fell
back to `auto` is not a Winograd time. Unreliable medians carry a question mark.

The fastest has a star only if it is valid and reliable, its algorithm did a part of the work, and
it is ahead by more than what varies between visits (`verdicts`): passes of one visit agree better
with each other than with the next. Of single visits only a large lead is one; where it does not
suffice, the fastest is named as what it is, the fastest here.

Of training, `step` is the median of the training pass. The phases are means of the phase pass, so
they add up to a mean step, which differs from `step` where steps are noisy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import command_report, dataset, formats, verdicts
from hpcsweep.analysis.command_report import CommandReport
from hpcsweep.analysis.formats import View
from hpcsweep.catalog.columns import DOUBTFUL, FOREIGN
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import PointStatus

_COVERAGE: Final = "algorithm_coverage_pct"
_AXES: Final = tuple(name for name in catalog.AXES if name != "algorithm")
_ALWAYS: Final = ("model", "input_size")
_MEDIAN: Final = "median_ms"
# axes that only repeat; another seed repeats, too, but is another network and has its own row
_VISITS: Final = tuple(n for n in _AXES if catalog.AXES[n].role == catalog.Role.REPETITION)
_AXES_OF_A_ROW: Final = tuple(name for name in _AXES if name not in _VISITS)
_USED: Final = ("point_id", "flags", _COVERAGE, *_VISITS)
# a row with another doubt may take less than it says: nothing is the fastest beside it
_TIME_UNKNOWN: Final = DOUBTFUL - {
    *("very_noisy", "inaccurate", "unverified", "algorithm_absent", "unproven")
}
_STAR: Final = "*  fastest: valid, and ahead by more than what varies between visits"
_HERE: Final = "'  fastest here, by {} %, {} can tell more"
_NOT_REPEATED: Final = "not repeated: `measure: {repeats: 3}`"
_FEW_VALID: Final = "but in fewer than three valid visits: `hpcsweep retry %s --invalid`"


@dataclass(frozen=True)
class Report:
    """The medians of one sweep, or another `metric`; `keys` tell the rows apart."""

    data: dataset.Dataset
    table: pd.DataFrame
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    metric: str

    @property
    def algorithms(self) -> tuple[str, ...]:
        names = {*self.table["algorithm"], *(name for row in self.rows for name in row["failed"])}
        return tuple(sorted(names, key=lambda name: dataset.rank("algorithm", name)))

    def views(self) -> list[View]:
        """Return the table: its values, with coverage and doubts, and what people read."""
        rows = self.rows
        shares = self._partial()
        frame: dict[str, Any] = {key: [row[key] for row in rows] for key in self.keys}
        texts = dataset.texts(frame, self.keys)
        for name in self.algorithms:
            frame[name] = [row[self.metric].get(name) for row in rows]
            partial = name in shares
            texts[name] = [_cell(row, name, self.metric, with_share=partial) for row in rows]
        for name in filter(shares.__contains__, self.algorithms):
            frame[f"{name}_coverage_pct"] = [row["coverage_pct"].get(name) for row in rows]
        frame["fastest"] = [row["fastest"] for row in rows]
        frame["doubtful"] = [";".join(row["doubtful"]) for row in rows]
        marks = [_STAR] if any(frame["fastest"]) else []
        few_valid = _FEW_VALID % self.data.sweep_dir.name
        for repeated, why in ((False, _NOT_REPEATED), (True, few_valid)):
            here = [row for row in rows if row["fastest_here"] and row["repeated"] is repeated]
            ahead = sorted(row["ahead_pct"] for row in here)
            ends = dict.fromkeys(f"{percent:.0f}" for percent in (*ahead[:1], *ahead[-1:]))
            marks += [_HERE.format(" to ".join(ends), why)] if ahead else []
        marks += [f"%  {dataset.COVERAGE}"] if shares else []
        what = "median ms of one pass" if self.metric == _MEDIAN else formats.label(self.metric)
        return [View(
            title=f"{self.data.sweep_dir.name}: {what} ({self.data.counts()})",
            frame=pd.DataFrame(frame, dtype=object), texts=pd.DataFrame(texts), left=len(self.keys),
            notes=self.data.notes(), record=self.data.record(rows),
            marks=[*marks, *dataset.unreliable(self.table)],
        )]  # fmt: skip

    def _partial(self) -> set[str]:
        cells = (cell for row in self.rows for cell in row["coverage_pct"].items())
        return {name for name, share in cells if share is not None and share < 100}


def read_report(
    sweep_dir: SweepDir, *, where: str = "", metric: str = ""
) -> Report | TrainingReport | CommandReport:
    """Read a sweep's report; one that trains has a table of its own without `metric`."""
    return make(dataset.read_dataset(sweep_dir, where, {metric, *_READ}), metric)


def make(data: dataset.Dataset, metric: str = "") -> Report | TrainingReport | CommandReport:
    """Return the report of measured points; `UsageError` where none has a number."""
    if data.is_of_command:
        return command_report.make(data, metric)
    if data.trains and not metric:
        return _of_training(data)
    metric = metric or _MEDIAN
    if metric in catalog.AXES:
        raise UsageError(f"{metric} is an axis, which tells the rows apart; --metric takes a value")
    rows = data.numbers(data.rows, metric)
    valid = dataset.valid(rows)
    apart = not dataset.is_foreign(rows)  # else their doubt tells no row from another
    table = rows[[name for name in rows if name in {*catalog.AXES, *_USED, metric}]].assign(
        algorithm=rows["algorithm"].astype(str), valid=valid,
        doubtful=apart & (dataset.doubtful(rows) | ~valid),
        unfit=apart & (dataset.doubtful(rows, noise=False) | ~valid),
    )  # fmt: skip
    failed = data.failed.reindex(columns=[*table, "status"])
    every = pd.concat([table, failed]) if len(failed) else table
    keys = _keys(table, every)
    every = every.assign(group=every.groupby([*keys], dropna=False, sort=False).ngroup())
    table = _used(table.assign(group=every["group"]))
    ahead = _ahead(rows.loc[table.index], table, metric) if formats.is_time(metric) else {}
    repeated = {*every["group"][(every.reindex(columns=[*_VISITS]) > 1).any(axis=1)]}
    cells = _cells(table, metric)
    lines = {
        first["group"]: {
            **{key: dataset.to_json(key, first[key]) for key in keys},
            **_compared(cells.get(first["group"], ()), metric, ahead.get(first["group"])),
            "repeated": first["group"] in repeated,
        }
        for _, first in every.drop_duplicates("group").iterrows()
    }
    for index, row in failed.sort_values("status").iterrows():  # of several visits the last counts
        line = lines[every["group"][index]]
        if (name := str(row["algorithm"])) not in line[metric]:
            line["failed"][name] = row["status"]
    ordered = sorted(lines.values(), key=lambda of: [(of[k] is None, of[k] or 0) for k in keys])
    return Report(data, table, keys, tuple(ordered), metric)


def _used(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that count: valid visits, or all of an algorithm that has none.

    A noisy one counts: what varies between the visits is in the verdict, and its own noise, too.
    """
    any_valid = table.groupby(["group", "algorithm"])["valid"].transform("any")
    return table[table["valid"] | ~any_valid]


def _ahead(rows: pd.DataFrame, table: pd.DataFrame, metric: str) -> dict[Any, verdicts.Fastest]:
    """Return the fastest of each configuration, of the algorithms that did a part of the work."""
    took_part = dataset.cells(table, _COVERAGE, 100.0) != 0
    times = dataset.timed(rows, metric).assign(
        group=table["group"], name=table["algorithm"], origin=""
    )
    shared = {FOREIGN} if dataset.is_foreign(rows) else set()
    unknown = times["group"][dataset.flagged(rows, _TIME_UNKNOWN - shared)]
    fit = took_part & ~times["group"].isin(unknown)
    return verdicts.fastest(times[fit].dropna(subset="log"))


def _keys(table: pd.DataFrame, every: pd.DataFrame) -> tuple[str, ...]:
    """Return what tells configurations apart: the axes that vary, and always model and input size.

    Points of two versions of a sweep file may agree in all axes, but were measured with other
    settings. Then the point's id is added, so that no row hides another.
    """
    varying = dataset.varying_axes(every)
    keys = tuple(a for a in _AXES_OF_A_ROW if a in _ALWAYS or a in varying)
    again = table.duplicated([*keys, "algorithm", *(name for name in _VISITS if name in table)])
    return (*keys, "point_id") if again.any() else keys


def _cells(table: pd.DataFrame, metric: str) -> dict[Any, list[Any]]:
    """Return the cells of each configuration: algorithm, value, visits, coverage, doubt."""
    shares = dataset.cells(table, _COVERAGE, math.nan).astype(float)
    cells = table.assign(share=shares).groupby(["group", "algorithm"], sort=False).agg(
        value=(metric, "median"), visits=(metric, "size"), share=("share", "min"),
        doubtful=("doubtful", "all"), unfit=("unfit", "all"),
    )  # fmt: skip
    groups: dict[Any, list[Any]] = {}
    for cell in cells.reset_index().itertuples():
        groups.setdefault(cell.group, []).append(cell)
    return groups


def _compared(cells: Sequence[Any], metric: str, ahead: verdicts.Fastest | None) -> dict[str, Any]:
    """Return values and coverage of one configuration by algorithm, and which is the fastest."""
    unsure = [str(cell.algorithm) for cell in cells if cell.doubtful]
    shares = {cell.algorithm: dataset.to_json(_COVERAGE, cell.share) for cell in cells}
    row = {
        metric: {cell.algorithm: cell.value for cell in cells}, "coverage_pct": shares,
        "visits": min((int(cell.visits) for cell in cells), default=0), "fastest": "",
        "fastest_here": "", "ahead_pct": None, "doubtful": unsure, "failed": {},
    }  # fmt: skip
    if ahead is None:
        return row
    # what varies between visits is in their verdict, noise inside of them, too
    unfit = [str(cell.algorithm) for cell in cells if cell.unfit] if ahead.visits > 1 else unsure
    fit = ahead.name not in unfit and (shares[ahead.name] or 0) > 0
    few = ahead.visits < verdicts.VISITS and ahead.ahead > 0
    row["fastest"] = ahead.name if fit and ahead.sure else ""
    row["fastest_here"] = ahead.name if fit and few and not ahead.sure else ""
    return {**row, "ahead_pct": 100 * ahead.ahead}


def _cell(row: dict[str, Any], name: str, metric: str, *, with_share: bool) -> str:
    value = row[metric].get(name)
    share = dataset.share(row["coverage_pct"].get(name)) if with_share else ""
    if value is None:
        return f"{row['failed'].get(name, '-')}{share}"
    mark = "*" if row["fastest"] == name else "'" if row["fastest_here"] == name else " "
    doubt = "?" if name in row["doubtful"] else " "
    return f"{value:{'.3f' if formats.is_time(metric) else '.5g'}}{mark}{doubt}{share}"


_STEP_KEYS: Final = ("model", "batch_size")
PHASES: Final = ("data", "h2d", "forward", "loss", "backward", "optimizer")
_HEADS: Final = {"optimizer": "optim."}  # an axis has the whole word
# column, heading, format: of one step, in milliseconds
STEP: Final = (
    ("throughput_sps", "samples/s", ".1f"), ("median_ms", "step", ".3f"),
    *((f"phase_{part}_ms", _HEADS.get(part, part), ".3f") for part in PHASES),
    (_COVERAGE, "covered", ""), ("mem_peak_bytes", "MiB", ".0f"), ("params", "Mparams", ".1f"),
    ("val_accuracy_before", "acc before", ".3f"), ("val_accuracy_after", "acc after", ".3f"),
)  # fmt: skip
# the same parts over the whole training, in seconds
WHOLE: Final = (
    *((f"{part}_total_s", _HEADS.get(part, part), ".3f") for part in PHASES),
    ("train_s", "all", ".3f"), ("epoch_s", "epoch", ".3f"),
)  # fmt: skip
_READ: Final = {
    *_USED, *verdicts.WITHIN, *(name for name, _head, _form in (*STEP, *WHOLE)), "workload",
}  # fmt: skip
_UNITS: Final = {"mem_peak_bytes": 1 << 20, "params": 1_000_000}


@dataclass(frozen=True)
class TrainingReport:
    """The figures of one training sweep: a row per configuration, which `keys` tell apart."""

    data: dataset.Dataset
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def views(self) -> list[View]:
        """Return the tables of a step and of the whole training; the first has all values."""
        heading = f"{self.data.sweep_dir.name}: training, ms of a step ({self.data.counts()})"
        partial = any(row.get(_COVERAGE) not in {None, 100.0} for row in self.rows)
        step = [column for column in STEP if partial or column[0] != _COVERAGE]
        notes = [f"covered: {dataset.COVERAGE} (forward pass)"] if partial else []
        notes += self.data.notes()
        record = {**self.data.record(self.rows), "notes": notes}
        frame = pd.DataFrame(self.rows, dtype=object)
        left = len(self.keys)
        whole = "seconds of the whole training"
        marks = dataset.unreliable(self.data.rows)
        return [
            View(heading, frame, self._texts(step), left, record=record),
            View(whole, frame, self._texts(WHOLE), left, notes, marks=marks),
        ]

    def _texts(self, columns: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
        texts = dataset.texts(pd.DataFrame(self.rows, dtype=object), self.keys)
        for name, head, form in columns:
            texts[head] = [_step_cell(row, name, form) for row in self.rows]
        return pd.DataFrame(texts)


def _of_training(data: dataset.Dataset) -> TrainingReport:
    every = pd.concat([data.rows, data.failed]) if len(data.failed) else data.rows
    varying = dataset.varying_axes(every)
    keys = tuple(axis for axis in catalog.AXES if axis in _STEP_KEYS or axis in varying)
    columns = [*keys, *(name for name, _, _ in (*STEP, *WHOLE) if name in data.rows), "status"]
    ordered = every.sort_values(list(keys))
    ok = ordered["status"] == PointStatus.OK
    doubtful = ok & (dataset.doubtful(ordered) | ~dataset.valid(ordered))
    rows = tuple(
        {**{name: dataset.to_json(name, row[name]) for name in columns}, "doubtful": bool(bad)}
        for row, bad in zip(ordered.to_dict("records"), doubtful, strict=True)
    )
    return TrainingReport(data, keys, rows)


def _step_cell(row: dict[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    if value is None:
        return row["status"] if name == "median_ms" else "-"
    if name == _COVERAGE:
        return dataset.share(value).strip() or "100 %"
    text = format(value / _UNITS.get(name, 1), form)
    return f"{text}?" if row["doubtful"] and name == "median_ms" else text
