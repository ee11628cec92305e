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
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

from hpcsweep import catalog
from hpcsweep.analysis import dataset, formats, reliability, verdicts
from hpcsweep.analysis.dataset import SweepRows
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.plain_rows import Group, Row, Rows, column, groups
from hpcsweep.analysis.verdicts import VisitTime
from hpcsweep.catalog.columns import DOUBTFUL, FOREIGN
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.outcomes import median
from hpcsweep.store.state import PointStatus

Line = dict[str, Any]  # the figures of one configuration

_COVERAGE: Final = "algorithm_coverage_pct"
_MEDIAN: Final = "median_ms"
_NODE: Final = "node"
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
READ: Final = {*_USED, *verdicts.WITHIN, *_OF_TRAINING, _NODE, "workload"}


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
    """Read a sweep's report; `UsageError` where none of its points has a number.

    One that trains has a table of its own without `metric`. Where nodes measured the same points,
    its last table says which one is slow.
    """
    data = dataset.read_sweep(sweep_dir, where, {metric, *READ})
    made = _made(data, metric)
    nodes_there = {*column(data.rows, _NODE)} - {None}
    if len(nodes_there) < 2:  # as in most tables
        return made
    from hpcsweep.analysis import nodes  # noqa: PLC0415 - pandas and scipy

    by_node = nodes.view_of(sweep_dir, where, metric or _MEDIAN)
    if by_node is None:
        return made
    first, *others = made.views
    first = replace(first, record={**first.record, "nodes": by_node.rows()})
    return replace(made, views=[first, *others, by_node])


def _made(data: SweepRows[Rows], metric: str) -> Report:
    if data.is_of_command:
        return _of_command(data, metric)
    if data.trains and not metric:
        return _of_training(data)
    metric = metric or _MEDIAN
    if metric in catalog.AXES:
        raise UsageError(f"{metric} is an axis, which tells the rows apart; --metric takes a value")
    return _of_algorithms(data, metric)


def _of_algorithms(data: SweepRows[Rows], metric: str) -> Report:
    rows = data.numbers(metric)
    every = rows.and_those(data.failed)
    keys = _keys(rows, every)
    table = _counted(rows, keys)
    lines = _lines(every, keys, metric)
    cells = _cells(table, keys, metric, apart=not reliability.is_foreign(rows))
    for group, by_algorithm in cells.items():
        for name, visits in by_algorithm.items():
            _tell_cell(lines[group], name, visits, metric)
        if formats.is_time(metric):
            _tell_fastest(lines[group], by_algorithm)
    # of several visits that failed, the last counts
    failed = data.failed
    of_failed = zip(failed["status"], groups(failed, keys), failed["algorithm"], strict=True)
    for status, group, algorithm in sorted(of_failed, key=itemgetter(0)):
        line = lines[group]
        if algorithm not in line[metric]:
            line["failed"][algorithm] = status

    def place(line: Line) -> list[tuple[bool, Any]]:
        """Return a sort key: by the keys in their order, empty ones last."""
        return [(line[key] is None, line[key] or 0) for key in keys]

    ordered = sorted(lines.values(), key=place)
    return Report(keys, ordered, [_view(data, table, keys, ordered, metric)], metric)


def _keys(rows: Rows, every: Rows) -> tuple[str, ...]:
    """Return what tells configurations apart: the axes that vary, and always model and input size.

    Points of two versions of a sweep file may agree in all axes, but were measured with other
    settings. Then the point's id is added, so that no row hides another.
    """
    shown = {"model", "input_size", *dataset.varying_axes(every)}.difference(_VISITS)
    keys = tuple(axis for axis in _AXES if axis in shown)
    apart = [*keys, "algorithm", *_VISITS]
    if len({*groups(rows, apart)}) < len(rows):
        return (*keys, "point_id")
    return keys


def _counted(rows: Rows, keys: Sequence[str]) -> Rows:
    """Return the valid visits, or all of an algorithm that has none in a configuration.

    A noisy one counts: what varies between the visits is in the verdict, and its own noise, too.
    """
    valid = reliability.valid(rows)
    cells = groups(rows, (*keys, "algorithm"))
    has_valid = {cell for cell, is_valid in zip(cells, valid, strict=True) if is_valid}
    counts = []
    for cell, is_valid in zip(cells, valid, strict=True):
        counts.append(is_valid or cell not in has_valid)
    chosen: Rows = rows[counts]
    return chosen


