"""Compares the algorithms of a collected sweep in one table; steps and commands have their own.

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

Of commands it is what each said, and how long it ran: of several visits a number is their median,
of anything else the last.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset, formats, nodes, reliability, verdicts
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.merged import cells
from hpcsweep.catalog.columns import DOUBTFUL, FOREIGN
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import PointStatus

Line = dict[str, Any]  # the figures of one configuration

_COVERAGE: Final = "algorithm_coverage_pct"
_MEDIAN: Final = "median_ms"
_AXES: Final = tuple(name for name in catalog.AXES if name != "algorithm")
# axes that only repeat; another seed repeats, too, but is another network and has its own row
_VISITS: Final = tuple(n for n in _AXES if catalog.AXES[n].role == catalog.Role.REPETITION)
_USED: Final = ("point_id", "flags", _COVERAGE, *_VISITS)
# a row with another doubt may take less than it says: nothing is the fastest beside it
_TIME_KNOWN: Final = {"very_noisy", "inaccurate", "unverified", "algorithm_absent", "unproven"}
_STAR: Final = "*  fastest: valid, and ahead by more than what varies between visits"
_HERE: Final = "'  fastest here, by {} %, {} can tell more"
_NOT_REPEATED: Final = "not repeated: `measure: {repeats: 3}`"
_FEW_VALID: Final = "but in fewer than three valid visits: `hpcsweep retry %s --invalid`"
_SAID: Final = "what the command said; only the time of the run was measured here"

PHASES: Final = ("data", "h2d", "forward", "loss", "backward", "optimizer")
_HEADS: Final = {"optimizer": "optim."}  # an axis has the whole word
# column, heading, format: of one step, in milliseconds
_STEP: Final = (
    ("throughput_sps", "samples/s", ".1f"), (_MEDIAN, "step", ".3f"),
    *((f"phase_{part}_ms", _HEADS.get(part, part), ".3f") for part in PHASES),
    (_COVERAGE, "covered", ""), ("mem_peak_bytes", "MiB", ".0f"), ("params", "Mparams", ".1f"),
    ("val_accuracy_before", "acc before", ".3f"), ("val_accuracy_after", "acc after", ".3f"),
)  # fmt: skip
# the same parts over the whole training, in seconds
_WHOLE: Final = (
    *((f"{part}_total_s", _HEADS.get(part, part), ".3f") for part in PHASES),
    ("train_s", "all", ".3f"), ("epoch_s", "epoch", ".3f"),
)  # fmt: skip
_OF_TRAINING: Final = tuple(name for name, _head, _form in (*_STEP, *_WHOLE))
_UNITS: Final = {"mem_peak_bytes": 1 << 20, "params": 1_000_000}  # of columns that are told in them
_READ: Final = {*_USED, *verdicts.WITHIN, *_OF_TRAINING, *nodes.READ, "workload"}


@dataclass(frozen=True)
class Report:
    """The figures of one sweep, a row per configuration, which `keys` tell apart, and its tables.

    The algorithms are compared by the column `metric`; of training and commands it is empty.
    """

    keys: tuple[str, ...]
    rows: Sequence[Line]
    views: list[View]
    metric: str = ""


def read_report(sweep_dir: SweepDir, *, where: str = "", metric: str = "") -> Report:
    """Read a sweep's report; one that trains has a table of its own without `metric`."""
    return make(dataset.read_dataset(sweep_dir, where, {metric, *_READ}), metric)


def make(data: Dataset, metric: str = "") -> Report:
    """Return the report of measured points; `UsageError` where none has a number.

    Where nodes measured the same points, its last table says which one is slow.
    """
    made = _made(data, metric)
    by_node = nodes.view(data, metric or _MEDIAN)
    if by_node is None:
        return made
    first, *others = made.views
    first = replace(first, record={**first.record, "nodes": by_node.rows()})
    return replace(made, views=[first, *others, by_node])


