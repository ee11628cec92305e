"""Reads the merged tables of a sweep: its measured points, without those it no longer has.

There is one row per point, as `collect` wrote it. Columns of text stay text, since an id may be
all digits. Empty cells are NaN. Nothing is averaged.
"""

from __future__ import annotations

import json
from collections import Counter, abc
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep import catalog, files
from hpcsweep.analysis import merged, verdicts
from hpcsweep.analysis.merged import KINDS, Condition, parse, select
from hpcsweep.catalog import gpus
from hpcsweep.catalog.columns import DOUBTFUL, FOREIGN
from hpcsweep.catalog.limits import IMPOSSIBLE
from hpcsweep.errors import SpecError, UsageError, suggest
from hpcsweep.point import algorithm_name
from hpcsweep.spec import space
from hpcsweep.store import outcomes
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.outcomes import FailureGroup, PointTally, doubts_of
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count, shown

Row = Mapping[str, Any]

_REASONS: Final = 6  # lines of reasons why points were not measured
_EARLIER_LAYOUTS: Final = {"contiguous": "nchw", "channels_last": "nhwc"}  # of find-dbs
# flags that make a time unreliable, though it may be valid
_DOUBT: Final = DOUBTFUL | {"noisy", "host_copies"}
# pandas' own types, which know an empty cell; a time is read as text first
_TYPES: Final = {"int": "Int64", "float": "float64", "bool": "boolean"}
TRAINING: Final = catalog.TRAINING.name
COMMAND: Final = catalog.COMMAND.name
REPEATS: Final = frozenset(catalog.axes_with(catalog.Role.REPETITION))
COVERAGE: Final = "share of the convolution FLOPs that ran the algorithm; auto did the rest"
HARDWARE: Final = ("device_name", "driver_version", "cudnn_version", "torch_version")
# what reports tell of each point, beside what they compare
_ALWAYS: Final = frozenset({
    *catalog.AXES, *outcomes.TOLD, *HARDWARE, "point_id", "orphan", "submission", "chunk",
    "attempt", "control_ms", "own_axes", "own_results",
})  # fmt: skip
# axes whose values need no name beside them
_SPEAKING: Final = frozenset(
    {"model", "algorithm", "dtype", "gpu", "memory_format", "launch", "cache_state", "workload"}
)


