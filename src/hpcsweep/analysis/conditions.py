"""Chooses rows of a table by the conditions of `--where`, and of sides and baselines.

Conditions are joined by commas: `algorithm=gemm,input_size>=128,batch_size=1..8`. All must hold,
but of several values of one column any: `gpu=v100,gpu=l40`. `unset` is an empty cell. Numbers are
compared as numbers, times by the calendar; a text has no order.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpcsweep.analysis.plain_rows import KINDS, Rows, Table, is_empty, is_quantity
from hpcsweep.errors import UsageError
from hpcsweep.text import number_in

if TYPE_CHECKING:
    import pandas as pd

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


def select(rows: Table, conditions: Iterable[Condition]) -> Table:
    """Return the rows that meet the conditions; `UsageError` names the values that there are."""
    every = rows
    by_column = defaultdict[str, list[Condition]](list)
    for condition in conditions:
        by_column[condition.column].append(condition)
    for own in by_column.values():
        for condition in own:
            _refuse_unknown(every, condition)
        met = _meets_all(rows, own)
        if not any(met):
            raise UsageError(_nothing(rows, own))
        rows = rows[met]
    return rows


def _refuse_unknown(rows: Rows | pd.DataFrame, condition: Condition) -> None:
    """Refuse a single value that no row has: it is a slip of the pen, also behind `!=`."""
    same = condition._replace(sign="=")
    is_value = condition.sign in _EQUAL and ".." not in condition.value
    if is_value and not any(_meets(rows, same)):
        raise UsageError(_nothing(rows, [same]))


def _meets_all(rows: Rows | pd.DataFrame, conditions: Sequence[Condition]) -> list[bool]:
    """Return which rows meet the conditions of one column: any `=`, and all others."""
    either = [_meets(rows, condition) for condition in conditions if condition.sign == "="]
    others = [_meets(rows, condition) for condition in conditions if condition.sign != "="]
    met = [True] * len(rows)
    if either:
        met = [*map(any, zip(*either, strict=True))]
    for each in others:
        met = [*map(operator.and_, met, each)]
    return met


def _meets(rows: Rows | pd.DataFrame, condition: Condition) -> list[bool]:
    """Return which rows meet a condition; an empty cell is neither smaller nor larger."""
    column, sign, value = condition
    cells = [*rows[column]]
    is_number = is_quantity(column, cells)
    is_time = KINDS.get(column) == "time"
    low, dots, high = value.partition("..")
    if sign not in _EQUAL and not (is_time or is_number):
        text = f"{column} is a text, which has no order; = and != compare it"
        raise UsageError(f"'{condition}': {text}")
    if sign not in _EQUAL:
        return _beyond(cells, sign, value, condition)
    if dots and (is_time or is_number):
        above = _beyond(cells, ">=", low, condition)
        met = [*map(operator.and_, above, _beyond(cells, "<=", high, condition))]
    elif value == _UNSET:
        met = [*map(is_empty, cells)]
    else:
        wanted = _number(value) if is_number else value
        met = [cell == wanted for cell in cells]
    return [not each for each in met] if sign == "!=" else met


def _beyond(cells: Sequence[Any], sign: str, end: str, condition: Condition) -> list[bool]:
    is_time = KINDS.get(condition.column) == "time"
    bound = _times([end])[0] if is_time else _number(end)
    if is_empty(bound):
        needs = f"{condition.column} needs a number, or a date, not '{condition.value}'"
        raise UsageError(f"'{condition}': {needs}")
    holds = _ORDER[sign]
    values = _times(cells) if is_time else cells
    return [not is_empty(value) and holds(value, bound) for value in values]


def _number(text: str) -> float:
    """Return the number that a text is, or NaN."""
    number = number_in(text)
    return math.nan if number is None else number


def _times(texts: Sequence[str | None]) -> list[Any]:
    import pandas as pd  # noqa: PLC0415 - it reads a date alone, too, and loads slowly

    return [*pd.to_datetime(pd.Series(texts), utc=True, format="ISO8601", errors="coerce")]


def _nothing(rows: Rows | pd.DataFrame, conditions: Sequence[Condition]) -> str:
    name, _, text = conditions[0]
    cells = [*rows[name]]
    known = sorted({cell for cell in cells if not is_empty(cell)})
    values = [f"{value:.10g}" if isinstance(value, float) else str(value) for value in known]
    if any(map(is_empty, cells)):
        values.append(_UNSET)
    shown = ", ".join(values[:_VALUES_SHOWN])
    if len(values) > _VALUES_SHOWN:
        shown += ", ..."
    hint = ""
    spread = re.fullmatch(r"(\d+)\s*[-:]\s*(\d+)", text)
    if spread and is_quantity(name, cells):
        hint = f"; a range is {name}={spread[1]}..{spread[2]}"
    what = ", ".join(map(str, conditions))
    return f"no measured point has {what} ({name} is one of {shown}){hint}"
