"""Reads CSV tables of other programs, packed or not, in any delimiter, encoding and notation.

A line is a row: a quote that is open at its end would else swallow the rows below it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcsweep import numerals
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.importing import unpacking
from hpcsweep.text import count

TAKEN: Final = "taken"  # the reason of what is not left out
MANY: Final = "with more cells than the header"
FEW: Final = "with fewer cells than the header"
QUOTES: Final = "whose quotes do not match, or with a cell of several lines"
_DELIMITERS: Final = ",;\t"  # the last one is that of .tsv
_MOST: Final = 4 << 30  # bytes of a table
_HEADER: Final = 1 << 20  # bytes of its first line
SIZES: Final = "sizes"  # in place of fractions: one size or two, which have none
_TWO: Final = re.compile(r"\W*(\d+)\s*,\s*([1-9]\d*)\W*")  # sizes, as thousands may be parted
_NAMED: Final = "sep="  # how a spreadsheet names the delimiter, in a line before the header


@dataclass(frozen=True)
class Table:
    """An opened table: the names of its columns, and the lines below them."""

    names: list[str]
    delimiter: str
    lines: Iterable[str]

    def rows(self, left: Counter[str]) -> Iterator[dict[str, str]]:
        """Yield the rows that have a cell for each name; `left` counts others, by their reason."""
        for line in self.lines:
            if not line.strip():
                continue
            cells = self._cells(line)
            if cells is None:
                left[QUOTES] += 1
            elif len(cells) != len(self.names):
                left[MANY if len(cells) > len(self.names) else FEW] += 1
            else:
                yield dict(zip(self.names, cells, strict=True))

    def _cells(self, line: str) -> list[str] | None:
        if '"' not in line:
            return line.rstrip("\r\n").split(self.delimiter)
        try:
            return next(csv.reader([line], delimiter=self.delimiter, strict=True))
        except csv.Error:
            return None


def check_columns(
    path: Path, have: Collection[str], needed: Collection[str], numbers: Collection[str] = ()
) -> None:
    """Raise `UsageError` where a needed column is not there, or one of those is there twice."""
    for name in needed:
        if name not in have:
            raise UsageError(f"{path}: has no column '{name}'{suggest(name, have)}")
    for name, times in Counter(have).items():
        if times > 1 and (name in needed or name in numbers):
            raise UsageError(f"{path}: has {times} columns '{name}'; rename all but one")


def account(counts: Counter[str], noun: str = "row") -> list[str]:
    """Return lines that say what became of each row: `TAKEN`, or left out, with the reason."""
    lines = [f"{count(counts.total(), noun)} read: {counts[TAKEN]:,} taken"]
    for reason, number in counts.items():
        if number and reason != TAKEN:
            lines.append(f"left out: {count(number, noun)} {reason}")
    return lines


def check_taken(path: Path, counts: Counter[str], noun: str = "row") -> None:
    """Raise `ResultsError`, with what became of each row, where none was taken."""
    if not counts[TAKEN]:
        raise ResultsError(f"{path}: {'; '.join(account(counts, noun))}")


@contextmanager
def opened(path: Path) -> Iterator[Table]:
    """Open a table, which must be a regular file; `ResultsError` where it cannot be read."""
    with unpacking.opened(path, _MOST) as file:
        try:
            text = unpacking.as_text(file)
            first = text.readline(_HEADER)
            if not first.strip():
                raise ResultsError(f"{path}: has no header in its first line")
            if first.startswith(_NAMED):
                first = text.readline(_HEADER)
            heads = [(mark, next(csv.reader([first], delimiter=mark), [])) for mark in _DELIMITERS]
            if ".tsv" in path.suffixes:
                heads = heads[-1:]
            delimiter, names = max(heads, key=lambda head: len(head[1]))
            yield Table(names, delimiter, text)
        except UnicodeDecodeError as error:
            wrong = f"{path}: cannot be read ({error}); save it as CSV, in UTF-8"
            raise ResultsError(wrong) from error
        except (csv.Error, OSError) as error:
            raise ResultsError(f"{path}: cannot be read ({error})") from error


def rows(  # noqa: PLR0913 - what a program and a person say of numbers are apart
    path: Path,
    numbers: Mapping[str, str],
    how: str,
    counts: Counter[str],
    *,
    needed: Collection[str],
    usual: str = "",
    told: str = "",
) -> Iterator[dict[str, str]]:
    """Yield the rows of a table; `numbers` are its columns of numbers, each with its fractions.

    Their cells are as Python reads them, empty for what is no number; two sizes (3x3) stay, in a
    column of `SIZES`. `counts` is as in `Table`, `usual` and `told` are as in `numerals.notation`,
    `how` is what to do where nothing tells it.

    `UsageError` where nothing does, or a column of `needed` is not there, `ResultsError` where the
    file cannot be read.
    """
    with opened(path) as table:
        check_columns(path, table.names, needed, numbers)
        names = [name for name in table.names if name in numbers]
        try:
            notation = numerals.notation(_telling(table, numbers), usual, told)
        except UsageError as error:
            raise UsageError(f"{path}: {error}; {how}") from None
    with opened(path) as table:
        for row in table.rows(counts):
            for name in names:
                if numbers[name] == SIZES:
                    row[name] = _sizes(path, row[name], notation)
                else:
                    row[name] = notation.plain(row[name])
            yield row


def _telling(table: Table, numbers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the cells that tell how a table writes numbers, each with its fractions."""
    for row in table.rows(Counter()):
        for name, fraction in numbers.items():
            cell = row.get(name, "")
            if fraction != SIZES:
                yield cell, fraction
            elif not _TWO.fullmatch(cell):
                yield cell, numerals.WHOLE


def _sizes(path: Path, cell: str, notation: numerals.Notation) -> str:
    """Return a cell of sizes; `UsageError` where two may be one, of which thousands are parted."""
    both = _TWO.fullmatch(cell)
    if both is None:
        return notation.plain(cell) or cell
    number = notation.plain(cell, numerals.WHOLE)
    if number and both[1] != both[2]:
        two = f"{both[1]}x{both[2]}"
        raise UsageError(
            f"{path}: '{cell}' may be {two} or {number}; write it in one of these ways"
        )
    return cell
