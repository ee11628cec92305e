"""Compares the algorithms of a collected sweep in one table; other workloads have their own report.

Rows are configurations, columns are algorithms, cells are medians in milliseconds, or the values of
another column, or the status of a point that was not measured. A cell says how much of the
convolutions its algorithm did, if not all, since a `winograd` time of a network that mostly fell
back to `auto` is not a Winograd time. Unreliable medians carry a question mark.

The fastest has a star only if it is valid and reliable, its algorithm did a part of the work, and
it is ahead by more than what varies between visits (`verdicts`): passes of one visit agree better
with each other than with the next. Of single visits only a large lead is one; where it does not
suffice, the fastest is named as what it is, the fastest here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset, formats, reliability, verdicts, workload_reports
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.merged import cells
from hpcsweep.analysis.workload_reports import CommandReport, TrainingReport
from hpcsweep.catalog.columns import DOUBTFUL, FOREIGN
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir

_COVERAGE: Final = "algorithm_coverage_pct"
_AXES: Final = tuple(name for name in catalog.AXES if name != "algorithm")
_ALWAYS: Final = ("model", "input_size")
_MEDIAN: Final = "median_ms"
# axes that only repeat; another seed repeats, too, but is another network and has its own row
_VISITS: Final = tuple(n for n in _AXES if catalog.AXES[n].role == catalog.Role.REPETITION)
_AXES_OF_A_ROW: Final = tuple(name for name in _AXES if name not in _VISITS)
_USED: Final = ("point_id", "flags", _COVERAGE, *_VISITS)
_READ: Final = {*_USED, *verdicts.WITHIN, *workload_reports.READ, "workload"}
# a row with another doubt may take less than it says: nothing is the fastest beside it
_TIME_KNOWN: Final = {"very_noisy", "inaccurate", "unverified", "algorithm_absent", "unproven"}
_STAR: Final = "*  fastest: valid, and ahead by more than what varies between visits"
_HERE: Final = "'  fastest here, by {} %, {} can tell more"
_NOT_REPEATED: Final = "not repeated: `measure: {repeats: 3}`"
_FEW_VALID: Final = "but in fewer than three valid visits: `hpcsweep retry %s --invalid`"


@dataclass(frozen=True)
class Report:
    """The medians of one sweep, or another `metric`; `keys` tell the rows apart."""

    data: Dataset
    table: pd.DataFrame
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    metric: str

    @property
    def algorithms(self) -> tuple[str, ...]:
        names = set(self.table["algorithm"])
        for row in self.rows:
            names.update(row["failed"])
        return tuple(sorted(names, key=lambda name: dataset.rank("algorithm", name)))

    def views(self) -> list[View]:
        """Return the table: its values, with coverage and doubts, and what people read."""
        rows = self.rows
        partial = self._partial()
        frame: dict[str, Any] = {key: [row[key] for row in rows] for key in self.keys}
        texts = formats.texts(frame, self.keys)
        shares = {}
        for name in self.algorithms:
            is_partial = name in partial
            frame[name] = [row[self.metric].get(name) for row in rows]
            texts[name] = [_cell(row, name, self.metric, with_share=is_partial) for row in rows]
            if is_partial:
                shares[f"{name}_coverage_pct"] = [row["coverage_pct"].get(name) for row in rows]
        frame |= shares
        frame["fastest"] = [row["fastest"] for row in rows]
        frame["doubtful"] = [";".join(row["doubtful"]) for row in rows]
        what = "median ms of one pass" if self.metric == _MEDIAN else formats.label(self.metric)
        return [View(
            title=f"{self.data.sweep_dir.name}: {what} ({self.data.counts()})",
            frame=pd.DataFrame(frame, dtype=object), texts=pd.DataFrame(texts), left=len(self.keys),
            notes=self.data.notes(), record=self.data.record(rows), marks=self._marks(partial),
        )]  # fmt: skip

    def _partial(self) -> set[str]:
        """Return the algorithms that did not all of the convolutions in some row."""
        partial = set()
        for row in self.rows:
            for name, share in row["coverage_pct"].items():
                if share is not None and share < 100:
                    partial.add(name)
        return partial

    def _marks(self, partial: set[str]) -> list[str]:
        """Return the lines that say what the marks of cells mean, for marks that are there."""
        marks = []
        if any(row["fastest"] for row in self.rows):
            marks.append(_STAR)
        few_valid = _FEW_VALID % self.data.sweep_dir.name
        for repeated, why in ((False, _NOT_REPEATED), (True, few_valid)):
            here = [row for row in self.rows if row["fastest_here"]]
            ahead = [row["ahead_pct"] for row in here if row["repeated"] is repeated]
            if ahead:
                ends = dict.fromkeys((f"{min(ahead):.0f}", f"{max(ahead):.0f}"))
                marks.append(_HERE.format(" to ".join(ends), why))
        if partial:
            marks.append(f"%  {formats.COVERAGE}")
        return [*marks, *reliability.unreliable(self.table)]


def read_report(
    sweep_dir: SweepDir, *, where: str = "", metric: str = ""
) -> Report | TrainingReport | CommandReport:
    """Read a sweep's report; one that trains has a table of its own without `metric`."""
    return make(dataset.read_dataset(sweep_dir, where, {metric, *_READ}), metric)