def _lines(every: Rows, keys: Sequence[str], metric: str) -> dict[Group, Line]:
    """Return a line for each configuration; nothing is told of any algorithm yet."""
    visits = defaultdict[Group, set[Group]](set)
    every_visit = groups(every, sorted(dataset.REPEATS))
    for group, visit in zip(groups(every, keys), every_visit, strict=True):
        visits[group].add(visit)
    lines: dict[Group, Line] = {}
    for group, own in visits.items():
        lines[group] = {
            **dict(zip(keys, group, strict=True)),
            metric: {}, "coverage_pct": {}, "visits": 0, "fastest": "", "fastest_here": "",
            "ahead_pct": None, "doubtful": [], "failed": {}, "repeated": len(own) > 1,
        }  # fmt: skip
    return lines


class _Visit(NamedTuple):
    """What the report needs of a row, and what is doubted of it."""

    value: float
    share: float | None  # of the convolutions that its algorithm did
    timed: VisitTime
    is_doubtful: bool
    is_unfit: bool  # doubtful, but for noise
    may_be_less: bool  # nobody knows the time: nothing is the fastest beside it


def _cells(
    table: Rows, keys: Sequence[str], metric: str, *, apart: bool
) -> dict[Group, dict[str, list[_Visit]]]:
    """Return the visits of each algorithm by configuration.

    Where all rows are foreign, their doubt tells no row from another: none is `apart`.
    """
    time_unknown = DOUBTFUL - _TIME_KNOWN - (set() if apart else {FOREIGN})
    none = [False] * len(table)
    told = zip(
        groups(table, keys),
        table["algorithm"],
        table[metric],
        column(table, _COVERAGE),
        verdicts.timed(table, metric),
        reliability.suspect(table) if apart else none,
        reliability.suspect(table, noise=False) if apart else none,
        reliability.flagged(table, time_unknown),
        strict=True,
    )
    cells = defaultdict[Group, dict[str, list[_Visit]]](dict)
    for group, algorithm, *visit in told:
        cells[group].setdefault(algorithm, []).append(_Visit(*visit))
    return cells


def _tell_cell(line: Line, name: str, visits: Sequence[_Visit], metric: str) -> None:
    """Write into a configuration the value and the coverage of an algorithm."""
    shares = [visit.share for visit in visits if visit.share is not None]
    line[metric][name] = float(median(visit.value for visit in visits))
    line["coverage_pct"][name] = min(shares, default=None)
    line["visits"] = min(line["visits"] or len(visits), len(visits))
    if all(visit.is_doubtful for visit in visits):
        line["doubtful"].append(name)


def _tell_fastest(line: Line, by_algorithm: Mapping[str, Sequence[_Visit]]) -> None:
    """Write into a configuration which of the algorithms that did some of the work is fastest.

    Neither an unreliable one nor one that did nothing is.
    """
    candidates: dict[str, list[VisitTime]] = {}
    for name, visits in by_algorithm.items():
        if any(visit.may_be_less for visit in visits):
            return
        took_part = [visit.timed for visit in visits if visit.share != 0]
        times = [timed for timed in took_part if not math.isnan(timed.log)]
        if times:
            candidates[name] = times
    lead = verdicts.fastest(candidates)
    if lead is None:
        return
    line["ahead_pct"] = 100 * lead.ahead
    is_unfit = lead.name in line["doubtful"]
    if lead.visits > 1:
        # what varies between visits is in their verdict, noise inside of them, too
        is_unfit = all(visit.is_unfit for visit in by_algorithm[lead.name])
    if is_unfit or not line["coverage_pct"][lead.name]:
        return
    if lead.sure:
        line["fastest"] = lead.name
    elif lead.visits < verdicts.VISITS and lead.ahead > 0:
        line["fastest_here"] = lead.name


def _view(
    data: SweepRows[Rows], table: Rows, keys: Sequence[str], rows: Sequence[Line], metric: str
) -> View:
    """Return the table: its values, with coverage and doubts, and what people read."""
    algorithms = {*table["algorithm"]}
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
        frame=frame, texts=texts, left=len(keys),
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


