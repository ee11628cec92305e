"""Reads the measured points of a sweep, and tells them apart by their axes; it averages nothing.

There is one row per point, as `collect` wrote it, without points that the sweep no longer has.
Columns of text stay text, since an id may be all digits. Empty cells are NaN. `reliability` says
which rows are valid, `formats` how a cell is written.
"""

from __future__ import annotations

import json
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import compress
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from hpcsweep import catalog
from hpcsweep.analysis import conditions, formats, plain_rows, reliability
from hpcsweep.analysis.conditions import Condition
from hpcsweep.analysis.plain_rows import (
    KINDS,
    NUMBERS,
    Rows,
    Table,
    cells,
    column,
    distinct,
    is_empty,
    row_mappings,
    with_cells,
)
from hpcsweep.catalog import gpus
from hpcsweep.catalog.columns import IMPOSSIBLE
from hpcsweep.errors import SpecError, UsageError, suggest
from hpcsweep.point import algorithm_name
from hpcsweep.spec import space
from hpcsweep.store import outcomes
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.outcomes import FailureGroup, PointTally, doubts_of
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
Read = TypeVar("Read", bound="SweepRows[Any]")

_REASONS: Final = 6  # lines of reasons why points were not measured: more would hide the table
_EARLIER_LAYOUTS: Final = {"contiguous": "nchw", "channels_last": "nhwc"}  # of find-dbs
TRAINING: Final = catalog.TRAINING.name
REPEATS: Final = frozenset(catalog.axes_with(catalog.Role.REPETITION))
HARDWARE: Final = ("device_name", "driver_version", "cudnn_version", "torch_version")
# what reports tell of each point, beside what they compare
_ALWAYS: Final = frozenset({
    *catalog.AXES, *outcomes.TOLD, *outcomes.NEIGHBOURS, *HARDWARE, "point_id", "orphan",
    "submission", "chunk", "attempt", "control_ms", "own_axes", "own_results",
})  # fmt: skip


