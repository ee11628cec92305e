"""Reads merged tables into plain rows: a short report prints them in less time than pandas starts.

`merged` reads the same tables into frames, for those who compute with whole columns. A table that
is not as `collect` writes it is refused by both, with the place.
"""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from hpcsweep.catalog.columns import KNOWN, OWN, kinds
from hpcsweep.errors import UsageError
from hpcsweep.store.state import PointStatus
from hpcsweep.text import number_in

if TYPE_CHECKING:
    import pandas as pd

KINDS: Final = kinds()
NUMBERS: Final = frozenset(name for name, kind in KINDS.items() if kind in {"int", "float"})
OVERALL: Final = "overall.csv"
DETAILS: Final = "details.csv"  # whose columns readers see in overall.csv
NEEDED: Final = {  # what no report can do without
    DETAILS: ("point_id",),
    OVERALL: ("point_id", "status", "model", "algorithm", "input_size"),
    "layers.csv": ("point_id", "layer", "algorithm", "unique_key", "mean_ms"),
}
# that are read at a time: the processor's caches hold the cells of so few, and of 10,000 it takes
# twice as long
_LINES: Final = 200
SHOWN: Final = 40  # characters of a cell in a message, which is to stay one line


Group: TypeAlias = tuple[Any, ...]  # some cells of a row, by which it is told apart