def _of_training(data: SweepRows[Rows]) -> Report:
    """Return the tables of a step and of the whole training; the first has all values."""
    every = data.rows.and_those(data.failed)
    varying = dataset.varying_axes(every)
    keys = tuple(axis for axis in catalog.AXES if axis in {"model", "batch_size", *varying})
    told = [name for name in _OF_TRAINING if name in every]
    rows: list[Line] = []
    for row, is_suspect in zip(every.each(), reliability.suspect(every), strict=True):
        line = {name: row[name] for name in (*keys, *told, "status")}
        line["doubtful"] = is_suspect and row["status"] == PointStatus.OK
        rows.append(line)
    rows.sort(key=lambda line: [(line[key] is None, line[key] or 0) for key in keys])
    partial = any(row.get(_COVERAGE) not in {None, 100.0} for row in rows)
    step = [column for column in _STEP if partial or column[0] != _COVERAGE]
    notes = [f"covered: {formats.COVERAGE} (forward pass)"] if partial else []
    notes += data.notes()
    heading = f"{data.sweep_dir.name}: training, ms of a step ({data.counts()})"
    record = {**data.record(rows), "notes": notes}
    frame = _columns(rows)
    marks = reliability.unreliable(data.rows)
    views = [
        View(heading, frame, _step_texts(frame, keys, rows, step), len(keys), record=record),
        View(
            "seconds of the whole training", frame, _step_texts(frame, keys, rows, _WHOLE),
            len(keys), notes, marks=marks,
        ),
    ]  # fmt: skip
    return Report(keys, rows, views)


def _columns(rows: Sequence[Line]) -> dict[str, list[Any]]:
    """Return rows that have the same cells as columns."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def _step_texts(
    frame: Mapping[str, Sequence[Any]],
    keys: Sequence[str],
    rows: Sequence[Line],
    columns: Sequence[tuple[str, str, str]],
) -> dict[str, list[str]]:
    texts = formats.texts(frame, keys)
    for name, head, form in columns:
        texts[head] = [_step_cell(row, name, form) for row in rows]
    return texts


def _step_cell(row: Line, name: str, form: str) -> str:
    value = row.get(name)
    if value is None:
        return row["status"] if name == _MEDIAN else "-"
    if name == _COVERAGE:
        return formats.share(value).strip() or "100 %"
    text = format(value / _UNITS.get(name, 1), form)
    return f"{text}?" if row["doubtful"] and name == _MEDIAN else text


def _of_command(data: SweepRows[Rows], metric: str) -> Report:
    """Return what was said, or one column if `metric` names it, which must have numbers."""
    if metric:
        data.numbers(metric)
    every = data.rows.and_those(data.failed)
    keys = dataset.varying_axes(every, _VISITS)
    visits = defaultdict[Group, list[Row]](list)
    for group, row in zip(groups(every, keys), every.each(), strict=True):
        visits[group].append(row)
    names = [metric] if metric else [*dataset.own_results(data.rows), _MEDIAN]
    numbers = {name for name in names if dataset.is_quantity(name, every)}
    rows: list[Line] = []
    for group in sorted(visits, key=lambda cells: [(cell is None, cell or 0) for cell in cells]):
        line = dict(zip(keys, group, strict=True))
        for name in ("status", *names):
            said = [row[name] for row in visits[group] if row[name] is not None]
            if name in numbers:
                line[name] = formats.to_json(name, float(median(said))) if said else None
            else:
                line[name] = said[-1] if said else None
        rows.append(line)
    table = _columns(rows)
    texts = formats.texts(table, keys)
    for name in ("status", *names):
        texts[formats.label(name)] = [*map(_said_cell, table[name])]
    view = View(
        title=f"{data.sweep_dir.name}: what the command said ({data.counts()})",
        frame=table, texts=texts, left=len(keys) + 1, notes=data.notes(),
        record=data.record(rows), marks=[f"   {FOREIGN}: {_SAID}"],
    )  # fmt: skip
    return Report(keys, rows, [view])


def _said_cell(value: Any) -> str:  # noqa: ANN401 - a cell
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
