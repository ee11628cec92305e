"""Imports anybody's table of convolutions: a CSV or Parquet file, and a map of its columns.

The map says which column has what, by the names that hpcsweep has for it; some maps are shipped. A
point holds the convolutions of one device, type, batch size and algorithm. How the times were taken
is not known, so the flag `foreign` puts all rows in doubt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hpcsweep import extras
from hpcsweep.catalog import ALGORITHMS, AUTO, gpus
from hpcsweep.catalog.columns import FOREIGN, Row
from hpcsweep.conv.proof.kernels import UNKNOWN, recognise
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.importing import delimited, submission
from hpcsweep.importing.finddb import DIRECTIONS
from hpcsweep.numerals import ANY, WHOLE
from hpcsweep.spec.document import Complaints, Document, read_document
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

NETWORK: Final = "table"  # in place of a network: whose the convolutions are is not known
_MAPS: Final = Path(__file__).with_name("maps")
_UNITS: Final = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
# time_us, time(usec), Time [ms], "time in ns", not a word that ends so
_UNIT: Final = re.compile(r"(?:^|[\W_])([munµμ]?)s(?:ec(?:onds?)?)?\W*$", re.IGNORECASE)
_MAP_KEYS: Final = ("columns", "unit", "words", "decimal")
_SIZES: Final = {"batch_size": "n", "in_channels": "in_c", "out_channels": "out_c"}
# two sizes that one column may have; without a column they have this value
_PAIRS: Final = {
    "input_size": ("in_h", "in_w", None), "kernel_size": ("kernel_h", "kernel_w", None),
    "stride": ("stride_h", "stride_w", 1), "padding": ("pad_h", "pad_w", 0),
    "dilation": ("dilation_h", "dilation_w", 1),
}  # fmt: skip
_TEXTS: Final = ("time", "gpu", "dtype", "direction", "algorithm", "kernels")
_KEYS: Final = (
    *_TEXTS, *_SIZES, "groups", *_PAIRS, *(name for pair in _PAIRS.values() for name in pair[:2]),
)  # fmt: skip
_NEEDED: Final = ("time", *_SIZES)
_DTYPES: Final = ("float16", "float32", "float64", "bfloat16")
_KERNELS: Final = re.compile(r";\s*(?=\S)")
_DIRECTIONS: Final = (*DIRECTIONS.values(), "backward")
_NO_TIME: Final = "without a time"
_NO_SHAPE: Final = "without a shape"
_MOST_CELLS: Final = 20_000_000  # of a Parquet file, in which a billion equal ones take no room


@dataclass(frozen=True)
class Columns:
    """Which column has what; `words` are values of ours by a part of the table's own."""

    times: Mapping[str, str]  # by direction; by "" where a column says it, or all are forward
    names: Mapping[str, str]
    words: Mapping[str, Mapping[str, str]]
    unit: str = "ms"
    decimal: str = ""  # what begins the fraction, where no cell tells it


def shipped() -> list[str]:
    """Return the names of the maps that come with hpcsweep."""
    return sorted(path.stem for path in _MAPS.glob("*.yaml"))


def read_columns(name: str) -> Columns:
    """Return a shipped map, or that of a file; `UsageError` says what is wrong with it."""
    path = _MAPS / f"{name}.yaml"
    if name not in shipped():
        path = Path(name)
        if not path.is_file():
            known = ", ".join(shipped())
            raise UsageError(f"--columns {name}: no such file, nor one of the maps {known}")
    doc = read_document(path, UsageError)
    wrong = Complaints(doc)
    for key in doc.data.keys() - {*_MAP_KEYS}:
        wrong.add((key,), f"unknown key{suggest(key, _MAP_KEYS)}")
    names = _mapping(doc, wrong, "columns")
    words = _mapping(doc, wrong, "words")
    unit = doc.data.get("unit", "ms")
    if unit not in _UNITS:
        wrong.add(("unit",), f"needs one of {', '.join(_UNITS)}")
    decimal = doc.data.get("decimal", "")
    if decimal not in {"", ".", ","}:
        wrong.add(("decimal",), "needs '.' or ','")
    _check_names(wrong, names)
    times = names.pop("time", "")
    times = times if isinstance(times, dict) else {"": times}
    for key in times.keys() - {"", *DIRECTIONS.values()}:
        wrong.add(("columns", "time", key), f"needs one of {', '.join(DIRECTIONS.values())}")
    for key, column in (*(("time", column) for column in times.values()), *names.items()):
        if not isinstance(column, str):
            wrong.add(("columns", key), "needs the name of a column")
        elif key == "time" and (says := _unit_in(column)) not in {None, unit}:
            wrong.add(("unit",), f"is {unit}, and the name of the column '{column}' says {says}")
    wrong.tell()
    return Columns(times, names, words, unit, decimal)


