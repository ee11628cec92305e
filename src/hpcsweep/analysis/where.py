"""Chooses rows by conditions, joined by commas: `algorithm=gemm,input_size>=128,batch_size=1..8`.

All conditions must hold, but of several values of one column any: `gpu=v100,gpu=l40`. `unset` is an
empty cell. Numbers are compared as numbers, times by the calendar; a text has no order.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pandas as pd

from hpcsweep.analysis.merged import KINDS
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_PART: Final = re.compile(r"([^=<>!~]+)(==|[<>!]=|[=<>])([^=<>!].*)")
_MEANT: Final = re.compile(r"([^=<>!~]+)(=>|=<|<>|=!|~=)(.+)")
_RIGHT: Final = {"=>": ">=", "=<": "<=", "<>": "!=", "=!": "!=", "~=": "="}
_ORDER: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_UNSET: Final = "unset"
_SHOWN: Final = 8  # values in a message


class Condition(NamedTuple):
    """What the cells of a column must be."""

    column: str
    sign: str  # =, !=, <, <=, >, >=
    value: str

    def __str__(self) -> str:
        return "".join(self)


def parse(text: str) -> list[Condition]:
    """Return the conditions of a text; `UsageError` names the part that is none, and what is."""
    found: list[Condition] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(_wrong(part, found))
        column, sign, value = (piece.strip() for piece in match.groups())
        found.append(Condition(column, "=" if sign == "==" else sign, value))
    return found


def _wrong(part: str, before: Sequence[Condition]) -> str:
    meant = _MEANT.fullmatch(part)
    if meant:
        column, sign, value = (piece.strip() for piece in meant.groups())
        return f"'{part}': did you mean '{column}{_RIGHT[sign]}{value}'?"
    told = f"'{part}' is no column=value (several are joined by commas; also !=, <, <=, >, >= in"
    told += " quotes, for the shell, and column=low..high)"
    if before and not re.search("[=<>!]", part):
        last = before[-1].column
        return f"{told}; did you mean '{last}={before[-1].value},{last}={part}'?"
    return told


def select(rows: pd.DataFrame, conditions: Iterable[Condition]) -> pd.DataFrame:
    """Return the rows that meet the conditions; `UsageError` names the values that there are."""
    every, columns = rows, dict[str, list[Condition]]()
    for one in conditions:
        columns.setdefault(one.column, []).append(one)
    for asked in columns.values():
        for one in asked:
            if one.sign in {"=", "!="} and ".." not in one.value and not _has(every, one).any():
                raise UsageError(_nothing(every, [one._replace(sign="=")]))
        either = [_meets(rows, one) for one in asked if one.sign == "="]
        kept = pd.Series(data=True, index=rows.index)
        if either:
            kept = pd.concat(either, axis=1).any(axis=1)
        for one in asked:
            kept &= one.sign == "=" or _meets(rows, one)
        if not kept.any():
            raise UsageError(_nothing(rows, asked))
        rows = rows[kept]
    return rows


def _meets(rows: pd.DataFrame, one: Condition) -> pd.Series[bool]:
    """Return which rows meet a condition; an empty cell is neither smaller nor larger."""
    low, dots, high = one.value.partition("..")
    if dots and one.sign in {"=", "!="} and _ordered(rows[one.column], one.column) is not None:
        ends = (one._replace(sign=">=", value=low), one._replace(sign="<=", value=high))
        return (_meets(rows, ends[0]) & _meets(rows, ends[1])) ^ (one.sign == "!=")
    if one.sign in {"=", "!="}:
        return _has(rows, one) ^ (one.sign == "!=")
    cells = _ordered(rows[one.column], one.column)
    if cells is None:
        raise UsageError(
            f"'{one}': {one.column} is a text, which has no order; = and != compare it"
        )
    bound = _value(one.column, one.value)
    if pd.isna(bound):
        raise UsageError(f"'{one}': {one.column} needs a number, or a date, not '{one.value}'")
    found: pd.Series[bool] = _ORDER[one.sign](cells, bound)
    return found.fillna(value=False).astype(bool)


def _has(rows: pd.DataFrame, one: Condition) -> pd.Series[bool]:
    """Return which rows have the value of a condition."""
    cells, wanted = rows[one.column], one.value
    if wanted == _UNSET:
        return cells.isna()
    if pd.api.types.is_numeric_dtype(cells):
        return (cells == _value("", wanted)).fillna(value=False).astype(bool)
    return (cells == wanted).fillna(value=False).astype(bool)


def _ordered(cells: pd.Series[Any], column: str) -> pd.Series[Any] | None:
    """Return cells that can be compared by size; None for texts."""
    if KINDS.get(column) == "time":
        return pd.to_datetime(cells, utc=True, format="ISO8601", errors="coerce")
    return cells if pd.api.types.is_numeric_dtype(cells) else None


def _value(column: str, text: str) -> Any:  # noqa: ANN401 - a number or a time
    if KINDS.get(column) == "time":
        return pd.to_datetime(text, utc=True, errors="coerce")
    return pd.to_numeric(text, errors="coerce")


def _nothing(rows: pd.DataFrame, asked: Sequence[Condition]) -> str:
    """Say that no row meets the conditions on a column, and what there is."""
    name, cells = asked[0].column, rows[asked[0].column]
    values = sorted(cells.dropna().unique())
    there = [f"{value:.10g}" if isinstance(value, float) else str(value) for value in values]
    there += [_UNSET] if cells.isna().any() else []
    told = ", ".join([*there[:_SHOWN], *(["..."] if len(there) > _SHOWN else [])])
    what = ", ".join(map(str, asked))
    numbers = pd.api.types.is_numeric_dtype(cells)
    spread = re.fullmatch(r"(\d+)\s*[-:]\s*(\d+)", asked[0].value) if numbers else None
    hint = f"; a range is {name}={spread[1]}..{spread[2]}" if spread else ""
    return f"no measured point has {what} ({name} is one of {told}){hint}"