class Row(Mapping[str, Any]):
    """One row of a table by its columns; an empty cell is None."""

    __slots__ = ("_columns", "_place")

    def __init__(self, columns: Mapping[str, Sequence[Any]], place: int) -> None:
        self._columns = columns
        self._place = place

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a cell
        return self._columns[name][self._place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class Rows:
    """Some rows of a table, which is held column by column; an empty cell is None.

    What reads frames, too, takes these in the same words: `rows["median_ms"]` is a column,
    `rows[truth_values]` are some of the rows, `name in rows` asks for a column.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], places: Sequence[int]) -> None:
        self._columns = columns
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, what: Any) -> Any:  # noqa: ANN401 - a column, or rows
        if isinstance(what, str):
            cells = self._columns[what]
            return [cells[place] for place in self._places]
        return Rows(self._columns, [*compress(self._places, what)])

    def each(self) -> Iterator[Row]:
        """Yield the rows."""
        for place in self._places:
            yield Row(self._columns, place)

    def assign(self, **cells: Sequence[Any]) -> Rows:
        """Return the rows with other cells in some columns."""
        columns = self._columns
        if not isinstance(self._places, range):  # some of the rows
            columns = {name: self[name] for name in columns}
        return Rows({**columns, **cells}, range(len(self)))

    def and_those(self, others: Rows) -> Rows:
        """Return these rows, and behind them others of the same table."""
        return Rows(self._columns, [*self._places, *others._places])


Table = TypeVar("Table", bound="Rows | pd.DataFrame")


def truths(rows: Rows | pd.DataFrame, met: list[bool]) -> Any:  # noqa: ANN401 - a list, or a column
    """Return which rows are meant as these rows take it: of a frame as a column."""
    if isinstance(rows, Rows):
        return met
    import pandas as pd  # noqa: PLC0415 - there is a frame, so it is loaded

    return pd.Series(met, rows.index, bool)


def cells(rows: pd.DataFrame, name: str, default: object = "") -> pd.Series[Any]:
    """Return a column of a frame, or the same value in every row where there is no such column."""
    import pandas as pd  # noqa: PLC0415 - likewise

    return rows.get(name, pd.Series(default, rows.index, dtype=object))


def column(rows: Rows | pd.DataFrame, name: str) -> list[Any]:
    """Return a column; an empty cell is None, as all are where there is no such column."""
    if name not in rows:
        return [None] * len(rows)
    if isinstance(rows, Rows):
        cells: list[Any] = rows[name]
        return cells
    return [None if is_empty(cell) else cell for cell in rows[name]]


def row_mappings(rows: Rows | pd.DataFrame, names: Collection[str] = ()) -> list[Any]:
    """Return a mapping for each row, of the columns `names` at least; an empty cell is None.

    A frame gives dictionaries: of many rows with all columns they would be a gigabyte.
    """
    if isinstance(rows, Rows):
        return [*rows.each()]
    known = rows.loc[:, rows.columns.isin(names)] if names else rows
    known = known.astype(object)
    return known.where(known.notna(), None).to_dict("records")


def with_cells(rows: Table, **cells: list[Any]) -> Table:
    """Return rows with other cells in some columns."""
    other: Any = rows.assign(**cells)
    return cast("Table", other)


def is_empty(cell: object) -> bool:
    """Tell whether a cell is empty: None, or NaN."""
    return cell is None or cell != cell  # noqa: PLR0124 - as only NaN does


def groups(rows: Rows | pd.DataFrame, keys: Sequence[str]) -> list[Group]:
    """Return the cells of some columns for each row: rows with equal ones are a group."""
    if not keys:
        return [()] * len(rows)
    return [*zip(*(column(rows, key) for key in keys), strict=True)]


def is_quantity(name: str, cells: Iterable[Any]) -> bool:
    """Tell whether the values of a column are numbers; of a command's own the cells tell."""
    if name in KINDS:
        return name in NUMBERS
    return not any(isinstance(cell, str) for cell in cells)


def distinct(rows: Rows | pd.DataFrame, name: str) -> list[Any]:
    """Return each value of a column once, as they come."""
    if isinstance(rows, Rows):
        return [*dict.fromkeys(rows[name])]
    return [*rows[name].unique()]


def read_rows(path: Path, sweep: str, columns: Collection[str]) -> Rows:
    """Return some columns of a merged table, and those that no report can do without.

    Columns that the reference names come first, in its order, whether the table has them or not.
    """
    check_there(path, sweep)
    table: dict[str, list[Any]] = {}
    for file in files_of(path):
        part, wrong = _read(file, {*columns, *NEEDED.get(file.name, ()), *OWN})
        if wrong:
            raise refused(wrong, sweep)
        if part["point_id"] != table.setdefault("point_id", part["point_id"]):
            raise refused(other_points(path), sweep)
        table = part | table
    length = len(table["point_id"])
    try:
        own = dict(own_columns({name: filter(None, table.get(name, ())) for name in OWN}))
    except (ValueError, AttributeError):
        raise refused(no_object(path), sweep) from None
    known: dict[str, list[Any]] = {}
    empty = [None] * length  # one for all: most columns are empty
    for name in KNOWN.get(path.stem, ()):
        if name in columns or name in table:
            cells = table.get(name, empty)
            known[name] = empty if cells.count(None) == length else cells
    for name in table.keys() - KINDS.keys():
        table[name] = _as_said(table[name], own.get(name))
    return Rows(known | {name: table[name] for name in table if name not in known}, range(length))


def _read(path: Path, wanted: Collection[str]) -> tuple[dict[str, list[Any]], str]:
    """Return some columns of a file, and what of it `collect` would not have written."""
    wrong = wrong_header(path)
    table: dict[str, list[Any]] = {}
    try:
        if not wrong:
            table, wrong = _columns(path, wanted)
    except (ValueError, OSError, csv.Error) as error:
        wrong = f"{path}: {str(error).splitlines()[0]}"
    wrong = lacking(path, table) if table and not wrong else wrong
    return table, wrong or wrong_point(path, table)


def _columns(path: Path, wanted: Collection[str]) -> tuple[dict[str, list[Any]], str]:
    """Return some columns, and which cell of them should be a number."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        names = next(lines, [])
        is_kept = [name in wanted for name in names]
        table: dict[str, list[Any]] = {name: [] for name in compress(names, is_kept)}
        seen: dict[str, str | None] = {"": None}  # texts repeat: one of each is kept
        while part := [*islice(lines, _LINES)]:
            rows = []
            for line in part:
                if len(line) > len(names):
                    text = f"line {lines.line_num} or before has more cells than the header"
                    raise ValueError(text)
                if line:
                    line.extend([""] * (len(names) - len(line)))
                    rows.append([*compress(line, is_kept)])
            for name, texts in zip(table, zip(*rows, strict=True), strict=False):
                if name not in NUMBERS:
                    table[name].extend(map(seen.setdefault, texts, texts))
                    continue
                numbers = _numbers(texts, KINDS[name])
                table[name] += numbers
                if len(numbers) < len(texts):
                    place = len(table[name])
                    return table, no_number(path, name, place, texts[len(numbers)])
    return table, ""


def _numbers(texts: Sequence[str], kind: str) -> list[int | float | None]:
    """Return the numbers of a column, up to the first cell that holds none."""
    read: Callable[[Any], int | float] = int if kind == "int" else float
    numbers: list[int | float | None] = []
    try:
        numbers = [read(text) if text else None for text in texts]
    except ValueError:
        with suppress(ValueError, OverflowError):
            for text in texts:
                numbers.append(read(float(text)) if text else None)
    return [None if is_empty(number) else number for number in numbers]  # a loss may be nan


def _as_said(texts: list[Any], kind: type | None) -> list[Any]:
    """Return a column of a command: texts, or numbers where it holds them alone."""
    if kind is str:
        return texts
    numbers = [number_in(text) if text else None for text in texts]
    odd = [text for text, number in zip(texts, numbers, strict=True) if text and number is None]
    if odd and kind is None:
        return texts
    if all(type(number) is int for number in numbers):
        return numbers
    return [None if number is None or is_empty(number) else float(number) for number in numbers]


def own_columns(said: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, type]]:
    """Yield the columns of commands that hold texts, or numbers alone; `said` are their records."""
    for column in OWN:
        values = defaultdict[str, list[Any]](list)
        for record in dict.fromkeys(said[column]):
            for name, value in json.loads(record).items():
                values[name].append(value)
        for name, every in values.items():
            texts = {value for value in every if isinstance(value, str)}
            numbers = {*map(number_in, texts)}
            if texts and (column == OWN[0] or None in numbers or len(numbers) < len(texts)):
                yield name, str
            elif {*map(type, every)} <= {int, float, str, type(None)}:
                yield name, float


def files_of(path: Path) -> list[Path]:
    """Return the files of a table: one, as earlier versions wrote all of them, or two."""
    details = path.with_name(DETAILS)
    return [path, details] if path.name == OVERALL and details.exists() else [path]


def header(path: Path) -> list[str]:
    """Return the columns of a table, as its readers see them."""
    names: list[str] = []
    for file in files_of(path):
        if file.exists():
            names += _first_lines(file, 1)[0]
    return [*dict.fromkeys((*KNOWN.get(path.stem, ()), *names))]


def _first_lines(path: Path, number: int) -> list[list[str]]:
    """Return so many rows of a file, the header first; empty ones where it has fewer."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.reader(file)
        return [next(rows, []) for _ in range(number)]


def check_there(path: Path, sweep: str) -> None:
    """Raise `UsageError` where there is no table yet."""
    if not path.exists():
        raise UsageError(f"{path}: not there yet; run `hpcsweep collect {sweep}` first")


def refused(wrong: str, sweep: str) -> UsageError:
    """Return the error for what is wrong with a table."""
    return UsageError(f"{wrong}; run `hpcsweep collect {sweep}` again")


def other_points(path: Path) -> str:
    """Say that the two files of a table do not belong together."""
    return f"{path.with_name(DETAILS)}: has other points than {path.name}"


def no_object(path: Path) -> str:
    """Say that the records of a command are none."""
    return f"{path}: {' or '.join(OWN)} is no JSON object"


def no_number(path: Path, name: str, place: int, cell: object) -> str:
    """Say that a row, of which the first has place 0, has no number where one is needed."""
    return f"{path}:{place + 2}: {name} is '{str(cell)[:SHOWN]}', and needs a number"


def wrong_header(path: Path) -> str:
    """Say what a reader would mend on its own: columns that are there twice, or are not named."""
    names, row = _first_lines(path, 2)
    if len(row) > len(names):
        return f"{path}: rows have more cells than the header"
    for name, times in Counter(names).items():
        if times > 1:
            return f"{path}: column '{name:.40}' stands there twice"
    return ""


def lacking(path: Path, table: Container[Any]) -> str:
    """Say which columns are not there that each report needs."""
    missing = [name for name in NEEDED.get(path.name, ()) if name not in table]
    return f"{path}: no column {', '.join(missing)}" if missing else ""


def wrong_point(path: Path, table: Mapping[str, Iterable[Any]] | pd.DataFrame) -> str:
    """Say which row has a status that there is none, or the id of another one."""
    if path.name != OVERALL:
        return ""
    known = {*PointStatus}
    seen = set()
    points = zip(table["status"], table["point_id"], strict=True)
    for line, (status, point_id) in enumerate(points, 2):  # lines count from 1, the header is one
        at = f"{path}:{line}"
        if status not in known:
            return f"{at}: no status '{str(status)[:SHOWN]}'"
        if point_id in seen:
            return f"{at}: point {str(point_id)[:SHOWN]} stands there twice"
        if not is_empty(point_id):
            seen.add(point_id)
    return ""