def _made(data: Dataset, metric: str) -> Report:
    if data.is_of_command:
        return _of_command(data, metric)
    if data.trains and not metric:
        return _of_training(data)
    metric = metric or _MEDIAN
    if metric in catalog.AXES:
        raise UsageError(f"{metric} is an axis, which tells the rows apart; --metric takes a value")
    return _of_algorithms(data, metric)


def _of_algorithms(data: Dataset, metric: str) -> Report:
    rows = data.numbers(data.rows, metric)
    table = _with_doubts(rows, metric)
    failed = data.failed.reindex(columns=[*table, "status"])
    every = pd.concat([table, failed]) if len(failed) else table
    keys = _keys(table, every)
    every = every.assign(group=every.groupby([*keys], dropna=False, sort=False).ngroup())
    table = table.assign(group=every["group"])
    # Valid visits count, or all of an algorithm that has none. A noisy one counts: what varies
    # between the visits is in the verdict, and its own noise, too.
    any_valid = table.groupby(["group", "algorithm"])["valid"].transform("any")
    table = table[table["valid"] | ~any_valid]
    lines = _measured(every, keys, table, metric)
    if formats.is_time(metric):
        _tell_fastest(lines, rows.loc[table.index], table, metric)
    for index, row in failed.sort_values("status").iterrows():  # of several visits the last counts
        line = lines[every["group"][index]]
        name = str(row["algorithm"])
        if name not in line[metric]:
            line["failed"][name] = row["status"]

    def place(line: Line) -> list[tuple[bool, Any]]:
        """Return a sort key: by the keys in their order, empty ones last."""
        return [(line[key] is None, line[key] or 0) for key in keys]

    ordered = sorted(lines.values(), key=place)
    return Report(keys, ordered, [_view(data, table, keys, ordered, metric)], metric)