@dataclass(frozen=True)
class SweepRows(Generic[Table]):
    """The measured rows of one sweep; `tally` and `failed` are of all points but orphans."""

    sweep_dir: SweepDir
    rows: Table
    tally: PointTally
    orphans: int
    failed: Table
    earlier: Table  # measured with other own files: left out
    maps: Mapping[str, str]  # names of maps of algorithms

    @property
    def trains(self) -> bool:
        return {*column(self.rows, "workload")} <= {TRAINING}

    @property
    def is_of_command(self) -> bool:
        return reliability.is_of_command(self.rows)

    def counts(self) -> str:
        """Return how many points there are of each status, and how many were left out."""
        orphans = f"{count(self.orphans, 'orphan')} left out" if self.orphans else ""
        separator = "; " if self.tally.not_valid else ", "
        return separator.join(filter(None, (str(self.tally), orphans)))

    def failures(self) -> list[FailureGroup]:
        """Return the points that were not measured by status and reason."""
        return outcomes.failures_in(row_mappings(self.failed), self.maps)

    def record(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return a report as a plain record."""
        return {
            "sweep": self.sweep_dir.name, "statuses": dict(self.tally.statuses),
            **self.tally.to_json(),
            "failed": [asdict(group) for group in self.failures()],
            "maps": {name: json.loads(layers) for layers, name in self.maps.items()},
            "orphans": self.orphans, "rows": list(rows),
        }  # fmt: skip

    def notes(self) -> list[str]:
        """Return the lines below a report: maps of algorithms, neighbours, and failures."""
        doubtful = self.rows[[not each for each in reliability.valid(self.rows)]]
        advice = outcomes.disturbance(self.sweep_dir, row_mappings(doubtful, outcomes.TOLD))
        notes = [*space.legend(self.maps), *self.of_earlier_files()]
        if advice:
            notes.append(advice)
        alone = [not is_empty(cell) for cell in column(self.rows, "neighbour_slowdown_pct")]
        controls = row_mappings(self.rows[alone], (*outcomes.NEIGHBOURS, "flags"))
        neighbours = outcomes.beside_neighbours(controls)
        if neighbours:
            notes.append(neighbours)
        return [*notes, *self.why_failed()]

    def of_earlier_files(self) -> list[str]:
        """Return a line on the points that an earlier version of own files was measured at."""
        if not len(self.earlier):
            return []
        axes = ("model", *varying_axes(self.earlier, {"model"}))
        first = row_mappings(self.earlier)[:_REASONS]
        named = ", ".join(formats.labelled(row, axes) for row in first)
        more = ", ..." if len(self.earlier) > _REASONS else ""
        note = f"{count(len(self.earlier), 'point')} left out, measured with an earlier version of"
        again = f"to measure them again: {self.sweep_dir.command('retry', '--changed')}"
        return [f"{note} your own files: {named}{more}; {again}"]

    def why_failed(self) -> list[str]:
        """Return a line for each reason why points were not measured; the last counts the rest."""
        groups = self.failures()
        lines = [*map(str, groups[:_REASONS])]
        others = sum(group.points for group in groups[_REASONS:])
        if others:
            lines.append(f"and {count(others, 'point')} more (the column status_reason)")
        return lines

    def check(self, columns: Iterable[str]) -> None:
        """Raise `UsageError` with the nearest name for a column that is not in the table."""
        for name in columns:
            if name not in self.rows:
                near = suggest(name, plain_rows.header(self.sweep_dir.overall))
                near = near or "; the first line of that file, or of details.csv, has the names"
                raise UsageError(f"{self.sweep_dir.overall}: no column '{name}'{near}")

    def numbers(self, name: str) -> Table:
        """Return the rows that have a number in a column; `UsageError` where none has."""
        self.check([name])
        cells = [*self.rows[name]]
        has_number = [isinstance(cell, Real) and not is_empty(cell) for cell in cells]
        if not any(has_number):
            has_none = f"{name} holds no numbers ({self.counts()})"
            raise UsageError(f"{self.sweep_dir.overall}: {has_none}")
        return self.rows if all(has_number) else self.rows[has_number]  # a choice copies all

    def conditions(self, text: str) -> list[Condition]:
        """Return the conditions of a text such as ``a=b,c>=4``; `UsageError` if it has none."""
        found = conditions.parse(text)
        self.check(condition.column for condition in found)
        return found

    def where(self, text: str) -> Table:
        """Return the rows that meet the conditions of a text; `UsageError` if none does."""
        return conditions.select(self.rows, self.conditions(text))


class Dataset(SweepRows["pd.DataFrame"]):
    """The rows of one sweep as frames, for what computes with columns."""

    def pairs(self, text: str) -> dict[str, str]:
        """Return column to value of ``a=b,c=d``: one value of each column, and nothing else."""
        found = self.conditions(text)
        match = {column: value for column, sign, value in found if sign == "="}
        if len(match) < len(found) or any(".." in value for value in match.values()):
            raise UsageError(f"'{text}': a baseline is column=value, one value of each column")
        return match

    def chosen(
        self, *where: str, unreliable: bool = False, noise: bool = False
    ) -> tuple[pd.DataFrame, list[str]]:
        """Return the points that are reliable and meet each `where`, and a note on the others.

        With `unreliable`, these stay, too, but for impossible times.
        With `noise`, points that are only noisy stay: for comparisons that know their intervals.
        `UsageError` where none is left.
        """
        rows = self.rows
        for text in where:
            rows = conditions.select(rows, self.conditions(text))
        kept = rows if unreliable else rows[reliability.valid(rows, noise=noise)]
        kept = kept[~reliability.flagged(kept, {IMPOSSIBLE})]
        out = rows[~rows.index.isin(kept.index)]
        why = ", ".join(reliability.doubts(out)) or "valid is false"
        if kept.empty:
            text = f"{_named(self.sweep_dir)}: every point is unreliable ({why})"
            if not unreliable:
                text += "; --unreliable (in Python unreliable=True) takes them"
            if "foreign" not in why:
                text += f"; {self.sweep_dir.command('retry', '--invalid')} measures again"
            raise UsageError(text)
        notes = self.of_earlier_files()
        if len(out):
            way = "" if unreliable else "; --unreliable takes them"
            notes.append(f"{count(len(out), 'unreliable point')} left out ({why}){way}")
        return kept, notes

    def layers(self) -> pd.DataFrame:
        """Return the layer rows of the measured points; `UsageError` if not collected."""
        return self.of_layers(self.rows)

    def of_layers(
        self, points: pd.DataFrame, columns: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the layer rows of some points, or some columns of them alone.

        `UsageError` if not collected.
        """
        from hpcsweep.analysis import merged  # noqa: PLC0415 - as in `read_dataset`

        if columns is None:
            calls = self._calls
        else:
            path = self.sweep_dir.layers
            calls = merged.read_table(path, self.sweep_dir.name, columns=columns)
        calls = calls[calls["point_id"].isin(points["point_id"])]
        return calls.replace({"algorithm": self.maps}) if self.maps else calls

    @cached_property
    def _calls(self) -> pd.DataFrame:
        """The layer rows of these points, read once: a page asks several times."""
        from hpcsweep.analysis import merged  # noqa: PLC0415 - as in `read_dataset`

        points = frozenset(self.rows["point_id"])
        return merged.read_table(self.sweep_dir.layers, self.sweep_dir.name, points=points)


def read_dataset(
    sweep_dir: SweepDir, where: str = "", columns: Collection[str] | None = None
) -> Dataset:
    """Read the merged table of a sweep, or of some points; `UsageError` if nothing was measured.

    With `columns` only these are read, and those of conditions, axes and messages: a large table
    with all columns does not fit the memory of a login node.
    """
    from hpcsweep.analysis import merged  # noqa: PLC0415 - pandas: a short report goes without

    if columns is not None:
        columns = _with_told(sweep_dir, where, columns)
    table = merged.read_table(sweep_dir.overall, sweep_dir.name, columns=columns)
    return _chosen(Dataset, sweep_dir, table, where)


def read_sweep(sweep_dir: SweepDir, where: str, columns: Collection[str]) -> SweepRows[Rows]:
    """Read some columns as `read_dataset` does, and those of messages, into plain rows."""
    columns = _with_told(sweep_dir, where, columns)
    table = plain_rows.read_rows(sweep_dir.overall, sweep_dir.name, columns)
    return _chosen(SweepRows, sweep_dir, table, where)


def _with_told(sweep_dir: SweepDir, where: str, columns: Collection[str]) -> Collection[str]:
    """Return the columns, those of a command, and those of conditions, axes and messages."""
    own = set(plain_rows.header(sweep_dir.overall)).difference(KINDS)
    asked = {condition.column for condition in conditions.parse(where)}
    return {*columns, *own, *_ALWAYS, *asked}


def _chosen(kind: Callable[..., Read], sweep_dir: SweepDir, table: Table, where: str) -> Read:
    """Return the points of a table that count; `UsageError` if none was measured."""
    (table,) = products_apart(table)
    maps = _names_of_maps(sweep_dir, table)
    layouts = [_EARLIER_LAYOUTS.get(name, name) for name in table["memory_format"]]
    algorithms = [maps.get(name, name) for name in table["algorithm"]]
    table = with_cells(table, memory_format=layouts, algorithm=algorithms)
    orphan = [cell == "true" for cell in column(table, "orphan")]
    kept = table[[not each for each in orphan]]
    none = table[[False] * len(table)]
    if where:
        kept = kind(sweep_dir, kept, PointTally(), 0, none, none, maps).where(where)
    is_ok = [status == PointStatus.OK for status in kept["status"]]
    is_earlier = [*map(operator.and_, is_ok, reliability.flagged(kept, {"old_files"}))]
    is_measured = [*map(operator.gt, is_ok, is_earlier)]
    measured = kept[is_measured]
    earlier = kept[is_earlier]
    failed = kept[[not each for each in is_ok]]
    counted = PointTally(Counter(compress(kept["status"], map(operator.not_, is_earlier))))
    not_valid = measured[[not each for each in reliability.valid(measured)]]
    counted.doubt(map(doubts_of, row_mappings(not_valid, ("valid", "flags"))))
    data = kind(sweep_dir, measured, counted, sum(orphan), failed, earlier, maps)
    if not len(measured):
        head = f"{_named(sweep_dir)}: no measured point ({data.counts() or 'no rows'})"
        raise UsageError("\n   ".join([head, *data.of_earlier_files(), *data.why_failed()]))
    return data


def _named(sweep_dir: SweepDir) -> str:
    """Return the path of a sweep's table; the tables of one run lie in a folder that vanishes."""
    return sweep_dir.name if sweep_dir.tables else str(sweep_dir.overall)


def products_apart(*tables: Table) -> list[Table]:
    """Return tables that are read together so that each value of `gpu` is one product.

    A profile may take an L40 and an L40S, which has twice the tensor cores' rate. Where the tables
    hold several products under one value, only the one that it names keeps it; the others get their
    names of the catalogue, else those of the devices. Processors share `cpu`.
    """
    pairs: dict[tuple[Any, Any], Any] = {}  # what is the gpu of rows with this gpu and device
    for table in tables:
        pairs |= dict.fromkeys(zip(column(table, "gpu"), column(table, "device_name"), strict=True))
    products = defaultdict[str, set[str]](set)
    for gpu, device in pairs:
        pairs[gpu, device] = gpu
        if isinstance(gpu, str) and isinstance(device, str) and gpu != "cpu":
            pairs[gpu, device] = gpus.product(device)
            products[gpu].add(pairs[gpu, device])
    several = {gpu for gpu, named in products.items() if len(named) > 1}
    if not several:
        return [*tables]
    apart = []
    for table in tables:
        names = []
        for gpu, device in zip(column(table, "gpu"), column(table, "device_name"), strict=True):
            names.append(pairs.get((gpu, device), gpu) if gpu in several else gpu)
        apart.append(with_cells(table, gpu=names))
    return apart


def _names_of_maps(sweep_dir: SweepDir, table: Rows | pd.DataFrame) -> dict[str, str]:
    """Return short names of the maps of algorithms in a table: the sweep's own, or checksums."""
    maps = [name for name in distinct(table, "algorithm") if str(name).startswith("{")]
    given: dict[str, str] = {}
    if maps and sweep_dir.sweep_file.is_file():
        from hpcsweep.spec import sweep_file  # noqa: PLC0415 - pydantic: a fifth of a report's time

        with suppress(SpecError):  # a file of an older version names nothing
            given = dict(sweep_file.load(sweep_dir.sweep_file).maps)
    return {text: algorithm_name(text, given) for text in maps}


def gradients(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which layer rows are of gradients; imported ones tell those of input and weights."""
    return cells(rows, "direction").fillna("").str.startswith("backward")


def axes_in(rows: Rows | pd.DataFrame) -> list[str]:
    """Return the axes among the columns: those of the catalogue, then those of a command."""
    names = [*catalog.AXES, *_own_names(rows, "own_axes")]
    return [name for name in dict.fromkeys(names) if name in rows]


def own_results(rows: Rows | pd.DataFrame) -> list[str]:
    """Return the columns that commands filled with what they said."""
    return list(dict.fromkeys(_own_names(rows, "own_results")))


def _own_names(rows: Rows | pd.DataFrame, column: str) -> list[str]:
    names: list[str] = []
    for text in distinct(rows, column) if column in rows else ():
        if text and not is_empty(text):
            names += json.loads(text)
    return names


def varying_axes(rows: Rows | pd.DataFrame, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return the axes that have more than one value in these rows; unset is a value."""
    axes = (axis for axis in axes_in(rows) if axis not in without)
    return tuple(axis for axis in axes if len(distinct(rows, axis)) > 1)


def configurations(points: pd.DataFrame) -> pd.Series[int]:
    """Return a number per point; points with equal numbers differ in algorithm, seed and visit."""
    axes = [axis for axis in axes_in(points) if axis not in {"algorithm", *REPEATS}]
    return points.groupby(axes, dropna=False, sort=False).ngroup()


def visits(points: pd.DataFrame) -> pd.Series[str]:
    """Return a name per point; points of a configuration with unequal ones are repetitions."""
    first, *others = sorted(REPEATS)
    names = cells(points, first).map("/{}".format)
    for axis in others:
        names += cells(points, axis).map("/{}".format)
    return names


def first_known(rows: pd.DataFrame, *names: str) -> pd.Series[float]:
    """Return the first of several columns that has a number in a row, or NaN."""
    return rows.reindex(columns=names).bfill(axis=1).iloc[:, 0]


def rank(name: str, value: Any) -> tuple[int, Any]:  # noqa: ANN401 - a cell
    """Return a sort key: numbers by size, algorithms and choices in catalogue order.

    An empty cell is before all, and a text that the catalogue does not know behind all.
    """
    if is_empty(value):
        return (0, 0)
    if not isinstance(value, str):
        return (1, value)
    order = list(catalog.ALGORITHMS)
    if name != "algorithm":
        axis = catalog.AXES.get(name)
        order = list(axis.choices) if axis else []
    return (1, order.index(value)) if value in order else (2, value)


def values(rows: pd.DataFrame, axis: str) -> list[Any]:
    """Return the values of an axis in catalogue order."""
    return sorted(rows[axis].unique(), key=lambda value: rank(axis, value))


def ordered(rows: pd.DataFrame, axis: str) -> list[str]:
    """Return the values of an axis as text, in catalogue order."""
    return [formats.format_value(axis, value) for value in values(rows, axis)]


def is_quantity(axis: str, rows: Rows | pd.DataFrame | None = None) -> bool:
    """Tell whether the values of an axis are numbers; of a command's own the `rows` tell."""
    if axis in KINDS or rows is None:
        return axis in NUMBERS
    return plain_rows.is_quantity(axis, rows[axis])


def hardware(rows: pd.DataFrame) -> str:
    """Return the devices and versions that rows were measured with, for a caption."""
    parts = []
    for name in HARDWARE:
        found = ", ".join(map(str, sorted(cells(rows, name, None).dropna().unique())))
        if found and name != "device_name":
            found = f"{name.removesuffix('_version')} {found}"
        parts.append(found)
    return "; ".join(filter(None, parts))
