"""Reads the tables that `collect` merged, as text and numbers or with types; chooses no rows.

A table that is not as `collect` writes it is refused, with the place.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from hpcsweep import files
from hpcsweep.analysis import plain_rows
from hpcsweep.analysis.plain_rows import KINDS, NUMBERS, cells
from hpcsweep.catalog.columns import KNOWN, OWN, cell
from hpcsweep.store.folders import SweepDir

_TEXTS: Final = {name: str for name in KINDS if name not in NUMBERS}
# pandas' own types, which know an empty cell; a time is read as text first
_TYPES: Final = {"int": "Int64", "float": "float64", "bool": "boolean"}
# of a table that are parsed at a time, so that the text of all is not in memory at once; larger
# parts take more memory, smaller ones more calls of pandas
_ROWS: Final = 20_000


def read_table(
    path: Path,
    sweep: str,
    types: Mapping[str, Any] = _TEXTS,
    columns: Collection[str] | None = None,
    points: Collection[str] | None = None,
) -> pd.DataFrame:
    """Return a merged table as text and numbers, or given types; `UsageError` if it is damaged.

    It has all columns that the reference names, first and in its order. With `columns` the others
    are left out, but for those that no report can do without; with `points` the rows of others.
    """
    plain_rows.check_there(path, sweep)
    parts = [_read(file, sweep, types, columns, points) for file in plain_rows.files_of(path)]
    try:
        own = _own_columns(parts, types)
    except (ValueError, AttributeError):
        raise plain_rows.refused(plain_rows.no_object(path), sweep) from None
    texts = {name: str for name, kind in own.items() if kind is str}
    if _any_numeric(parts, texts):
        types = {**types, **texts}  # else 3.1 and 3.10 were one
        parts = [_read(file, sweep, types, columns, points) for file in plain_rows.files_of(path)]
    for part in parts:  # pandas takes the loss nan for a text, and then all losses
        for name, kind in own.items():
            if kind is float and name in part:
                part[name] = pd.to_numeric(part[name], errors="coerce")
    for part in parts[1:]:
        if not part["point_id"].equals(parts[0]["point_id"]):
            raise plain_rows.refused(plain_rows.other_points(path), sweep)
    table = pd.concat(parts, axis=1) if len(parts) > 1 else parts[0]
    table = table.loc[:, ~table.columns.duplicated()]
    known = KNOWN.get(path.stem, ())
    if columns is not None:
        known = tuple(name for name in known if name in columns)
    return _completed(table, known, types)


def _any_numeric(parts: Sequence[pd.DataFrame], names: Collection[str]) -> bool:
    return any(is_numeric_dtype(part[name]) for part in parts for name in names if name in part)


def _completed(table: pd.DataFrame, known: Sequence[str], types: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table with the known columns first, empty ones too, then a command's own."""
    empty: dict[str, pd.Series[Any]] = {}
    for name in known:
        kind = types.get(name, float)
        if name not in table and kind is str:
            # one NaN for all texts, as pandas reads them: so equal rows are equal
            empty[name] = pd.Series(np.nan, table.index, object)
        elif name not in table:
            empty[name] = pd.Series(None, table.index, kind)
    others = [name for name in map(str, table) if name not in known]
    for name in others:
        # a command's own, with empty cells or not; conditions compare texts
        if table[name].dtype in (bool, object):
            table[name] = table[name].map(_word)
    whole: pd.DataFrame = pd.concat([table, pd.DataFrame(empty, table.index)], axis=1)
    return whole[[*known, *others]]


def _word(value: object) -> object:
    return cell(value) if isinstance(value, bool) else value


def _own_columns(parts: Sequence[pd.DataFrame], types: Mapping[str, Any]) -> dict[str, type]:
    """Return the columns of a command, but those with types, that hold texts or numbers alone."""
    kinds: dict[str, type] = {}
    for part in parts:
        said = {name: cells(part, name, None).dropna() for name in OWN}
        kinds.update(plain_rows.own_columns(said))
    return {name: kind for name, kind in kinds.items() if name not in types}