def _with_doubts(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return what the report needs of the rows, with `valid`, `doubtful` and `unfit`.

    Unfit are doubtful ones but for noise. Where all rows are foreign, their doubt tells no row from
    another.
    """
    valid = reliability.valid(rows)
    apart = not reliability.is_foreign(rows)
    names = {*catalog.AXES, *_USED, metric}
    table = rows.loc[:, rows.columns.isin(names)].copy()
    table["algorithm"] = rows["algorithm"].astype(str)
    table["valid"] = valid
    table["doubtful"] = apart & reliability.suspect(rows)
    table["unfit"] = apart & (reliability.doubtful(rows, noise=False) | ~valid)
    return table


def _keys(table: pd.DataFrame, every: pd.DataFrame) -> tuple[str, ...]:
    """Return what tells configurations apart: the axes that vary, and always model and input size.

    Points of two versions of a sweep file may agree in all axes, but were measured with other
    settings. Then the point's id is added, so that no row hides another.
    """
    shown = {"model", "input_size", *dataset.varying_axes(every)}.difference(_VISITS)
    keys = tuple(axis for axis in _AXES if axis in shown)
    again = table.duplicated([*keys, "algorithm", *table.filter(_VISITS)])
    return (*keys, "point_id") if again.any() else keys


def _measured(
    every: pd.DataFrame, keys: Sequence[str], table: pd.DataFrame, metric: str
) -> dict[int, Line]:
    """Return the values and coverage of each configuration by algorithm; nothing is fastest yet."""
    visits = dataset.visits(every).groupby(every["group"]).nunique()
    repeated = set(visits.index[visits > 1])
    lines: dict[int, Line] = {}
    for _, first in every.drop_duplicates("group").iterrows():
        line: Line = {key: formats.to_json(key, first[key]) for key in keys}
        line |= {
            metric: {}, "coverage_pct": {}, "visits": 0, "fastest": "", "fastest_here": "",
            "ahead_pct": None, "doubtful": [], "failed": {}, "repeated": first["group"] in repeated,
        }  # fmt: skip
        lines[first["group"]] = line
    shares = cells(table, _COVERAGE, math.nan).astype(float)
    by_cell = table.assign(share=shares).groupby(["group", "algorithm"], sort=False)
    found = by_cell.agg(
        value=(metric, "median"), visits=(metric, "size"), share=("share", "min"),
        doubtful=("doubtful", "all"),
    )  # fmt: skip
    for cell in found.reset_index().itertuples():
        line = lines[cell.group]
        line[metric][cell.algorithm] = cell.value
        line["coverage_pct"][cell.algorithm] = formats.to_json(_COVERAGE, cell.share)
        line["visits"] = min(line["visits"] or cell.visits, cell.visits)
        if cell.doubtful:
            line["doubtful"].append(cell.algorithm)
    return lines


def _tell_fastest(
    lines: dict[int, Line], rows: pd.DataFrame, table: pd.DataFrame, metric: str
) -> None:
    """Write into each configuration which of the algorithms that did some of the work is fastest.

    Neither an unreliable one nor one that did nothing is.
    """
    took_part = cells(table, _COVERAGE, 100.0) != 0
    times = verdicts.timed(rows, metric)
    times = times.assign(group=table["group"], name=table["algorithm"], origin="")
    time_unknown = DOUBTFUL - _TIME_KNOWN
    if reliability.is_foreign(rows):
        time_unknown -= {FOREIGN}
    unknown = times["group"][reliability.flagged(rows, time_unknown)]
    fit = took_part & ~times["group"].isin(unknown)
    unfit = table.groupby(["group", "algorithm"])["unfit"].all()
    for group, ahead in verdicts.fastest(times[fit].dropna(subset="log")).items():
        line = lines[group]
        line["ahead_pct"] = 100 * ahead.ahead
        is_unfit = ahead.name in line["doubtful"]
        if ahead.visits > 1:
            # what varies between visits is in their verdict, noise inside of them, too
            is_unfit = unfit[group, ahead.name]
        if is_unfit or not line["coverage_pct"][ahead.name]:
            continue
        if ahead.sure:
            line["fastest"] = ahead.name
        elif ahead.visits < verdicts.VISITS and ahead.ahead > 0:
            line["fastest_here"] = ahead.name


def _view(
    data: Dataset, table: pd.DataFrame, keys: Sequence[str], rows: Sequence[Line], metric: str
) -> View:
    """Return the table: its values, with coverage and doubts, and what people read."""
    algorithms = set(table["algorithm"])
    partial = set()  # algorithms that did not all of the convolutions in some row
    for row in rows:
        algorithms.update(row["failed"])
        for name, share in row["coverage_pct"].items():
            if share is not None and share < 100:
                partial.add(name)
    frame: dict[str, Any] = {key: [row[key] for row in rows] for key in keys}
    texts = formats.texts(frame, keys)
    shares = {}
    for name in sorted(algorithms, key=lambda name: dataset.rank("algorithm", name)):
        is_partial = name in partial
        frame[name] = [row[metric].get(name) for row in rows]
        texts[name] = [_cell(row, name, metric, with_share=is_partial) for row in rows]
        if is_partial:
            shares[f"{name}_coverage_pct"] = [row["coverage_pct"].get(name) for row in rows]
    frame |= shares
    frame["fastest"] = [row["fastest"] for row in rows]
    frame["doubtful"] = [";".join(row["doubtful"]) for row in rows]
    what = "median ms of one pass" if metric == _MEDIAN else formats.label(metric)
    marks = [*_marks(rows, partial, data.sweep_dir), *reliability.unreliable(table)]
    return View(
        title=f"{data.sweep_dir.name}: {what} ({data.counts()})",
        frame=pd.DataFrame(frame, dtype=object), texts=pd.DataFrame(texts), left=len(keys),
        notes=data.notes(), record=data.record(rows), marks=marks,
    )  # fmt: skip


def _marks(rows: Sequence[Line], partial: Collection[str], sweep_dir: SweepDir) -> list[str]:
    """Return the lines that say what the marks of cells mean, for marks that are there."""
    marks = []
    if any(row["fastest"] for row in rows):
        marks.append(_STAR)
    ahead: dict[bool, list[float]] = {False: [], True: []}  # by whether they were repeated
    for row in rows:
        if row["fastest_here"]:
            ahead[row["repeated"]].append(row["ahead_pct"])
    for repeated, why in ((False, _NOT_REPEATED), (True, _FEW_VALID % sweep_dir.name)):
        if ahead[repeated]:
            marks.append(_HERE.format(formats.span(ahead[repeated], ".0f"), why))
    if partial:
        marks.append(f"%  {formats.COVERAGE}")
    return marks


def _cell(row: Line, name: str, metric: str, *, with_share: bool) -> str:
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


def _of_training(data: Dataset) -> Report:
    """Return the tables of a step and of the whole training; the first has all values."""
    every = data.every
    varying = dataset.varying_axes(every)
    keys = tuple(axis for axis in catalog.AXES if axis in {"model", "batch_size", *varying})
    ordered = every.sort_values(list(keys))
    ok = ordered["status"] == PointStatus.OK
    table = ordered[[*keys, *data.rows.filter(_OF_TRAINING), "status"]]
    rows = formats.records(table.assign(doubtful=ok & reliability.suspect(ordered)))
    partial = any(row.get(_COVERAGE) not in {None, 100.0} for row in rows)
    step = [column for column in _STEP if partial or column[0] != _COVERAGE]
    notes = [f"covered: {formats.COVERAGE} (forward pass)"] if partial else []
    notes += data.notes()
    heading = f"{data.sweep_dir.name}: training, ms of a step ({data.counts()})"
    record = {**data.record(rows), "notes": notes}
    frame = pd.DataFrame(rows, dtype=object)
    marks = reliability.unreliable(data.rows)
    views = [
        View(heading, frame, _step_texts(frame, keys, rows, step), len(keys), record=record),
        View(
            "seconds of the whole training", frame, _step_texts(frame, keys, rows, _WHOLE),
            len(keys), notes, marks=marks,
        ),
    ]  # fmt: skip
    return Report(keys, rows, views)


def _step_texts(
    frame: pd.DataFrame,
    keys: Sequence[str],
    rows: Sequence[Line],
    columns: Sequence[tuple[str, str, str]],
) -> pd.DataFrame:
    texts = formats.texts(frame, keys)
    for name, head, form in columns:
        texts[head] = [_step_cell(row, name, form) for row in rows]
    return pd.DataFrame(texts)


def _step_cell(row: Line, name: str, form: str) -> str:
    value = row.get(name)
    if value is None:
        return row["status"] if name == _MEDIAN else "-"
    if name == _COVERAGE:
        return formats.share(value).strip() or "100 %"
    text = format(value / _UNITS.get(name, 1), form)
    return f"{text}?" if row["doubtful"] and name == _MEDIAN else text


def _of_command(data: Dataset, metric: str) -> Report:
    """Return what was said, or one column if `metric` names it, which must have numbers."""
    if metric:
        data.numbers(data.rows, metric)
    every = data.every
    keys = dataset.varying_axes(every, _VISITS)
    # the constant is a key where no axis varies
    grouped = every.assign(_all=0).groupby(["_all", *keys], dropna=False)
    names = [metric] if metric else [*dataset.own_results(data.rows), _MEDIAN]
    columns = {"status": grouped["status"].last()}
    for name in names:
        said = grouped[name]
        columns[name] = said.median() if dataset.is_quantity(name, every) else said.last()
    table = pd.DataFrame(columns).reset_index()[[*keys, "status", *names]]
    texts = formats.texts(table, keys)
    for name in ("status", *names):
        texts[formats.label(name)] = [*map(_said_cell, table[name])]
    rows = formats.records(table)
    view = View(
        title=f"{data.sweep_dir.name}: what the command said ({data.counts()})",
        frame=table, texts=pd.DataFrame(texts), left=len(keys) + 1, notes=data.notes(),
        record=data.record(rows), marks=[f"   {FOREIGN}: {_SAID}"],
    )  # fmt: skip
    return Report(keys, rows, [view])


def _said_cell(value: Any) -> str:  # noqa: ANN401 - a cell
    if pd.isna(value):
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