def _unit_in(column: str) -> str | None:
    """Return the unit of time that a column's name ends with; None where it says none."""
    match = _UNIT.search(column)
    return match and f"{match[1].replace('µ', 'u').replace('μ', 'u')}s"


def _check_names(wrong: Complaints, names: Mapping[str, Any]) -> None:
    for key in names.keys() - {*_KEYS}:
        wrong.add(("columns", key), f"unknown name{suggest(key, _KEYS)}")
    if lacking := [key for key in _NEEDED if key not in names]:
        wrong.add(("columns",), f"needs {', '.join(lacking)}")
    for whole, (*pair, missing) in _PAIRS.items():
        if missing is None and whole not in names and not names.keys() >= {*pair}:
            wrong.add(("columns",), f"needs {whole}, or {' and '.join(pair)}")


def _mapping(doc: Document, wrong: Complaints, key: str) -> dict[str, Any]:
    value = doc.data.get(key, {})
    if not isinstance(value, dict):
        wrong.add((key,), "needs `key: value` lines")
    return dict(value) if isinstance(value, dict) else {}


def read_rows(path: Path, columns: Columns, device: str, left: Counter[str]) -> Iterator[list[Row]]:
    """Yield what each row has times of; `left` counts the rows left out, by their reason.

    `UsageError` where a column is not there or nothing tells the device, `ResultsError` where the
    file cannot be read.
    """
    named = device or gpus.by_file_name(path.name) or ""
    for row in _raw(path, columns, left):
        given = {name: row[column] for name, column in columns.names.items()}
        cells = {name: "" if value is None else str(value) for name, value in given.items()}
        for name, words in columns.words.items():
            own = cells.get(name, "")
            cells[name] = next((ours for word, ours in words.items() if word in own), own)
        gpu = device or cells.get("gpu") or named
        if not gpu:
            raise UsageError(f"{path}: nothing tells the device; --device does, such as v100")
        shape = _shape(cells)
        if shape is None:
            left[_NO_SHAPE] += 1
            continue
        times: list[Row] = []
        for direction, column in columns.times.items():
            ms = submission.milliseconds(row[column], _UNITS[columns.unit])
            if ms:
                times.append({
                    **submission.work_cells(shape), "gpu": _gpu(gpu),
                    "direction": direction or _direction(path, cells),
                    **dict.fromkeys(("mean_ms", "median_ms"), ms),
                    **(_algorithm(cells) if direction in {"", "forward"} else {}),
                })  # fmt: skip
        if times:
            yield times
        else:
            left[_NO_TIME] += 1


def _direction(path: Path, cells: Mapping[str, str]) -> str:
    given = cells.get("direction") or "forward"
    if given not in _DIRECTIONS:
        known = ", ".join(_DIRECTIONS)
        raise UsageError(f"{path}: direction '{given}': `words` makes it one of {known}")
    return given


