"""Imports anybody's table of convolutions: a CSV file, and a map of its columns.

The map says which column has what, by the names that hpcsweep has for it; some maps are shipped. A
point holds the convolutions of one device, type, batch size and algorithm. How the times were taken
is not known, so the flag `foreign` puts all rows in doubt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import create_model

from hpcsweep.catalog import ALGORITHMS, AUTO, gpus
from hpcsweep.catalog.columns import FOREIGN, Row
from hpcsweep.conv.proof.kernels import UNKNOWN, recognise
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import UsageError
from hpcsweep.importing import delimited, submission
from hpcsweep.importing.delimited import TAKEN
from hpcsweep.numerals import ANY, WHOLE
from hpcsweep.spec.document import Complaints, read_document
from hpcsweep.spec.validation import Shape, check, choice, entry
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

NETWORK: Final = "table"  # in place of a network: whose the convolutions are is not known
_MAPS: Final = Path(__file__).with_name("maps")
_UNITS: Final = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
# time_us, time(usec), Time [ms], "time in ns", not a word that ends so
_UNIT: Final = re.compile(r"(?:^|[\W_])([munµμ]?)s(?:ec(?:onds?)?)?\W*$", re.IGNORECASE)
_MICRO: Final = str.maketrans("µμ", "uu")
_COUNTS: Final = {
    "batch_size": ("n",), "in_channels": ("in_c",), "out_channels": ("out_c",),
    "groups": ("groups",),
}  # fmt: skip
# two sizes that one column may have
_PAIRS: Final = {
    "input_size": ("in_h", "in_w"), "kernel_size": ("kernel_h", "kernel_w"),
    "stride": ("stride_h", "stride_w"), "padding": ("pad_h", "pad_w"),
    "dilation": ("dilation_h", "dilation_w"),
}  # fmt: skip
_NEEDED: Final = ("batch_size", "in_channels", "out_channels")
_TEXTS: Final = ("gpu", "dtype", "direction", "algorithm", "kernels")
# what a table without a column, or with an empty cell, means
_DEFAULTS: Final = {
    "groups": "1", "stride": "1", "padding": "0", "dilation": "1", "dtype": "float32",
    "direction": "forward",
}  # fmt: skip
_DTYPES: Final = {
    "float16": "float16", "fp16": "float16", "f16": "float16", "half": "float16",
    "float32": "float32", "fp32": "float32", "f32": "float32", "float": "float32",
    "single": "float32",
    "float64": "float64", "fp64": "float64", "f64": "float64", "double": "float64",
    "bfloat16": "bfloat16", "bf16": "bfloat16", "bfp16": "bfloat16",
    "int8": "int8", "i8": "int8",
}  # fmt: skip
_WAYS: Final = ("forward", "backward_data", "backward_weights")
_DIRECTIONS: Final = (*_WAYS, "backward")
_NAMED: Final = [name for name in ALGORITHMS if name != AUTO]


class TimeColumn(NamedTuple):
    """A column of times; what is empty is told by another column."""

    name: str
    direction: str = ""
    algorithm: str = ""


@dataclass(frozen=True)
class Columns:
    """Which column has what; `words` are values of ours by a part of the table's own."""

    times: list[TimeColumn]
    names: Mapping[str, str]
    words: Mapping[str, Mapping[str, str]]
    unit: str
    decimal: str  # what begins the fraction, where no cell tells it


def _keys() -> dict[str, Any]:
    """Return the keys below `columns`, with their types and defaults for pydantic."""
    sides = [name for pair in _PAIRS.values() for name in pair]
    keys: dict[str, Any] = dict.fromkeys((*_TEXTS, *_COUNTS, *_PAIRS, *sides), (str, ""))
    return {**keys, "time": (Any, ...), **dict.fromkeys(_NEEDED, (str, ...))}