def make(data: Dataset, metric: str = "") -> Report | TrainingReport | CommandReport:
    """Return the report of measured points; `UsageError` where none has a number."""
    if data.is_of_command:
        return workload_reports.of_command(data, metric)
    if data.trains and not metric:
        return workload_reports.of_training(data)
    metric = metric or _MEDIAN
    if metric in catalog.AXES:
        raise UsageError(f"{metric} is an axis, which tells the rows apart; --metric takes a value")
    rows = data.numbers(data.rows, metric)
    table = _with_doubts(rows, metric)
    failed = data.failed.reindex(columns=[*table, "status"])
    every = pd.concat([table, failed]) if len(failed) else table
    keys = _keys(table, every)
    every = every.assign(group=every.groupby([*keys], dropna=False, sort=False).ngroup())
    table = _used(table.assign(group=every["group"]))
    ahead = _ahead(rows.loc[table.index], table, metric) if formats.is_time(metric) else {}
    is_repeated = (every.reindex(columns=[*_VISITS]) > 1).any(axis=1)
    repeated = set(every["group"][is_repeated])
    groups = _cells(table, metric)
    lines: dict[int, dict[str, Any]] = {}
    for _, first in every.drop_duplicates("group").iterrows():
        group = first["group"]
        line = {key: formats.to_json(key, first[key]) for key in keys}
        line |= _compared(groups.get(group, ()), metric, ahead.get(group))
        lines[group] = {**line, "repeated": group in repeated}
    for index, row in failed.sort_values("status").iterrows():  # of several visits the last counts
        line = lines[every["group"][index]]
        name = str(row["algorithm"])
        if name not in line[metric]:
            line["failed"][name] = row["status"]
    ordered = sorted(lines.values(), key=lambda line: _order(line, keys))
    return Report(data, table, keys, tuple(ordered), metric)


def _order(line: dict[str, Any], keys: Sequence[str]) -> list[tuple[bool, Any]]:
    """Return a sort key: by the keys in their order, empty ones last."""
    return [(line[key] is None, line[key] or 0) for key in keys]


