"""The row schema: all column names and flags (statuses: `store.state`).

Columns and flags of a check stand in its record, in `catalog/checks/`, other columns in
`row_records`, other flags in `flags.csv`. A flag with a doubt makes a row not valid; a lasting one
is of what the point is. A clocked column is of times, so it is empty in a row of a profiled run.
`docs/reference/results.md` is generated from both, so it cannot drift.

Two tables, joined by `point_id`: `overall` has one row per point, `layers` one row per layer call
of a point. `samples` holds the raw times. Names that a published predecessor used come first, in
its order, so that its notebooks run unchanged; those that compute with `kernel_size`, `stride` or
`padding` do so for square kernels only. Units are suffixes; an empty cell is unknown, never zero.

Of a merged table people read `overall.csv`; what they seldom ask for stands in `details.csv`. Both
have only columns that the sweep fills; readers join them, and see every column. Tables of earlier
versions may have columns that are no longer here: `columns_1.0.csv` has those of the first schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import catalog
from hpcsweep.catalog import row_records
from hpcsweep.catalog.checks import CHECKS
from hpcsweep.catalog.record import CAUSES, Cells, Flag, UndeclaredCell, packaged

if TYPE_CHECKING:
    from collections import abc

# 1.0  first release. A reader refuses a newer major version, and keeps columns that are new to it.
SCHEMA_VERSION: Final = "1.0"

STOP_REASONS: Final[Mapping[str, str]] = {
    "fixed": "the number of passes that the sweep asked for was reached",
    "converged": "the relative IQR, or the confidence interval of the median, reached its target",
    "stable_noise": "the noise stopped decreasing; more samples would not help",
    "timeout": "the time limit was reached first",
}

FOREIGN: Final = "foreign"
IMPOSSIBLE: Final = "impossible"  # `limits` finds it
CHECK_MISSING: Final = "check_missing"
SUSPENDED: Final = "suspended"
NEIGHBOURS_DISTURB: Final = "neighbours_disturb"
UNDECIDED: Final = "undecided"
KERNELS: Final = "kernels"  # a call's time is that of its kernels, in a trace made elsewhere
# Flags of no check: of the times, of a training, of imports, and what `collect` finds in a table.
_FLAG_ROWS: Final = packaged("flags.csv")
_OTHER_FLAGS: Final = tuple(
    Flag(
        row["flag"],
        row["doc"].replace("LIMIT", row["limit"]),
        doubt=bool(row["doubt"]),
        lasting=bool(row["lasting"]),
        words=row["words"],
        cause=row["cause"] or "others",
    )
    for row in _FLAG_ROWS
)
# the thresholds of these flags, in the unit of their text
LIMITS: Final = {row["flag"]: float(row["limit"]) for row in _FLAG_ROWS if row["limit"]}
_OF_CHECKS: Final = tuple(chain.from_iterable(check.flags for check in CHECKS.values()))
# doubts come first in the reference
_FLAGS: Final = sorted((*_OF_CHECKS, *_OTHER_FLAGS), key=lambda flag: not flag.doubt)
FLAGS: Final[Mapping[str, str]] = {flag.name: flag.doc for flag in _FLAGS}
DOUBTFUL: Final = frozenset(flag.name for flag in _FLAGS if flag.doubt)
# doubts of what a point is, not of what disturbed it: measured again, it would have them again
LASTING: Final = frozenset(flag.name for flag in _FLAGS if flag.lasting)
# what headlines tell of rows in doubt: figures first, then flags
FIGURES: Final = tuple(chain.from_iterable(check.figures for check in CHECKS.values()))
TOLD_FLAGS: Final = sorted(
    (flag for flag in _FLAGS if flag.words), key=lambda flag: CAUSES.index(flag.cause)
)


def is_valid(status: str, flags: Iterable[str]) -> bool:
    """Say whether the times of a row may be quoted.

    The point was measured to its end; no check that applied doubts its times; and none that was
    wanted could not be had, for which it has a doubtful flag, too.
    """
    return status == "ok" and DOUBTFUL.isdisjoint(flags)


@dataclass(frozen=True)
class Column:
    """One column: its name, the kind of its cells, and the group of the documentation."""

    name: str
    kind: str
    doc: str
    group: str
    clocked: bool = False


def _columns_of(record: type[Cells], group: str) -> list[Column]:
    """Return the columns of a record."""
    columns = []
    for name, declared in record.declared.items():
        columns.append(Column(name, declared.kind, declared.doc, group, declared.clocked))
    return columns


def _axis_columns() -> list[Column]:
    """Return the columns of the axes that have no name of the predecessor."""
    columns = []
    for name, axis in catalog.AXES.items():
        if name not in row_records.NamedAxes.declared:
            kind = "str" if axis.kind == "any" else axis.kind  # a name, or nothing
            columns.append(Column(name, kind, axis.doc, "axes"))
    return columns


def _check_columns(table: str) -> list[Column]:
    """Return the columns of the checks' records of rows, or of layer rows."""
    columns = []
    for name, check in CHECKS.items():
        columns += _columns_of(getattr(check, table), name)
    return columns


