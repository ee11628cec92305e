"""Chooses rows of a table by the conditions of `--where`, and of sides and baselines.

Conditions are joined by commas: `algorithm=gemm,input_size>=128,batch_size=1..8`. All must hold,
but of several values of one column any: `gpu=v100,gpu=l40`. `unset` is an empty cell. Numbers are
compared as numbers, times by the calendar; a text has no order.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import pandas as pd
from pandas.api.types import is_numeric_dtype

from hpcsweep.analysis.merged import KINDS
from hpcsweep.errors import UsageError

_PART: Final = re.compile(r"([^=<>!~]+)(==|[<>!]=|[=<>])([^=<>!].*)")
_ORDER: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_EQUAL: Final = {"=", "!="}
_UNSET: Final = "unset"
_VALUES_SHOWN: Final = 8  # in a message, which is to stay two lines


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
    by_column = defaultdict[str, list[Condition]](list)
    for condition in conditions:
        by_column[condition.column].append(condition)
    for own in by_column.values():
        for condition in own:
            _refuse_unknown(every, condition)
        met = _meets_all(rows, own)
        if not met.any():
            raise UsageError(_nothing(rows, own))
        rows = rows[met]
    return rows


def _refuse_unknown(rows: pd.DataFrame, condition: Condition) -> None:
    """Refuse a single value that no row has: it is a slip of the pen, also behind `!=`."""
    same = condition._replace(sign="=")
    is_value = condition.sign in _EQUAL and ".." not in condition.value
    if is_value and not _meets(rows, same).any():
        raise UsageError(_nothing(rows, [same]))


def _meets_all(rows: pd.DataFrame, conditions: Sequence[Condition]) -> pd.Series[bool]:
    """Return which rows meet the conditions of one column: any `=`, and all others."""
    met = pd.Series(data=True, index=rows.index)
    is_either = pd.Series(data=False, index=rows.index)
    for condition in conditions:
        meets = _meets(rows, condition)
        if condition.sign == "=":
            is_either |= meets
        else:
            met &= meets
    has_either = any(condition.sign == "=" for condition in conditions)
    return met & is_either if has_either else met


def _meets(rows: pd.DataFrame, condition: Condition) -> pd.Series[bool]:
    """Return which rows meet a condition; an empty cell is neither smaller nor larger."""
    column, sign, value = condition
    cells = rows[column]
    is_time = KINDS.get(column) == "time"
    has_order = is_time or is_numeric_dtype(cells)
    low, dots, high = value.partition("..")
    if sign not in _EQUAL and not has_order:
        text = f"{column} is a text, which has no order; = and != compare it"
        raise UsageError(f"'{condition}': {text}")
    if sign not in _EQUAL:
        met = _beyond(cells, sign, value, condition)
    elif dots and has_order:
        met = _beyond(cells, ">=", low, condition) & _beyond(cells, "<=", high, condition)
    elif value == _UNSET:
        met = cells.isna()
    else:
        met = cells == (_number(value) if is_numeric_dtype(cells) else value)
    met = met.fillna(value=False).astype(bool)
    return ~met if sign == "!=" else met


def _beyond(cells: pd.Series[Any], sign: str, end: str, condition: Condition) -> pd.Series[bool]:
    is_time = KINDS.get(condition.column) == "time"
    bound = _times(end) if is_time else _number(end)
    if pd.isna(bound):
        needs = f"{condition.column} needs a number, or a date, not '{condition.value}'"
        raise UsageError(f"'{condition}': {needs}")
    met: pd.Series[bool] = _ORDER[sign](_times(cells) if is_time else cells, bound)
    return met


def _number(text: str) -> Any:  # noqa: ANN401 - NaN for what is none
    return pd.to_numeric(text, errors="coerce")


def _times(cells: Any) -> Any:  # noqa: ANN401 - a column, or a text
    return pd.to_datetime(cells, utc=True, format="ISO8601", errors="coerce")


def _nothing(rows: pd.DataFrame, conditions: Sequence[Condition]) -> str:
    name, _, text = conditions[0]
    cells = rows[name]
    known = sorted(cells.dropna().unique())
    values = [f"{value:.10g}" if isinstance(value, float) else str(value) for value in known]
    if cells.isna().any():
        values.append(_UNSET)
    shown = ", ".join(values[:_VALUES_SHOWN])
    if len(values) > _VALUES_SHOWN:
        shown += ", ..."
    hint = ""
    spread = re.fullmatch(r"(\d+)\s*[-:]\s*(\d+)", text)
    if spread and is_numeric_dtype(cells):
        hint = f"; a range is {name}={spread[1]}..{spread[2]}"
    what = ", ".join(map(str, conditions))
    return f"no measured point has {what} ({name} is one of {shown}){hint}"
