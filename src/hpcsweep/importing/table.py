"""Imports anybody's table of convolutions: a CSV or Parquet file, and a map of its columns.

The map says which column has what, by the names that hpcsweep has for it; some maps are shipped. A
point holds the convolutions of one device, type, batch size and algorithm. How the times were taken
is not known, so the flag `foreign` puts all rows in doubt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpcsweep import extras
from hpcsweep.catalog import ALGORITHMS, AUTO, gpus
from hpcsweep.catalog.columns import FOREIGN, Row
from hpcsweep.conv.proof.kernels import UNKNOWN, recognise
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.importing import delimited, submission
from hpcsweep.importing.delimited import TAKEN
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
_DTYPES: Final = {
    "float16": "float16", "fp16": "float16", "f16": "float16", "half": "float16",
    "float32": "float32", "fp32": "float32", "f32": "float32", "float": "float32",
    "single": "float32",
    "float64": "float64", "fp64": "float64", "f64": "float64", "double": "float64",
    "bfloat16": "bfloat16", "bf16": "bfloat16", "bfp16": "bfloat16",
    "int8": "int8", "i8": "int8",
}  # fmt: skip
_KERNELS: Final = re.compile(r";\s*(?=\S)")
_WAYS: Final = ("forward", "backward_data", "backward_weights")
_DIRECTIONS: Final = (*_WAYS, "backward")
_NO_TIME: Final = "without a time"
_NO_SHAPE: Final = "without a shape"
_MOST_CELLS: Final = 20_000_000  # of a Parquet file, in which a billion equal ones take no room


class TimeColumn(NamedTuple):
    """A column of times; what is empty is told by another column."""

    name: str
    direction: str = ""
    algorithm: str = ""


@dataclass(frozen=True)
class Columns:
    """Which column has what; `words` are values of ours by a part of the table's own."""

    times: Sequence[TimeColumn]
    names: Mapping[str, str]
    words: Mapping[str, Mapping[str, str]]
    unit: str = "ms"
    decimal: str = ""  # what begins the fraction, where no cell tells it


def shipped() -> list[str]:
    """Return the names of the maps that come with hpcsweep."""
    return sorted(path.stem for path in _MAPS.glob("*.yaml"))


def _map_path(name: str) -> Path:
    if name in shipped():
        return _MAPS / f"{name}.yaml"
    path = Path(name)
    if not path.is_file():
        known = ", ".join(shipped())
        raise UsageError(f"--columns {name}: no such file, nor one of the maps {known}")
    return path


def read_columns(name: str) -> Columns:
    """Return a shipped map, or that of a file; `UsageError` says what is wrong with it."""
    doc = read_document(_map_path(name), UsageError)
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
    times = list(_times(wrong, names.pop("time", ""), TimeColumn("")))
    for time in times:
        if (says := _unit_in(time.name)) not in {None, unit}:
            wrong.add(("unit",), f"is {unit}, and the name of the column '{time.name}' says {says}")
    _check_values(wrong, names, words)
    wrong.tell()
    return Columns(times, names, words, unit, decimal)


def _times(wrong: Complaints, value: object, known: TimeColumn) -> Iterator[TimeColumn]:
    """Yield the columns of times: one, or one for each direction, algorithm, or both."""
    if isinstance(value, str):
        yield known._replace(name=value)
        return
    if not isinstance(value, dict):
        wrong.add(("columns", "time"), "needs the name of a column")
        return
    for key, column in value.items():
        named = submission.as_algorithm(str(key))
        if key in _WAYS:
            yield from _times(wrong, column, known._replace(direction=key))
        elif named in ALGORITHMS and named != AUTO:
            yield from _times(wrong, column, known._replace(algorithm=named))
        else:
            every = ", ".join((*_WAYS, *(ALGORITHMS.keys() - {AUTO})))
            wrong.add(("columns", "time", key), f"needs one of {every}")


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


def _check_values(wrong: Complaints, names: Mapping[str, Any], words: Mapping[str, Any]) -> None:
    for key, column in names.items():
        if not isinstance(column, str):
            wrong.add(("columns", key), "needs the name of a column")
    for key, of_key in words.items():
        if not isinstance(of_key, dict):
            wrong.add(("words", key), "needs `part of a cell: value` lines")


def _mapping(doc: Document, wrong: Complaints, key: str) -> dict[str, Any]:
    value = doc.data.get(key, {})
    if not isinstance(value, dict):
        wrong.add((key,), "needs `key: value` lines")
    return dict(value) if isinstance(value, dict) else {}


