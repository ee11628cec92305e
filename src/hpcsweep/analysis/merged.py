"""Reads merged tables, and chooses rows by conditions.

A table that is not as `collect` writes it is refused, with the place. Conditions are joined by
commas: `algorithm=gemm,input_size>=128,batch_size=1..8`. All must hold, but of several values of
one column any: `gpu=v100,gpu=l40`. `unset` is an empty cell. Numbers are compared as numbers, times
by the calendar; a text has no order.
"""

from __future__ import annotations

import csv
import json
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from hpcsweep.catalog import short_table
from hpcsweep.catalog.columns import OWN, cell
from hpcsweep.errors import UsageError
from hpcsweep.store.state import PointStatus
from hpcsweep.text import number_in

KINDS: Final = short_table.kinds()
_NUMBERS: Final = {name for name, kind in KINDS.items() if kind in {"int", "float"}}
_TEXTS: Final = {name: str for name in KINDS if name not in _NUMBERS}
_SHOWN: Final = 40  # characters of a cell
_ROWS: Final = (
    20_000  # of a table that are parsed at a time, so that their text is not in memory at once
)
OVERALL: Final = "overall.csv"
DETAILS: Final = "details.csv"  # whose columns readers see in overall.csv
_NEEDED: Final = {  # what no report can do without
    DETAILS: ("point_id",),
    OVERALL: ("point_id", "status", "model", "algorithm", "input_size"),
    "layers.csv": ("point_id", "layer", "algorithm", "unique_key", "mean_ms"),
}


def read_table(
    path: Path,
    sweep: str,
    types: Mapping[str, Any] = _TEXTS,
    columns: Collection[str] | None = None,
) -> pd.DataFrame:
    """Return a merged table as text and numbers, or given types; `UsageError` if it is damaged.

    It has all columns that the reference names, first and in its order. With `columns` the others
    are left out, but for those that no report can do without.
    """
    if not path.exists():
        raise UsageError(f"{path}: not there yet; run `hpcsweep collect {sweep}` first")
    files = _files(path)
    tables = [_read(file, sweep, types, columns) for file in files]
    try:
        own = {name: kind for of in tables for name, kind in _of_commands(of) if name not in types}
    except (ValueError, AttributeError):
        raise _refused(f"{path}: {' or '.join(OWN)} is no JSON object", sweep) from None
    texts = {name: str for name, kind in own.items() if kind is str}
    if any(is_numeric_dtype(of[name]) for of in tables for name in texts if name in of):
        types = {**types, **texts}  # else 3.1 and 3.10 were one
        tables = [_read(file, sweep, types, columns) for file in files]
    for of in tables:  # pandas takes the loss nan for a text, and then all losses
        for name in [name for name, kind in own.items() if kind is float and name in of]:
            of[name] = pd.to_numeric(of[name], errors="coerce")
    if not all(of["point_id"].equals(tables[0]["point_id"]) for of in tables[1:]):
        raise _refused(f"{path.with_name(DETAILS)}: has other points than {path.name}", sweep)
    table = pd.concat(tables, axis=1) if len(tables) > 1 else tables[0]
    table = table.loc[:, ~table.columns.duplicated()]
    known = short_table.KNOWN.get(path.stem, ())
    names = [name for name in known if columns is None or name in columns]
    others = [name for name in table if name not in names]
    kinds = {name: types.get(name, float) for name in names if name not in table}
    empty = {
        # one NaN for all texts, as pandas reads them: so equal rows are equal
        name: pd.Series(np.nan, table.index, object) if kind is str
        else pd.Series(None, table.index, kind)
        for name, kind in kinds.items()
    }  # fmt: skip
    for name in others:
        # a command's own, with empty cells or not; conditions compare texts
        if any(table[name].dtype == kind for kind in (bool, object)):
            table[name] = table[name].map(lambda of: cell(of) if isinstance(of, bool) else of)
    whole: pd.DataFrame = pd.concat([table, pd.DataFrame(empty, table.index)], axis=1)
    return whole[[*names, *others]]


def _files(path: Path) -> list[Path]:
    """Return the files of a table: one, as earlier versions wrote all of them, or two."""
    details = path.with_name(DETAILS)
    return [path, details] if path.name == OVERALL and details.exists() else [path]