def _raw(path: Path, columns: Columns, left: Counter[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file by their columns; numbers as Python reads them."""
    if path.suffix == ".parquet":
        yield from _of_parquet(path, columns)
        return
    with delimited.opened(path) as opened:
        _check_columns(path, columns, opened.names)
    sizes = [column for name, column in columns.names.items() if name not in _TEXTS]
    numbers = {**dict.fromkeys(sizes, WHOLE), **dict.fromkeys(columns.times.values(), ANY)}
    how = "`decimal: ','` or `decimal: '.'` in the map does"
    yield from delimited.rows(path, numbers, how, left, told=columns.decimal)


def _of_parquet(path: Path, columns: Columns) -> Iterator[Mapping[str, Any]]:
    extras.need("parquet", str(path))
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    try:
        about = parquet.read_metadata(path)
        if about.num_rows * about.num_columns > _MOST_CELLS:
            text = f"more than {_MOST_CELLS:,} cells; import it in parts"
            raise ValueError(text)  # noqa: TRY301 - one message for all that is wrong with it
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read ({error})") from error
    _check_columns(path, columns, table.column_names)
    yield from table.to_pylist()


def _check_columns(path: Path, columns: Columns, have: Collection[str]) -> None:
    needed = (*columns.times.values(), *columns.names.values())
    if lacking := next((name for name in needed if name not in have), None):
        raise UsageError(f"{path}: has no column '{lacking}'{suggest(lacking, have)}")
    delimited.check_once(path, have, needed)


def _shape(cells: Mapping[str, str]) -> ConvShape | None:
    """Return the shape of a row; None where a size is missing, or sizes do not agree."""
    sizes = {ours: _size(cells.get(name)) for name, ours in _SIZES.items()}
    sizes["groups"] = _size(cells.get("groups", "1"))
    for whole, (down, across, missing) in _PAIRS.items():
        both = cells.get(whole, "" if missing is None else str(missing))
        sizes[down] = _size(cells.get(down, both))
        sizes[across] = _size(cells.get(across, both))
    known = {name: size for name, size in sizes.items() if size is not None}
    dtype = cells.get("dtype") or "float32"
    if len(known) < len(sizes) or dtype not in _DTYPES:
        return None
    shape = ConvShape(**known, dtype=dtype)  # type: ignore[arg-type]
    return shape if submission.agrees(shape) else None


def _size(text: str | None) -> int | None:
    number = submission.number(text)
    return int(number) if number is not None and number == int(number) else None


def _gpu(text: str) -> str:
    entry = gpus.sheet(text)
    return (entry.short or gpus.as_value(entry.name)) if entry else gpus.as_value(text)


def _algorithm(cells: Mapping[str, str]) -> Row:
    """Return what ran, as the table says or its kernels tell."""
    named = submission.as_algorithm(cells.get("algorithm", ""))
    if named in ALGORITHMS and named != AUTO:
        return {"algorithm_used": named, "algorithm_evidence": "the table says so"}
    kernels = [name for name in _KERNELS.split(cells.get("kernels", "").strip(";")) if name]
    used = recognise(kernels).name if kernels else UNKNOWN
    return {"algorithm_used": used, "algorithm_evidence": f"{count(len(kernels), 'kernel name')}"}


def bring(
    path: Path, sweep_dir: SweepDir, device: str, columns: Columns
) -> tuple[str, tuple[str, ...]]:
    """Write the rows of a table as a submission; return its source and what was left out."""
    left = Counter[str]()
    used = Counter[str]()
    on = set[str]()
    taken = 0

    def rows() -> Iterator[Row]:
        nonlocal taken
        for times in read_rows(path, columns, device, left):
            taken += 1
            for row in times:
                used[row.get("algorithm_used", "")] += 1
                on.add(row["gpu"])
                yield {"algorithm": AUTO, **row}
        if not taken:
            raise ResultsError(f"{path}: {'; '.join(delimited.account(taken, left))}")

    written = submission.write_foreign(sweep_dir, path.name, NETWORK, rows())
    told = f"{count(written.calls, 'time')} on {', '.join(sorted(on))}"
    missing = taken * len(columns.times) - written.calls
    empty = [f"left out: {count(missing, 'cell')} without a time"] if missing else []
    known = written.calls - used[UNKNOWN] - used[""]
    return path.name, (
        told, f"algorithm known of {count(known, 'time')}", *delimited.account(taken, left),
        *empty, *written.notes(), f"flagged {FOREIGN}: measured by another program, not here",
    )  # fmt: skip
