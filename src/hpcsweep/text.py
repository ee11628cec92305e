"""Counts, durations and tables as text: the same words in every command; enums of words.

Text from files and programs is foreign: a name in a table that somebody sent may hold anything. It
becomes shown text here alone: `printable` for lines, `shown` for a cell, `in_sheet` for a cell that
a spreadsheet may open. Files of data keep it as it is.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Self


# but tabs and ends of lines; what has no width, or turns the direction
_CONTROL: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e"
    "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
# how formulas begin; the wide forms, too, where a sheet is set to an East Asian language
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER: Final = re.compile(
    r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)",
    re.ASCII | re.IGNORECASE,
)


class Word(str, Enum):
    """An enum of text, each with its meaning in `says`; `enum.StrEnum` needs Python 3.11."""

    says: str

    def __new__(cls, word: str, says: str = "") -> Self:  # noqa: D102 - `Enum` calls it
        member = str.__new__(cls, word)
        member._value_ = word
        member.says = says
        return member

    def __str__(self) -> str:
        return str(self.value)


def number_in(text: str) -> int | float | None:
    """Return the number that a text is, as programs write numbers; None for any other text.

    Zeros in front, or an exponent beyond all numbers, are of names: 007, 12e5678.
    """
    # `float` takes more: 1_000, digits of other scripts, spaces around
    if not _NUMBER.fullmatch(text):
        return None
    if text.lstrip("+-").isdigit():
        return int(text)
    number = float(text)
    return number if math.isfinite(number) or text[-1].isalpha() else None


def count(number: int, noun: str) -> str:
    """Return ``1 point`` or ``2,000 points``."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return ``points`` for ``point``, ``launches`` for ``launch``."""
    return f"{noun}{'es' if noun.endswith('ch') else 's'}"


def printable(text: str) -> str:
    """Return text with its control characters shown, so that no escape sequence runs a terminal."""
    return _CONTROL.sub(lambda control: control[0].encode("unicode_escape").decode(), text)


def shown(cell: str) -> str:
    """Return a cell as printable text that stays in its line and column."""
    return printable(cell).replace("\t", "\\t").replace("\n", "\\n")


def in_sheet(cell: str) -> str:
    """Return a cell for a CSV file that people open: no spreadsheet takes it for a formula.

    One that begins as a formula does, and is no number, gets an apostrophe in front, which
    spreadsheets take as the sign of a text.
    """
    text = shown(cell)
    begins = text.lstrip()
    is_formula = len(begins) > 1 and begins.startswith(_FORMULA) and number_in(begins) is None
    return f"'{text}" if is_formula else text


def tally(counts: Mapping[str, int], order: Iterable[str]) -> str:
    """Return ``3 ok, 1 error``: names in `order` first, then the others by name; zeros left out."""
    names = dict.fromkeys([*order, *sorted(counts)])
    return ", ".join(f"{counts[name]:,} {name}" for name in names if counts.get(name))


def duration(seconds: float) -> str:
    """Return ``5 s``, ``12 min`` or ``3.5 h``: as precise as an estimate is."""
    minutes = seconds / 60
    # up to one and a half of the next unit: from there on, two digits say enough of it
    if minutes < 1.5:
        return f"{max(seconds, 1):.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:,.1f} h"


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Return one line per row, which have equally many cells, with columns two spaces apart.

    The first `left` columns, by default all, are aligned left, the others right, as numbers are.
    """
    lines = [[shown(cell) for cell in row] for row in rows]
    widths = _widths(lines)
    return [in_columns(row, widths, left) for row in lines]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def fitted(rows: Sequence[Sequence[str]], left: int, width: int | None) -> list[str]:
    """Return the lines of `aligned`, none longer than `width` where there is one.

    Heads are broken at `_` first; then the columns that are left over follow in blocks of their
    own, each with the first `left` columns.
    """
    lines = aligned(rows, left)
    if width is None or max(map(len, lines)) <= width:
        return lines
    heads, *body = rows
    broken = [*_broken_heads(heads, left), *body]
    widths = _widths(broken)
    keys = [*range(left)]  # the columns that each block begins with
    room = width - sum(widths[column] + 2 for column in keys)
    blocks: list[list[int]] = []
    free = 0  # characters that the last block has left
    for column in range(left, len(widths)):
        if not blocks or free < widths[column] + 2:
            blocks.append([])
            free = room + 2  # no space follows the last column
        blocks[-1].append(column)
        free -= widths[column] + 2
    lines = []
    for block in blocks:
        part = [[row[column] for column in [*keys, *block]] for row in broken]
        lines += ["", *aligned([row for row in part if any(row)], left)]
    return lines[1:]


def _broken_heads(heads: Sequence[str], left: int) -> list[tuple[str, ...]]:
    """Return the lines of heads that are broken at `_`, but for the first `left`."""
    columns = [[name] for name in heads[:left]]
    columns += [re.findall(r"[^_]+_*|_+", name) or [name] for name in heads[left:]]
    deepest = max(map(len, columns))
    for parts in columns:
        parts[:0] = [""] * (deepest - len(parts))  # a short head stands at the bottom
    return [*zip(*columns, strict=True)]


def cut(line: str, width: int | None) -> str:
    """Return a line that ends with ... where it would be longer than `width`."""
    return line if width is None or len(line) <= width else f"{line[: width - 3]}..."


def folded(lines: Iterable[str], width: int | None) -> list[str]:
    """Return lines of which none is longer than `width`, where there is one and words allow it."""
    if width is None:
        return [*lines]
    parts: list[str] = []
    for line in lines:
        words = line.lstrip()
        wrapped = textwrap.wrap(
            words,
            width,
            initial_indent=" " * (len(line) - len(words)),
            subsequent_indent="   ",
            break_long_words=False,
        )
        parts += wrapped or [line]
    return parts


def in_columns(row: Sequence[str], widths: Sequence[int], left: int | None = None) -> str:
    """Return a line of `aligned`, for columns of which the widths are known."""
    cells = []
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        is_left = left is None or place < left
        cells.append(cell.ljust(width) if is_left else cell.rjust(width))
    return "  ".join(cells).rstrip()