@dataclass(frozen=True)
class Dataset:
    """The measured rows of one sweep; `tally` and `failed` are of all points but orphans."""

    sweep_dir: SweepDir
    rows: pd.DataFrame
    tally: PointTally
    orphans: int
    failed: pd.DataFrame = field(default_factory=pd.DataFrame)
    maps: Mapping[str, str] = field(default_factory=dict)  # names of maps of algorithms
    earlier: pd.DataFrame = field(default_factory=pd.DataFrame)  # of other own files: left out

    @property
    def trains(self) -> bool:
        return "workload" in self.rows and bool((self.rows["workload"] == TRAINING).all())

    @property
    def is_of_command(self) -> bool:
        return is_of_command(self.rows)

    def counts(self) -> str:
        """Return how many points there are of each status, and how many were left out."""
        orphans = f"{count(self.orphans, 'orphan')} left out" if self.orphans else ""
        separator = "; " if self.tally.not_valid else ", "
        return separator.join(filter(None, (str(self.tally), orphans)))

    def failures(self) -> list[FailureGroup]:
        """Return the points that were not measured by status and reason."""
        failed = self.failed.astype(object)
        rows: list[Any] = failed.where(failed.notna(), None).to_dict("records")
        return outcomes.failures_in(rows, self.maps)

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
        """Return the lines below a report: maps of algorithms, and failures."""
        legend = space.legend(self.maps)
        doubtful: list[Any] = self.rows[~valid(self.rows)].to_dict("records")
        advice = filter(None, [outcomes.disturbance(self.sweep_dir, doubtful)])
        return [*legend, *self.of_earlier_files(), *advice, *self.why_failed()]

    def of_earlier_files(self) -> list[str]:
        """Return a line on the points that an earlier version of own files was measured at."""
        if self.earlier.empty:
            return []
        axes = ("model", *varying_axes(self.earlier, {"model"}))
        some = (labelled(row, axes) for _, row in self.earlier.head(_REASONS).iterrows())
        more = ", ..." if len(self.earlier) > _REASONS else ""
        note = f"{count(len(self.earlier), 'point')} left out, measured with an earlier version of"
        again = f"to measure them again: {self.sweep_dir.command('retry', '--changed')}"
        return [f"{note} your own files: {', '.join(some)}{more}; {again}"]

    def why_failed(self) -> list[str]:
        """Return a line for each reason why points were not measured; the last counts the rest."""
        groups = self.failures()
        rest = sum(group.points for group in groups[_REASONS:])
        more = [f"and {count(rest, 'point')} more (the column status_reason)"] if rest else []
        return [*map(str, groups[:_REASONS]), *more]

    def check(self, columns: Iterable[str]) -> None:
        """Raise `UsageError` with the nearest name for a column that is not in the table."""
        for name in columns:
            if name not in self.rows:
                near = suggest(name, merged.header(self.sweep_dir.overall))
                near = near or "; the first line of that file, or of details.csv, has the names"
                raise UsageError(f"{self.sweep_dir.overall}: no column '{name}'{near}")

    def numbers(self, rows: pd.DataFrame, column: str) -> pd.DataFrame:
        """Return the rows that have a number in a column; `UsageError` where none has."""
        self.check([column])
        values = pd.to_numeric(rows[column], errors="coerce")
        if values.isna().all():
            raise UsageError(
                f"{self.sweep_dir.overall}: {column} holds no numbers ({self.counts()})"
            )
        return rows.assign(**{column: values})[values.notna()]

    def conditions(self, text: str) -> list[Condition]:
        """Return the conditions of a text such as ``a=b,c>=4``; `UsageError` if it has none."""
        conditions = parse(text)
        self.check(one.column for one in conditions)
        return conditions

    def pairs(self, text: str) -> dict[str, str]:
        """Return column to value of ``a=b,c=d``: one value of each column, and nothing else."""
        conditions = self.conditions(text)
        match = {column: value for column, sign, value in conditions if sign == "="}
        if len(match) < len(conditions) or any(".." in value for value in match.values()):
            raise UsageError(f"'{text}': a baseline is column=value, one value of each column")
        return match

    def chosen(
        self, *where: str, everything: bool = False, noise: bool = False
    ) -> tuple[pd.DataFrame, list[str]]:
        """Return the points that are reliable and meet each `where`, and a note on the others.

        With `noise`, points that are only noisy stay: for comparisons that know their intervals.
        `UsageError` where none is left.
        """
        rows = self.rows
        for text in where:
            rows = select(rows, self.conditions(text))
        kept = rows if everything else rows[valid(rows, noise=noise)]
        kept = kept[~flagged(kept, {IMPOSSIBLE})]
        out = rows[~rows.index.isin(kept.index)]
        why = ", ".join(doubts(out)) or "valid is false"
        if kept.empty:
            text = f"{_named(self.sweep_dir)}: every point is unreliable ({why})"
            if not everything:
                text += "; --unreliable (in Python unreliable=True) takes them"
            if "foreign" not in why:
                text += f"; {self.sweep_dir.command('retry', '--invalid')} measures again"
            raise UsageError(text)
        note = f"{count(len(out), 'unreliable point')} left out ({why})"
        if not everything:
            note += "; --unreliable takes them"
        return kept, [*self.of_earlier_files(), *([] if out.empty else [note])]

    def layers(self) -> pd.DataFrame:
        """Return the layer rows of the measured points; `UsageError` if not collected."""
        return self.of_layers(self.rows)

    def of_layers(
        self, points: pd.DataFrame, columns: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the layer rows of some points, or some columns of them alone.

        `UsageError` if not collected.
        """
        path = self.sweep_dir.layers
        calls = (
            self._calls
            if columns is None
            else merged.read_table(path, self.sweep_dir.name, columns=columns)
        )
        calls = calls[calls["point_id"].isin(points["point_id"])]
        return calls.replace({"algorithm": self.maps}) if self.maps else calls

    @cached_property
    def _calls(self) -> pd.DataFrame:
        """All layer rows, read once: a page asks several times."""
        return merged.read_table(self.sweep_dir.layers, self.sweep_dir.name)


def read_dataset(
    sweep_dir: SweepDir, where: str = "", columns: Collection[str] | None = None
) -> Dataset:
    """Read the merged table of a sweep, or of some points; `UsageError` if nothing was measured.

    With `columns` only these are read, and those of conditions, axes and messages: a large table
    with all columns does not fit the memory of a login node.
    """
    if columns is not None:
        own = set(merged.header(sweep_dir.overall)).difference(KINDS)
        columns = {*columns, *own, *_ALWAYS, *(one.column for one in parse(where))}
    table = merged.read_table(sweep_dir.overall, sweep_dir.name, columns=columns)
    (table,) = products_apart(table)
    table["memory_format"] = table["memory_format"].replace(_EARLIER_LAYOUTS)
    maps = _names_of_maps(sweep_dir, table)
    table = table.replace({"algorithm": maps}) if maps else table
    orphan = cells(table, "orphan") == "true"
    kept = table[~orphan]
    if where:
        kept = select(kept, Dataset(sweep_dir, kept, PointTally(), 0).conditions(where))
    ok = kept["status"] == PointStatus.OK
    earlier = kept[ok & flagged(kept, {"old_files"})]
    kept = kept.drop(earlier.index)
    measured = kept[ok[kept.index]]
    failed = kept[~ok[kept.index]]
    counted = PointTally(Counter(kept["status"].value_counts().to_dict()))
    not_valid = measured[~valid(measured)]
    counted.doubt(doubts_of({"valid": "false", **row}) for row in not_valid.to_dict("records"))
    data = Dataset(sweep_dir, measured, counted, int(orphan.sum()), failed, maps, earlier)
    if measured.empty:
        head = f"{_named(sweep_dir)}: no measured point ({data.counts() or 'no rows'})"
        raise UsageError("\n   ".join([head, *data.of_earlier_files(), *data.why_failed()]))
    return data


def _named(sweep_dir: SweepDir) -> str:
    """Return the path of a sweep's table; the tables of one run lie in a folder that vanishes."""
    return sweep_dir.name if sweep_dir.tables else str(sweep_dir.overall)


def products_apart(*tables: pd.DataFrame) -> list[pd.DataFrame]:
    """Return tables that are read together so that each value of `gpu` is one product.

    A profile may take an L40 and an L40S, which has twice the tensor cores' rate. Where the tables
    hold several products under one value, only the one that it names keeps it; the others get their
    names of the catalogue, else those of the devices. Processors share `cpu`.
    """
    pairs = pd.concat([table.reindex(columns=["gpu", "device_name"]) for table in tables])
    pairs = pairs[pairs["gpu"] != "cpu"].dropna().drop_duplicates()
    pairs["product"] = pairs["device_name"].map(gpus.product)
    several = pairs[pairs.groupby("gpu")["product"].transform("nunique") > 1]
    names = several.set_index(["gpu", "device_name"])["product"]
    if names.empty:
        return list(tables)
    apart = []
    for table in tables:
        keys = pd.MultiIndex.from_frame(table.reindex(columns=names.index.names))
        own = pd.Series(names.reindex(keys).to_numpy(), table.index)
        apart.append(table.assign(gpu=own.fillna(table["gpu"])) if own.notna().any() else table)
    return apart


def cells(rows: pd.DataFrame, name: str, default: object = "") -> pd.Series[Any]:
    """Return a column, or the same value in every row where there is no such column."""
    return rows.get(name, pd.Series(default, rows.index, dtype=object))


def gradients(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which layer rows are of gradients; imported ones tell those of input and weights."""
    return cells(rows, "direction").fillna("").str.startswith("backward")


def _names_of_maps(sweep_dir: SweepDir, table: pd.DataFrame) -> dict[str, str]:
    """Return short names of the maps of algorithms in a table: the sweep's own, or checksums."""
    if "algorithm" not in table:
        return {}
    maps = [text for text in map(str, table["algorithm"].dropna().unique()) if text.startswith("{")]
    given: dict[str, str] = {}
    if maps and sweep_dir.sweep_file.is_file():
        from hpcsweep.spec import sweep_file  # noqa: PLC0415 - pydantic: a fifth of a report's time

        with suppress(SpecError):  # a file of an older version names nothing
            given = dict(sweep_file.load(sweep_dir.sweep_file).maps)
    return {text: algorithm_name(text, given) for text in maps}


def typed(path: Path, sweep: str) -> pd.DataFrame:
    """Return a merged table with the catalogue's types; `UsageError` if it has none, or others."""
    types = {name: _TYPES.get(kind, "string") for name, kind in KINDS.items()}
    table = merged.read_table(path, sweep, types)
    for name in map(str, table):
        if KINDS.get(name) == "time":
            table[name] = pd.to_datetime(table[name], utc=True, format="ISO8601")
        elif KINDS.get(name) == "list":
            table[name] = table[name].astype(object).map(json.loads, na_action="ignore")
        elif name not in KINDS:  # a command's own
            words = {"true": True, "false": False}
            is_word = table[name].dropna().isin(words)
            own = table[name].map(words) if len(is_word) and is_word.all() else table[name]
            better = own.convert_dtypes()
            table[name] = own if better.dtype == "Float64" else better
    return table


def write_parquet(sweep_dir: SweepDir) -> list[Path]:
    """Write each merged table also as Parquet, with types and far smaller; return the paths.

    Cells have seven significant digits, so numbers are float32: doubles would add random bits that
    do not compress.
    """
    import pyarrow as pa  # noqa: PLC0415 - optional
    from pyarrow import parquet  # noqa: PLC0415

    written = []
    for table in filter(Path.exists, (sweep_dir.overall, sweep_dir.layers, sweep_dir.samples)):
        rows = typed(table, sweep_dir.name)
        times = [*rows.select_dtypes("float")]
        # the digits of times are random: their bytes compress by place, other cells by repetition
        others = [*rows.columns.difference(times)]
        path = table.with_suffix(".parquet")
        cells = pa.Table.from_pandas(rows.astype(dict.fromkeys(times, "float32")))
        with files.replacing(path) as file:
            parquet.write_table(
                cells.replace_schema_metadata(), file, compression="zstd", compression_level=15,
                store_schema=False, use_dictionary=others, use_byte_stream_split=times,
            )  # fmt: skip
        written.append(path)
    return written


def axes_in(rows: pd.DataFrame) -> list[str]:
    """Return the axes among the columns: those of the catalogue, then those of a command."""
    own = cells(rows, "own_axes").dropna().unique()
    names = chain(catalog.AXES, *(json.loads(text) for text in own if text))
    return [name for name in dict.fromkeys(names) if name in rows]


def varying_axes(rows: pd.DataFrame, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return the axes that have more than one value in these rows; unset is a value."""
    axes = (a for a in axes_in(rows) if a not in without)
    return tuple(a for a in axes if len(rows[a].unique()) > 1)


def configurations(points: pd.DataFrame) -> pd.Series[int]:
    """Return a number per point; points with equal numbers differ in algorithm, seed and visit."""
    axes = [a for a in axes_in(points) if a not in {"algorithm", *REPEATS}]
    return points.groupby(axes, dropna=False, sort=False).ngroup()


def visits(points: pd.DataFrame) -> pd.Series[str]:
    """Return a name per point; points of a configuration with unequal ones are repetitions."""
    names = pd.Series("", points.index)
    for axis in sorted(REPEATS):
        names += cells(points, axis).map("/{}".format)
    return names


def timed(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the columns of rows that `verdicts.judge` wants, but pair, side and origin."""
    values = rows[metric].astype(float)
    control = cells(rows, "control_ms", np.nan).astype(float)
    return pd.DataFrame({
        "visit": visits(rows), "log": np.log(values.where(values > 0)),
        "within": verdicts.within(rows, metric), "control": np.log(control.where(control > 0)),
    })  # fmt: skip


def first_known(rows: pd.DataFrame, *names: str) -> pd.Series[float]:
    """Return the first of several columns that has a number in a row, or NaN."""
    return rows.reindex(columns=names).bfill(axis=1).iloc[:, 0]


def fell_back(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which calls ran another algorithm than their point's; the framework's may be any."""
    used = cells(rows, "algorithm_used", None)
    why = cells(rows, "fallback_reason", None)
    algorithm = rows["algorithm"]
    other = (used != algorithm) & ~algorithm.isin(catalog.CHOOSING)
    return used.notna() & (why.fillna("").ne("") | other)


def valid(rows: pd.DataFrame, *, noise: bool = False) -> pd.Series[bool]:
    """Return which rows are valid; with `noise` also those that only noise makes invalid."""
    sound = cells(rows, "valid") != "false"
    return sound | ~flagged(rows, DOUBTFUL - {"very_noisy"}) if noise else sound


def doubtful(rows: pd.DataFrame, *, noise: bool = True) -> pd.Series[bool]:
    """Return which rows carry a flag that makes times unreliable; `noise`: `noisy` is one."""
    names = _doubt(rows)
    return flagged(rows, names if noise else names - {"noisy"})


def _doubt(rows: pd.DataFrame) -> abc.Set[str]:
    """Return the flags that make times unreliable; of a command all are foreign, which is none."""
    return _DOUBT - {FOREIGN} if is_of_command(rows) else _DOUBT


def is_of_command(rows: pd.DataFrame) -> bool:
    """Tell whether commands of the user's own made all rows."""
    return "workload" in rows and bool((rows["workload"] == COMMAND).all())


def own_results(rows: pd.DataFrame) -> list[str]:
    """Return the columns that commands filled with what they said."""
    said = map(json.loads, filter(None, cells(rows, "own_results").dropna().unique()))
    return [*dict.fromkeys(chain.from_iterable(said))]


def is_foreign(rows: pd.DataFrame) -> bool:
    """Tell whether other programs measured all rows: what doubts them does not tell them apart."""
    return bool(flagged(rows, {FOREIGN}).all())


def doubts(rows: pd.DataFrame) -> dict[str, int]:
    """Return the flags that make rows doubtful, and how many rows have each, most first."""
    names = _doubt(rows)
    counts = Counter(flag for flag in flags(rows).dropna() if flag in names)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def unreliable(rows: pd.DataFrame) -> list[str]:
    """Return a line that says which times are unreliable, and why; none where all are reliable."""
    why = [f"{flag} ({count(points, 'point')})" for flag, points in doubts(rows).items()]
    return [f"?  unreliable: {', '.join(why)}"] if why else []


def flagged(rows: pd.DataFrame, names: Collection[str]) -> pd.Series[bool]:
    """Return which rows carry one of these flags."""
    return flags(rows).isin(names).groupby(level=0).any().reindex(rows.index, fill_value=False)


def flags(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the flags one by one, each with the index of its row."""
    return cells(rows, "flags").str.split(";").explode()


def share(coverage: float | None) -> str:
    """Return a coverage in percent, always as wide; blank where it is all or unknown."""
    if coverage is None or coverage >= 100:
        return " " * 6
    number = "<1" if 0 < coverage < 0.5 else ">99" if coverage >= 99.5 else f"{coverage:.0f}"
    return f"{number:>4} %"


def to_json(name: str, value: Any) -> Any:  # noqa: ANN401 - numpy scalars to Python's own
    """Return a cell of a column as JSON takes it; None where it is empty."""
    if pd.isna(value):
        return None
    if KINDS.get(name) == "int":
        return int(value)  # a float where other rows have none
    return value.item() if hasattr(value, "item") else value


def format_value(name: str, value: object) -> str:
    """Return a cell of a column for people."""
    plain = to_json(name, value)
    if plain is None:
        return "unset"
    return f"{plain:.10g}" if isinstance(plain, float) else shown(str(plain))


def format_labelled(name: str, value: object) -> str:
    """Return a value of an axis for people, with the axis' name unless the value says it."""
    text = format_value(name, value)
    return text if name in _SPEAKING else f"{name} {text}"


def texts(rows: Any, names: Iterable[str]) -> dict[str, list[str]]:  # noqa: ANN401 - a table
    """Return the cells of columns for people."""
    return {name: [format_value(name, value) for value in rows[name]] for name in names}


def labelled(row: Any, axes: Iterable[str]) -> str:  # noqa: ANN401 - a row
    """Return the values of axes for people, on one line."""
    return " ".join(format_labelled(axis, row[axis]) for axis in axes)


def rank(name: str, value: Any) -> tuple[int, Any]:  # noqa: ANN401 - a cell
    """Return a sort key: numbers by size, algorithms and choices in catalogue order."""
    if pd.isna(value):
        return (0, 0)
    if not isinstance(value, str):
        return (1, value)
    axis = catalog.AXES.get(name)
    order = list(catalog.ALGORITHMS) if name == "algorithm" else list(axis.choices if axis else ())
    return (1, order.index(value)) if value in order else (2, value)


def values(rows: pd.DataFrame, axis: str) -> list[Any]:
    """Return the values of an axis in catalogue order."""
    return sorted(rows[axis].unique(), key=lambda value: rank(axis, value))


def is_quantity(axis: str, rows: pd.DataFrame | None = None) -> bool:
    """Tell whether the values of an axis are numbers; of a command's own the `rows` tell."""
    if axis in KINDS:
        return KINDS[axis] in {"int", "float"}
    return rows is not None and pd.api.types.is_numeric_dtype(rows[axis])


def ordered(rows: pd.DataFrame, axis: str) -> list[str]:
    """Return the values of an axis as text, in catalogue order."""
    return [format_value(axis, value) for value in values(rows, axis)]


def hardware(rows: pd.DataFrame) -> str:
    """Return the devices and versions that rows were measured with, for a caption."""
    parts = []
    for name in HARDWARE:
        values = sorted(rows[name].dropna().unique()) if name in rows else []
        what = "" if name == "device_name" else f"{name.removesuffix('_version')} "
        parts += [what + ", ".join(map(str, values))] if values else []
    return "; ".join(parts)