def _of_commands(table: pd.DataFrame) -> Iterator[tuple[str, type]]:
    """Yield the columns of a command in a table that hold texts, or numbers alone."""
    for column in OWN:
        values = defaultdict[str, list[Any]](list)
        for told in table[column].dropna().unique() if column in table else ():
            for name, value in json.loads(told).items():
                values[name].append(value)
        for name, every in values.items():
            texts = {value for value in every if isinstance(value, str)}
            numbers = {*map(number_in, texts)}
            if texts and (column == OWN[0] or None in numbers or len(numbers) < len(texts)):
                yield name, str
            elif {*map(type, every)} <= {int, float, str, type(None)}:
                yield name, float


def _read(
    path: Path, sweep: str, types: Mapping[str, Any], columns: Collection[str] | None
) -> pd.DataFrame:
    wanted = {*(columns or ()), *_NEEDED.get(path.name, ()), *OWN}
    kept = None if columns is None else wanted.__contains__
    table = pd.DataFrame()
    try:
        wrong = _wrong_header(path)
        if not wrong:
            with pd.read_csv(
                path, low_memory=False, keep_default_na=False, na_values=[""], dtype={**types},
                usecols=kept, chunksize=_ROWS,
            ) as parts:  # fmt: skip
                table = pd.concat(parts, ignore_index=True)
            wrong = _wrong(path, table)
    except (ValueError, OSError, csv.Error) as error:  # pandas' parser errors are ValueErrors
        wrong = f"{path}: {str(error).splitlines()[0]}"
    if wrong:
        raise _refused(wrong, sweep)
    return table


def header(path: Path) -> list[str]:
    """Return the columns of a table, as its readers see them."""
    there = chain.from_iterable(map(_header_of_file, filter(Path.exists, _files(path))))
    return short_table.every_column(path.stem, there)