class _Map(Shape):
    columns: create_model("_Columns", __base__=Shape, **_keys())  # type: ignore[valid-type]
    words: dict[str, dict[str, str]] = entry("Our words, by parts of the table's.", {})
    unit: choice(_UNITS) = "ms"  # type: ignore[valid-type]
    decimal: choice((".", ",")) | None = None  # type: ignore[valid-type]


def shipped() -> list[str]:
    """Return the names of the maps that come with hpcsweep."""
    return sorted(path.stem for path in _MAPS.glob("*.yaml"))


def read_columns(name: str) -> Columns:
    """Return a shipped map, or that of a file; `UsageError` says what is wrong with it."""
    path = _MAPS / f"{name}.yaml" if name in shipped() else Path(name)
    if not path.is_file():
        known = ", ".join(shipped())
        raise UsageError(f"--columns {name}: no such file, nor one of the maps {known}")
    doc = read_document(path, UsageError)
    found = check(_Map, doc)
    wrong = Complaints(doc)
    names = {key: column for key, column in found.columns if column}
    for whole in ("input_size", "kernel_size"):
        pair = _PAIRS[whole]
        if whole not in names and not names.keys() >= {*pair}:
            wrong.add(("columns",), f"needs {whole}, or {' and '.join(pair)}")
    times: list[TimeColumn] = []
    try:
        times = _times(names.pop("time"))
    except ValueError as error:
        wrong.add(("columns", "time"), str(error))
    for column in times:
        told = _UNIT.search(column.name)
        unit = f"{told[1].translate(_MICRO)}s" if told else found.unit
        if unit != found.unit:
            text = f"is {found.unit}, and the name of the column '{column.name}' says {unit}"
            wrong.add(("unit",), text)
    wrong.tell()
    return Columns(times, names, found.words, found.unit, found.decimal or "")


def _times(value: object, direction: str = "", algorithm: str = "") -> list[TimeColumn]:
    """Return the columns of times: one, or one for each direction, algorithm, or both."""
    if isinstance(value, str):
        return [TimeColumn(value, direction, algorithm)]
    if not isinstance(value, dict):
        raise ValueError("needs the name of a column")  # noqa: TRY004 - told with its line
    columns = []
    for key, inner in value.items():
        name = submission.as_algorithm(key)
        if key in _WAYS:
            columns += _times(inner, key, algorithm)
        elif name in _NAMED:
            columns += _times(inner, direction, name)
        else:
            raise ValueError(f"'{key}' is none of {', '.join((*_WAYS, *_NAMED))}")
    return columns


def read_rows(path: Path, columns: Columns, device: str, counts: Counter[str]) -> Iterator[Row]:
    """Yield the cells of each time of a convolution; a row of the table may have several times.

    `counts` has the rows of the table: those `TAKEN`, and those left out by their reason.

    `UsageError` where a column is not there or nothing tells the device, `ResultsError` where the
    file cannot be read.
    """
    for row in _raw(path, columns, counts):
        cells = _cells(row, columns)
        gpu = device or cells.get("gpu") or gpus.by_file_name(path.name)
        if not gpu:
            raise UsageError(f"{path}: nothing tells the device; --device does, such as v100")
        if cells["direction"] not in _DIRECTIONS:
            known = f"`words` makes it one of {', '.join(_DIRECTIONS)}"
            raise UsageError(f"{path}: direction '{cells['direction']}': {known}")
        shape = _shape(cells)
        if shape is None:
            counts["without a shape"] += 1
            continue
        work = {**submission.work_cells(shape), "gpu": gpus.of_text(gpu)}
        has_time = False
        for column in columns.times:
            ms = submission.milliseconds(row[column.name], _UNITS[columns.unit])
            if ms:
                has_time = True
                direction = column.direction or cells["direction"]
                ran = _algorithm(cells, column)
                yield {**work, "direction": direction, "mean_ms": ms, "median_ms": ms, **ran}
        counts[TAKEN if has_time else "without a time"] += 1