def read_rows(path: Path, columns: Columns, device: str, counts: Counter[str]) -> Iterator[Row]:
    """Yield the cells of each time of a convolution; a row of the table may have several times.

    `counts` has the rows of the table: those `TAKEN`, and those left out by their reason.

    `UsageError` where a column is not there or nothing tells the device, `ResultsError` where the
    file cannot be read.
    """
    named = device or gpus.by_file_name(path.name) or ""
    for row in _raw(path, columns, counts):
        given = {name: row[column] for name, column in columns.names.items()}
        cells = {name: "" if value is None else str(value) for name, value in given.items()}
        for name, words in columns.words.items():
            cells[name] = _translated(name, cells.get(name, ""), words)
        gpu = device or cells.get("gpu") or named
        if not gpu:
            raise UsageError(f"{path}: nothing tells the device; --device does, such as v100")
        shape = _shape(cells)
        if shape is None:
            counts[_NO_SHAPE] += 1
            continue
        has_time = False
        for time in columns.times:
            ms = submission.milliseconds(row[time.name], _UNITS[columns.unit])
            if ms:
                has_time = True
                yield {
                    **submission.work_cells(shape), "gpu": _gpu(gpu),
                    "direction": time.direction or _direction(path, cells),
                    **dict.fromkeys(("mean_ms", "median_ms"), ms),
                    **_algorithm(cells, time),
                }  # fmt: skip
        counts[TAKEN if has_time else _NO_TIME] += 1


def _translated(name: str, own: str, words: Mapping[str, str]) -> str:
    """Return a cell in our words; a part of a type is none: float is in bfloat16, too."""
    if own in words:
        return words[own]
    if name == "dtype" and own.strip().lower() in _DTYPES:
        return own
    return next((ours for word, ours in words.items() if str(word) in own), own)


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
    numbers = {
        **dict.fromkeys(sizes, WHOLE),
        **dict.fromkeys((time.name for time in columns.times), ANY),
    }
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
    needed = (*(time.name for time in columns.times), *columns.names.values())
    if lacking := next((name for name in needed if name not in have), None):
        raise UsageError(f"{path}: has no column '{lacking}'{suggest(lacking, have)}")
    delimited.check_once(path, have, needed)


def _shape(cells: Mapping[str, str]) -> ConvShape | None:
    """Return the shape of a row; None where a size is missing, or sizes do not agree."""
    sizes = {ours: _size(cells.get(name)) for name, ours in _SIZES.items()}
    sizes["groups"] = _size(cells.get("groups", "1"))
    for whole, (down, across, missing) in _PAIRS.items():
        both = submission.sides(cells.get(whole) or ("" if missing is None else str(missing)))
        for side, name in enumerate((down, across)):
            own = cells.get(name)
            if own:
                sizes[name] = _size(own)
            else:
                sizes[name] = both[side] if both else None
    known = {name: size for name, size in sizes.items() if size is not None}
    dtype = _DTYPES.get((cells.get("dtype") or "float32").strip().lower())
    if len(known) < len(sizes) or dtype is None:
        return None
    shape = ConvShape(**known, dtype=dtype)  # type: ignore[arg-type]
    return shape if submission.agrees(shape) else None


def _size(text: str | None) -> int | None:
    number = submission.number(text)
    return int(number) if number is not None and number == int(number) else None


def _gpu(text: str) -> str:
    entry = gpus.sheet(text)
    return (entry.short or gpus.as_value(entry.name)) if entry else gpus.as_value(text)


def _algorithm(cells: Mapping[str, str], time: TimeColumn) -> Row:
    """Return what ran, as the table says or its kernels tell: those of the output, of a row."""
    if time.algorithm:
        return {"algorithm_used": time.algorithm, "algorithm_evidence": "the table says so"}
    if time.direction not in {"", "forward"}:
        return {}
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
    counts = Counter[str]()
    used = Counter[str]()
    on = set[str]()

    def rows() -> Iterator[Row]:
        for row in read_rows(path, columns, device, counts):
            used[row.get("algorithm_used", "")] += 1
            on.add(row["gpu"])
            yield {"algorithm": AUTO, **row}
        delimited.check_taken(path, counts)

    written = submission.write_foreign(sweep_dir, path, NETWORK, rows())
    told = f"{count(written.calls, 'time')} on {', '.join(sorted(on))}"
    missing = counts[TAKEN] * len(columns.times) - written.calls
    empty = [f"left out: {count(missing, 'cell')} without a time"] if missing else []
    known = written.calls - used[UNKNOWN] - used[""]
    return path.name, (
        told, f"algorithm known of {count(known, 'time')}", *delimited.account(counts),
        *empty, *written.notes(), f"flagged {FOREIGN}: measured by another program, not here",
    )  # fmt: skip