def _led_by(names: Sequence[str], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns, those with the names of the predecessor first."""
    others = {column.name: column for column in columns}
    first = [replace(others.pop(name), group="names of the predecessor") for name in names]
    return (*first, *others.values())


def _names(columns: Iterable[Column]) -> tuple[str, ...]:
    return tuple(column.name for column in columns)


_PROVENANCE: Final = "provenance (env.json of the attempt has all of it)"
OWN: Final = ("own_axes", "own_results")  # of a command
# The commit protocol's own columns: in shards only, always last (see `shards`).
COMMIT: Final = ("layers_offset", "layers_bytes", "samples_offset", "samples_bytes", "row_crc")

# The order of the tables, and of the reference, whose sections are the groups.
OVERALL: Final = _led_by(
    (*row_records.NamedAxes.declared, "mean_ms", "std_ms", "min_ms", "max_ms", "median_ms"),
    [
        *_columns_of(row_records.NamedAxes, ""),
        *_columns_of(row_records.KeyCells, "identity"),
        *_axis_columns(),
        *_columns_of(row_records.TimeCells, "time"),
        *_columns_of(row_records.ChoiceCells, "algorithm"),
        *_check_columns("overall"),
        *_columns_of(row_records.LayerPassCells, "layer pass"),
        *_columns_of(row_records.TrainingCells, "training"),
        *_columns_of(row_records.PhaseCells, "phases of a training step"),
        *_columns_of(row_records.WorkCells, "work"),
        *_columns_of(row_records.LoadCells, "state of the machine"),
        *_columns_of(row_records.AttemptCells, "identity"),
        *_columns_of(row_records.PointCells, "identity"),
        *_columns_of(row_records.OutcomeCells, "identity"),
        *_columns_of(row_records.WallCells, "identity"),
        *_columns_of(row_records.NeighbourCells, "state of the machine"),
        *_columns_of(row_records.MachineCells, _PROVENANCE),
        *_columns_of(row_records.OriginCells, _PROVENANCE),
    ],
)
LAYERS: Final = _led_by(
    (
        "model", "layer", "algorithm", "device", "batch_size", "input_size", "in_channels",
        "out_channels", "kernel_size", "stride", "padding",
        "mean_ms", "std_ms", "min_ms", "max_ms", "median_ms", "percentage",
    ),
    [*_columns_of(row_records.LayerCells, "layer"), *_check_columns("layers")],
)  # fmt: skip
SAMPLES: Final = tuple(_columns_of(row_records.SampleCells, "samples"))
# What collect adds to the rows of the merged table, after the columns of the shards.
COLLECTED: Final = tuple(_columns_of(row_records.CollectedCells, "added by collect"))
# The cells that stay empty in a row of a profiled run: times, and what is computed from times.
CLOCKED: Final = frozenset(column.name for column in OVERALL if column.clocked)

OVERALL_COLUMNS: Final = _names(OVERALL)
LAYER_COLUMNS: Final = _names(LAYERS)
SAMPLE_COLUMNS: Final = _names(SAMPLES)

_DECLARED: Final = {"overall": frozenset(OVERALL_COLUMNS), "layers": frozenset(LAYER_COLUMNS)}

MERGED_COLUMNS: Final = (*OVERALL_COLUMNS, *_names(COLLECTED))

# Shards begin with the two cells that `status` needs, so that it can ignore the rest of a line.
SHARD_COLUMNS: Final = tuple(dict.fromkeys(("point_id", "status", *OVERALL_COLUMNS, *COMMIT)))

# Rows of one sweep can be compared only if these cells are equal.
MUST_AGREE: Final = ("torch_version", "cuda_version", "cudnn_version", "driver_version")

FROZEN: Final = "columns_1.0.csv"
SEED: Final = OVERALL_COLUMNS[:10]  # names of the predecessor
# what joins a row of details.csv to its row of overall.csv, also across runs of a sweep
JOINED: Final = ("point_id", "visit", "submission")
# the cells of a point that each of its layer rows repeats, at the end of the row
OF_POINT: Final = ("valid", "flags", "visit")
# what readers see of each table, filled or not
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "overall": tuple(name for name in MERGED_COLUMNS if name not in OWN),
    "layers": (*LAYER_COLUMNS, *OF_POINT),
    "samples": SAMPLE_COLUMNS,
}
# after the names of the predecessor and the axes that the sweep names
READ: Final = (
    "point_id", "status", "status_reason", "valid", "flags", "visit", "on_node",
    "algorithm_used", "algorithm_coverage_pct",
    "n", "ci95_lo_ms", "ci95_hi_ms", "throughput_ips",
    "train_s", "throughput_sps", "train_accuracy", "val_accuracy_after",
    "flops", "achieved_tflops", "mem_peak_bytes", "energy_j", "neighbours",
    "device_name", *MUST_AGREE, "hpcsweep_version",
    "sweep", "submission", "started_at", "orphan", "source",
)  # fmt: skip
DETAILS: Final = tuple(name for name in MERGED_COLUMNS if name not in {*SEED, *READ})
_ALWAYS: Final = frozenset({*SEED, *JOINED, *OF_POINT, "status", "orphan"})

Row = dict[str, Any]


def axis_cells(axes: Mapping[str, Any]) -> Row:
    """Return the cells of axes of a point; with the axis `gpu` the cell `device`, too."""
    cells = {name: value for name, value in axes.items() if name in catalog.AXES}
    if "gpu" in axes:
        cells["device"] = axes["gpu"]
    return cells


def undeclared(row: Mapping[str, object], table: str) -> set[str]:
    """Return the names in a row of a table, overall or layers, that no record declares."""
    return row.keys() - _DECLARED[table]


def check_declared(row: Mapping[str, object], table: str) -> None:
    """Raise `UndeclaredCell` where a row of a table has a cell that no record declares."""
    unknown = undeclared(row, table)
    if unknown:
        raise UndeclaredCell(sorted(unknown), _DECLARED[table], f"a row of {table}.csv")


def cell(value: object) -> str:
    """Return the text of one cell: one line, empty for unknown, seven significant digits."""
    written = _TEXTS.get(type(value))
    if written is not None:
        return written(value)
    if isinstance(value, float):  # numpy's
        return f"{value:.7g}"
    if isinstance(value, dict | list | tuple):
        from hpcsweep.point import canonical_json  # noqa: PLC0415 - only maps of algorithms

        return canonical_json(value)
    return _one_line(str(value))


def _one_line(text: str) -> str:
    if text.isalnum():  # most texts, at a third of the time
        return text
    return " ".join(text.replace("\0", " ").split())


_TEXTS: Final[Mapping[type, Callable[[Any], str]]] = {
    type(None): lambda _: "",
    str: _one_line,
    float: "{:.7g}".format,
    int: repr,
    bool: lambda value: "true" if value else "false",
}


def cells(row: Mapping[str, Any], columns: Iterable[str]) -> list[str]:
    """Return the cells of a row as texts, in the order of the columns."""
    return ["" if value is None else cell(value) for value in map(row.get, columns)]


def split(
    filled: abc.Set[str], named: abc.Set[str], own: Iterable[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of overall.csv and details.csv.

    `filled` are the columns that some row fills, `named` the axes that the sweep names, `own` the
    axes and results of a command.
    """
    # people read `device`, which is the same as `gpu`
    shown = named - {"gpu", *READ}
    wanted = [*SEED, *(axis for axis in catalog.AXES if axis in shown)]
    wanted += own
    if "own_results" in filled:
        wanted.append("wall_s")  # of a command, which has no other time
    wanted += READ
    there = {*filled, *own, *_ALWAYS}
    overall = tuple(name for name in dict.fromkeys(wanted) if name in there)
    details = filled - {*overall}
    known = [name for name in MERGED_COLUMNS if name in details]
    return overall, (*JOINED, *known, *sorted(details - {*MERGED_COLUMNS}))


@cache
def kinds() -> Mapping[str, str]:
    """Return the kind of every column of any table, by name, those of earlier versions included."""
    known = {row["column"]: row["kind"] for row in packaged(FROZEN)}
    for column in (*SAMPLES, *LAYERS, *OVERALL, *COLLECTED):
        known[column.name] = column.kind
    return known