def _raw(path: Path, columns: Columns, counts: Counter[str]) -> Iterator[Mapping[str, str]]:
    """Return the rows of a file by their columns; numbers as Python reads them."""
    needed = [*columns.names.values(), *(column.name for column in columns.times)]
    numbers = dict.fromkeys(needed, ANY)
    for name, column in columns.names.items():
        numbers[column] = delimited.SIZES if name in _PAIRS else WHOLE
    for name in _TEXTS:
        numbers.pop(columns.names.get(name, ""), None)
    how = "`decimal: ','` or `decimal: '.'` in the map does"
    return delimited.rows(path, numbers, how, counts, needed=needed, told=columns.decimal)


def _cells(row: Mapping[str, str], columns: Columns) -> dict[str, str]:
    """Return the cells of a row by our names, in our words; those that are empty by default."""
    cells = {**_DEFAULTS}
    for name in (*columns.names, *columns.words):
        cell = row.get(columns.names.get(name, ""), "")
        own = _translated(name, cell, columns.words.get(name, {}))
        if own:
            cells[name] = own
    return cells


def _translated(name: str, own: str, words: Mapping[str, str]) -> str:
    """Return a cell in our words; a part of a type is none: float is in bfloat16, too."""
    if own in words:
        return words[own]
    if name == "dtype" and own.strip().lower() in _DTYPES:
        return own
    return next((ours for word, ours in words.items() if word in own), own)


def _shape(cells: Mapping[str, str]) -> ConvShape | None:
    """Return the shape of a row; None where a size is missing, or sizes do not agree."""
    sizes: dict[str, int | None] = {}
    for name, fields in {**_COUNTS, **_PAIRS}.items():
        both = submission.sides(cells.get(name, ""))
        for place, field in enumerate(fields):
            own = submission.sides(cells[field]) if field in cells else both
            sizes[field] = own[place] if own else None
    dtype = _DTYPES.get(cells["dtype"].strip().lower())
    if dtype is None or None in sizes.values():
        return None
    shape = ConvShape(**sizes, dtype=dtype)  # type: ignore[arg-type]
    return shape if submission.agrees(shape) else None


def _algorithm(cells: Mapping[str, str], time: TimeColumn) -> Row:
    """Return what ran, as the table says or its kernels tell: those of the output, of a row."""
    used = time.algorithm
    if not used and time.direction not in {"", "forward"}:
        return {}
    used = used or submission.as_algorithm(cells.get("algorithm", ""))
    if used in _NAMED:
        return {"algorithm_used": used, "algorithm_evidence": "the table says so"}
    kernels = [*filter(None, map(str.strip, cells.get("kernels", "").split(";")))]
    evidence = count(len(kernels), "kernel name")
    return {"algorithm_used": recognise(kernels).name, "algorithm_evidence": evidence}


def bring(
    path: Path, sweep_dir: SweepDir, device: str, columns: Columns
) -> tuple[str, tuple[str, ...]]:
    """Write the rows of a table as a submission; return its source and what was left out."""
    counts = Counter[str]()
    rows = [{"algorithm": AUTO, **row} for row in read_rows(path, columns, device, counts)]
    delimited.check_taken(path, counts)
    written = submission.write_foreign(sweep_dir, path, NETWORK, rows)
    on = ", ".join(sorted({row["gpu"] for row in rows}))
    known = sum(row.get("algorithm_used", UNKNOWN) != UNKNOWN for row in rows)
    notes = [f"{count(len(rows), 'time')} on {on}", f"algorithm known of {count(known, 'time')}"]
    notes += delimited.account(counts)
    missing = counts[TAKEN] * len(columns.times) - len(rows)
    if missing:
        notes.append(f"left out: {count(missing, 'cell')} without a time")
    notes += written.notes()
    notes.append(f"flagged {FOREIGN}: measured by another program, not here")
    return path.name, tuple(notes)