def _with_doubts(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return what the report needs of the rows, with `valid`, `doubtful` and `unfit`.

    Unfit are doubtful ones but for noise. Where all rows are foreign, their doubt tells no row from
    another.
    """
    valid = reliability.valid(rows)
    apart = not reliability.is_foreign(rows)
    names = {*catalog.AXES, *_USED, metric}
    return rows[[name for name in rows if name in names]].assign(
        algorithm=rows["algorithm"].astype(str),
        valid=valid,
        doubtful=apart & (reliability.doubtful(rows) | ~valid),
        unfit=apart & (reliability.doubtful(rows, noise=False) | ~valid),
    )


def _used(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that count: valid visits, or all of an algorithm that has none.

    A noisy one counts: what varies between the visits is in the verdict, and its own noise, too.
    """
    any_valid = table.groupby(["group", "algorithm"])["valid"].transform("any")
    return table[table["valid"] | ~any_valid]


def _ahead(rows: pd.DataFrame, table: pd.DataFrame, metric: str) -> dict[Any, verdicts.Fastest]:
    """Return the fastest of each configuration, of the algorithms that did a part of the work."""
    took_part = cells(table, _COVERAGE, 100.0) != 0
    times = verdicts.timed(rows, metric)
    times = times.assign(group=table["group"], name=table["algorithm"], origin="")
    time_unknown = DOUBTFUL - _TIME_KNOWN
    if reliability.is_foreign(rows):
        time_unknown -= {FOREIGN}
    unknown = times["group"][reliability.flagged(rows, time_unknown)]
    fit = took_part & ~times["group"].isin(unknown)
    return verdicts.fastest(times[fit].dropna(subset="log"))


def _keys(table: pd.DataFrame, every: pd.DataFrame) -> tuple[str, ...]:
    """Return what tells configurations apart: the axes that vary, and always model and input size.

    Points of two versions of a sweep file may agree in all axes, but were measured with other
    settings. Then the point's id is added, so that no row hides another.
    """
    shown = {*_ALWAYS, *dataset.varying_axes(every)}
    keys = tuple(axis for axis in _AXES_OF_A_ROW if axis in shown)
    visits = [name for name in _VISITS if name in table]
    again = table.duplicated([*keys, "algorithm", *visits])
    return (*keys, "point_id") if again.any() else keys


def _cells(table: pd.DataFrame, metric: str) -> dict[Any, list[Any]]:
    """Return the cells of each configuration: algorithm, value, visits, coverage, doubt."""
    shares = cells(table, _COVERAGE, math.nan).astype(float)
    by_cell = table.assign(share=shares).groupby(["group", "algorithm"], sort=False)
    found = by_cell.agg(
        value=(metric, "median"), visits=(metric, "size"), share=("share", "min"),
        doubtful=("doubtful", "all"), unfit=("unfit", "all"),
    )  # fmt: skip
    groups: dict[Any, list[Any]] = {}
    for cell in found.reset_index().itertuples():
        groups.setdefault(cell.group, []).append(cell)
    return groups


def _compared(found: Sequence[Any], metric: str, ahead: verdicts.Fastest | None) -> dict[str, Any]:
    """Return values and coverage of one configuration by algorithm, and which is the fastest."""
    unsure = [str(cell.algorithm) for cell in found if cell.doubtful]
    shares = {cell.algorithm: formats.to_json(_COVERAGE, cell.share) for cell in found}
    row = {
        metric: {cell.algorithm: cell.value for cell in found}, "coverage_pct": shares,
        "visits": min((int(cell.visits) for cell in found), default=0), "fastest": "",
        "fastest_here": "", "ahead_pct": None, "doubtful": unsure, "failed": {},
    }  # fmt: skip
    if ahead is None:
        return row
    row["ahead_pct"] = 100 * ahead.ahead
    unfit = unsure
    if (
        ahead.visits > 1
    ):  # what varies between visits is in their verdict, noise inside of them, too
        unfit = [str(cell.algorithm) for cell in found if cell.unfit]
    did_nothing = not shares[ahead.name]
    if ahead.name in unfit or did_nothing:
        return row
    if ahead.sure:
        row["fastest"] = ahead.name
    elif ahead.visits < verdicts.VISITS and ahead.ahead > 0:
        row["fastest_here"] = ahead.name
    return row


def _cell(row: dict[str, Any], name: str, metric: str, *, with_share: bool) -> str:
    value = row[metric].get(name)
    share = formats.share(row["coverage_pct"].get(name)) if with_share else ""
    if value is None:
        return f"{row['failed'].get(name, '-')}{share}"
    mark = " "
    if row["fastest"] == name:
        mark = "*"
    elif row["fastest_here"] == name:
        mark = "'"
    doubt = "?" if name in row["doubtful"] else " "
    # thousandths of a millisecond, as far as clocks tell; of other units five digits
    number = f"{value:.3f}" if formats.is_time(metric) else f"{value:.5g}"
    return f"{number}{mark}{doubt}{share}"
