"""What records are made of: cells of rows, flags, when a check applies; packaged tables.

The records of rows stand in `row_records`, those of checks in `catalog/checks/`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hpcsweep.errors import suggest

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_options: bool) -> Any:  # noqa: ANN401
        """Return a decorator for type checkers alone; `typing` has it from Python 3.11 on."""
        return lambda decorated: decorated


# Who disturbed a point: the clock, whose times are none; others on the machine; the device itself.
# The first explains what follows, so headlines tell it first.
CAUSES: Final = ("clock", "others", "device")


def packaged(name: str) -> list[dict[str, str]]:
    """Return the rows of a table beside this module."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


class UndeclaredCell(TypeError):
    """A cell has a name that no record declares: a mistake of the program, or a newer version."""

    def __init__(self, names: Sequence[str], declared: Iterable[str], where: str) -> None:
        hint = suggest(names[0], declared)
        super().__init__(f"{where} has no cell {', '.join(map(repr, names))}{hint}")


class _Cell:
    """The declaration of a cell; in a record that was not given the cell, the value None."""

    def __init__(self, doc: str, kind: str, *, clocked: bool) -> None:
        self.doc = doc
        self.kind = kind
        self.clocked = clocked

    def __get__(self, record: object, _kind: type) -> object:
        return self if record is None else None


def cell(doc: str, *, clocked: bool = False, kind: str = "") -> Any:  # noqa: ANN401 - of any type
    """Declare a cell of a record: a column of the same name, empty by default.

    A `clocked` one says something of times, so it is empty in a row of a profiled run. The `kind`
    of the column is that of the annotation, unless it is given.
    """
    return _Cell(doc, kind, clocked=clocked)


# A frozen dataclass a record would cost 20 ms at each start of each process: it compiles methods
# for each class. This costs 1 ms, type checkers see the same, and the error names the cell.
@dataclass_transform(kw_only_default=True, frozen_default=True)
class Cells:
    """The cells of a row that come from one source. Each is None until it is known, and then fixed.

    A subclass declares them with `cell`. Raises `UndeclaredCell` for any other name.
    """

    declared: ClassVar[Mapping[str, _Cell]] = {}

    def __init_subclass__(cls) -> None:
        found = {name: value for name, value in vars(cls).items() if isinstance(value, _Cell)}
        for name, declaration in found.items():
            annotated: str = cls.__annotations__[name]
            # as in `list[float] | None`
            declaration.kind = declaration.kind or annotated.partition(" ")[0].partition("[")[0]
        cls.declared = found

    def __init__(self, **cells: Any) -> None:  # noqa: ANN401 - each of its own type
        if not cells.keys() <= self.declared.keys():
            unknown = [name for name in cells if name not in self.declared]
            raise UndeclaredCell(unknown, self.declared, type(self).__name__)
        vars(self).update(cells)

    def filled(self) -> dict[str, Any]:
        """Return the cells that are known."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __or__(self, later: Self) -> Self:
        """Return the cells of both; what the later one knows counts."""
        return type(self)(**row_of(self, later))

    def __setattr__(self, name: str, _value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is fixed; '{name}' cannot be set")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.filled()})"


def row_of(*sources: Cells) -> dict[str, Any]:
    """Put the cells of several sources into one row; of a cell that two know, the later counts.

    A cell that was given as None, and that nobody knows, is there as None.
    """
    row: dict[str, Any] = {}
    for source in sources:
        for name, value in vars(source).items():
            if value is not None or name not in row:
                row[name] = value
    return row


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
class DisturbingFigure:
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
    overall: type[Cells] = Cells
    layers: type[Cells] = Cells
    flags: tuple[Flag, ...] = ()
    figures: tuple[DisturbingFigure, ...] = ()
    setting: str | None = None
    workloads: tuple[str, ...] = ()