def _read(
    path: Path,
    sweep: str,
    types: Mapping[str, Any],
    columns: Collection[str] | None,
    points: Collection[str] | None,
) -> pd.DataFrame:
    wanted = {*(columns or ()), *plain_rows.NEEDED.get(path.name, ()), *OWN}
    kept = None if columns is None else wanted.__contains__
    table = pd.DataFrame()
    try:
        wrong = plain_rows.wrong_header(path)
        if not wrong:
            with pd.read_csv(
                path, low_memory=False, keep_default_na=False, na_values=[""], dtype={**types},
                usecols=kept, chunksize=_ROWS,
            ) as parts:  # fmt: skip
                # the index counts the lines of the file
                table = pd.concat([_of_points(part, points) for part in parts])
            wrong = _wrong(path, table)
    except (ValueError, OSError, csv.Error) as error:  # pandas' parser errors are ValueErrors
        wrong = f"{path}: {str(error).splitlines()[0]}"
    if wrong:
        raise plain_rows.refused(wrong, sweep)
    return table.reset_index(drop=True)


def _of_points(rows: pd.DataFrame, points: Collection[str] | None) -> pd.DataFrame:
    if points is None or "point_id" not in rows:
        return rows
    return rows[rows["point_id"].isin(points)]


def _wrong(path: Path, table: pd.DataFrame) -> str:
    """Say what of the rows `collect` would not have written."""
    wrong = plain_rows.lacking(path, table)
    for name in NUMBERS.intersection(map(str, table)):
        places = np.flatnonzero(_no_numbers(table[name], KINDS[name]))
        if len(places) and not wrong:
            first = places[0]
            line = int(table.index[first])
            wrong = plain_rows.no_number(path, name, line, table[name].iloc[first])
    return wrong or plain_rows.wrong_point(path, table)


def _no_numbers(column: pd.Series[Any], kind: str) -> pd.Series[bool]:
    numbers = column
    if not is_numeric_dtype(column) or is_bool_dtype(column):
        texts = column.astype(str)
        numbers = pd.to_numeric(texts, errors="coerce")
        if kind == "float":  # a loss that diverged is measured
            numbers = numbers.mask(texts.str.lower() == "nan", 0.0)
    odd = column.notna() & numbers.isna()
    return odd | np.isinf(numbers.astype(float)) if kind == "int" else odd


def typed(path: Path, sweep: str) -> pd.DataFrame:
    """Return a merged table with the catalogue's types; `UsageError` if it has none, or others."""
    types = {name: _TYPES.get(kind, "string") for name, kind in KINDS.items()}
    table = read_table(path, sweep, types)
    for name in map(str, table):
        if KINDS.get(name) == "time":
            table[name] = pd.to_datetime(table[name], utc=True, format="ISO8601")
        elif KINDS.get(name) == "list":
            table[name] = table[name].astype(object).map(json.loads, na_action="ignore")
        elif name not in KINDS:
            table[name] = _typed_own(table[name])
    return table


def _typed_own(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of a command with the type that its cells have."""
    words = {"true": True, "false": False}
    is_word = column.dropna().isin(words)
    own = column.map(words) if len(is_word) and is_word.all() else column
    better = own.convert_dtypes()
    return own if better.dtype == "Float64" else better


def write_parquet(sweep_dir: SweepDir) -> list[Path]:
    """Write each merged table also as Parquet, with types and far smaller; return the paths.

    Cells have seven significant digits, so numbers are float32: doubles would add random bits that
    do not compress.
    """
    import pyarrow as pa  # noqa: PLC0415 - optional
    from pyarrow import parquet  # noqa: PLC0415

    written = []
    for table in (sweep_dir.overall, sweep_dir.layers, sweep_dir.samples):
        if not table.exists():
            continue
        rows = typed(table, sweep_dir.name)
        times = [*rows.select_dtypes("float")]
        # the digits of times are random: their bytes compress by place, other cells by repetition
        others = [*rows.columns.difference(times)]
        path = table.with_suffix(".parquet")
        columns = pa.Table.from_pandas(rows.astype(dict.fromkeys(times, "float32")))
        with files.replacing(path) as file:
            # zstd 15: beyond it the size stays, and the time grows
            parquet.write_table(
                columns.replace_schema_metadata(), file, compression="zstd", compression_level=15,
                store_schema=False, use_dictionary=others, use_byte_stream_split=times,
            )  # fmt: skip
        written.append(path)
    return written