def _header_of_file(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return next(csv.reader(file), [])


def _refused(wrong: str, sweep: str) -> UsageError:
    return UsageError(f"{wrong}; run `hpcsweep collect {sweep}` again")


def _wrong_header(path: Path) -> str:
    """Say what pandas would mend on its own: columns that are there twice, or are not named."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.reader(file)
        names = Counter(next(rows, []))
        if len(next(rows, [])) > sum(names.values()):
            return f"{path}: rows have more cells than the header"
    twice = next((name for name, times in names.items() if times > 1), None)
    return "" if twice is None else f"{path}: column '{twice:.40}' stands there twice"


def _wrong(path: Path, table: pd.DataFrame) -> str:
    """Say what of the rows `collect` would not have written."""
    if missing := [name for name in _NEEDED.get(path.name, ()) if name not in table]:
        return f"{path}: no column {', '.join(missing)}"
    odd = [(name, _no_numbers(table[name], KINDS[name]), f"{name} is '{{}}', and needs a number")
           for name in _NUMBERS.intersection(map(str, table))]  # fmt: skip
    if path.name == OVERALL:
        odd += [
            ("status", ~table["status"].isin([*PointStatus]), "no status '{}'"),
            ("point_id", table["point_id"].duplicated() & table["point_id"].notna(),
             "point {} stands there twice"),
        ]  # fmt: skip
    for name, rows, words in odd:
        for place in np.flatnonzero(rows)[:1]:
            return f"{path}:{place + 2}: {words.format(str(table[name][place])[:_SHOWN])}"
    return ""


def _no_numbers(cells: pd.Series[Any], kind: str) -> pd.Series[bool]:
    numbers = cells
    if not pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells):
        texts = cells.astype(str)
        numbers = pd.to_numeric(texts, errors="coerce")
        if kind == "float":  # a loss that diverged is measured
            numbers = numbers.mask(texts.str.lower() == "nan", 0.0)
    odd = cells.notna() & numbers.isna()
    return odd | np.isinf(numbers.astype(float)) if kind == "int" else odd


_PART: Final = re.compile(r"([^=<>!~]+)(==|[<>!]=|[=<>])([^=<>!].*)")
_ORDER: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_EQUAL: Final = {"=", "!="}
_UNSET: Final = "unset"
_VALUES_SHOWN: Final = 8  # values in a message


class Condition(NamedTuple):
    """What the cells of a column must be."""

    column: str
    sign: str  # =, !=, <, <=, >, >=
    value: str

    def __str__(self) -> str:
        return "".join(self)


def parse(text: str) -> list[Condition]:
    """Return the conditions of a text; `UsageError` names the part that is none, and what is."""
    conditions: list[Condition] = []
    for part in filter(None, map(str.strip, text.split(","))):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(_no_condition(part, conditions))
        column, sign, value = map(str.strip, match.groups())
        conditions.append(Condition(column, "=" if sign == "==" else sign, value))
    return conditions


def _no_condition(part: str, before: Sequence[Condition]) -> str:
    text = f"'{part}' is no column=value (several are joined by commas; also !=, <, <=, >, >= in"
    text += " quotes, for the shell, and column=low..high)"
    if before and not re.search("[=<>!]", part):
        last = before[-1].column
        return f"{text}; did you mean '{last}={before[-1].value},{last}={part}'?"
    return text


def select(rows: pd.DataFrame, conditions: Iterable[Condition]) -> pd.DataFrame:
    """Return the rows that meet the conditions; `UsageError` names the values that there are."""
    every = rows
    of_column = defaultdict[str, list[Condition]](list)
    for one in conditions:
        of_column[one.column].append(one)
    for own in of_column.values():
        for one in own:
            same = one._replace(sign="=")
            if one.sign in _EQUAL and ".." not in one.value and not _meets(every, same).any():
                raise UsageError(_nothing(every, [same]))
        either = [_meets(rows, one) for one in own if one.sign == "="]
        all_of = [_meets(rows, one) for one in own if one.sign != "="]
        kept = np.logical_and.reduce([np.logical_or.reduce(either), *all_of] if either else all_of)
        if not kept.any():
            raise UsageError(_nothing(rows, own))
        rows = rows[kept]
    return rows


def _meets(rows: pd.DataFrame, one: Condition) -> pd.Series[bool]:
    """Return which rows meet a condition; an empty cell is neither smaller nor larger."""
    cells = rows[one.column]
    is_time = KINDS.get(one.column) == "time"
    is_number = pd.api.types.is_numeric_dtype(cells)
    low, dots, high = one.value.partition("..")
    equal = one.sign in _EQUAL
    if equal and not (dots and (is_time or is_number)):
        wanted = pd.to_numeric(one.value, errors="coerce") if is_number else one.value
        met = cells.isna() if one.value == _UNSET else cells == wanted
    elif is_time or is_number:
        ordered = _times(cells) if is_time else cells
        ends = ((">=", low), ("<=", high)) if equal else ((one.sign, one.value),)
        bounds = [_times(end) if is_time else pd.to_numeric(end, "coerce") for _, end in ends]
        if any(map(pd.isna, bounds)):
            raise UsageError(f"'{one}': {one.column} needs a number, or a date, not '{one.value}'")
        met = np.logical_and.reduce([
            _ORDER[sign](ordered, bound) for (sign, _), bound in zip(ends, bounds, strict=True)
        ])  # fmt: skip
    else:
        text = f"{one.column} is a text, which has no order; = and != compare it"
        raise UsageError(f"'{one}': {text}")
    met = pd.Series(met, rows.index).fillna(value=False).astype(bool)
    return ~met if one.sign == "!=" else met


def _times(cells: Any) -> Any:  # noqa: ANN401 - a column, or a text
    return pd.to_datetime(cells, utc=True, format="ISO8601", errors="coerce")


def _nothing(rows: pd.DataFrame, conditions: Sequence[Condition]) -> str:
    name, _, text = conditions[0]
    cells = rows[name]
    values = sorted(cells.dropna().unique())
    there = [f"{value:.10g}" if isinstance(value, float) else str(value) for value in values]
    there += [_UNSET] if cells.isna().any() else []
    shown = ", ".join([*there[:_VALUES_SHOWN], *(["..."] if len(there) > _VALUES_SHOWN else [])])
    what = ", ".join(map(str, conditions))
    numbers = pd.api.types.is_numeric_dtype(cells)
    spread = re.fullmatch(r"(\d+)\s*[-:]\s*(\d+)", text) if numbers else None
    hint = f"; a range is {name}={spread[1]}..{spread[2]}" if spread else ""
    return f"no measured point has {what} ({name} is one of {shown}){hint}"
