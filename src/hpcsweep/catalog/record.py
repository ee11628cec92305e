"""What a check is described with: cells of its record, flags, when it applies; packaged tables."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

# Who disturbed a point: the clock, whose times are none; others on the machine; the device itself.
# The first explains what follows, so headlines tell it first.
CAUSES: Final = ("clock", "others", "device")


def packaged(name: str) -> list[dict[str, str]]:
    """Return the rows of a table beside this module."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def cell(doc: str, *, clocked: bool = False) -> Any:  # noqa: ANN401 - the field of any type
    """Return a field of a record: a column of the same name, empty by default.

    A `clocked` one says something of times, so it is empty in a row of a profiled run.
    """
    return field(default=None, metadata={"doc": doc, "clocked": clocked})


@dataclass(frozen=True)
class Flag:
    """What a check may say of a row.

    A `doubt` puts the row's times in doubt. A `lasting` doubt is of what the point is, not of what
    disturbed it: measured again, the point would have it again.

    With `words` a headline says so of points that the flag disturbed; texts of the column `detail`
    follow them. Causes are told in the order of `CAUSES`.
    """

    name: str
    doc: str
    doubt: bool = False
    lasting: bool = False
    words: str = ""
    detail: str = ""
    cause: str = "others"


@dataclass(frozen=True)
class Figure:
    """A column that a headline tells of rows in doubt, in `words`, where it is `above` that."""

    column: str
    above: float
    words: Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """One check: what it finds and costs, its records of a row and of a layer row, its flags.

    `figures` are columns that say what disturbed a point, beside the words of its flags.
    Without a `setting` it applies to every point, else to those whose key of `measure` is set; and
    only to points of its `workloads`, if it names any.
    """

    finds: str
    costs: str
    overall: type | None = None
    layers: type | None = None
    flags: tuple[Flag, ...] = ()
    figures: tuple[Figure, ...] = ()
    setting: str | None = None
    workloads: tuple[str, ...] = ()


def cells_of(record: type | None) -> Iterator[tuple[str, str, str]]:
    """Yield name, kind and meaning of a record's columns."""
    for one in fields(record) if record else ():
        yield one.name, str(one.type).partition(" ")[0], one.metadata["doc"]


def clocked(record: type | None) -> list[str]:
    """Return the columns of a record that say something of times."""
    return [one.name for one in (fields(record) if record else ()) if one.metadata["clocked"]]
