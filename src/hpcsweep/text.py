"""Counts, durations and tables as text: the same words in every command; enums of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Self


_CONTROL: Final = re.compile(  # but tabs and ends of lines; the last ones turn the direction
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]"
)
_FORMULA: Final = ("=", "+", "-", "@")


class Word(str, Enum):
    """An enum whose members are text, each with its meaning in `says`; files hold the text.

    `enum.StrEnum` needs Python 3.11.
    """

    says: str

    def __new__(cls, word: str, says: str = "") -> Self:  # noqa: D102 - `Enum` calls it
        member = str.__new__(cls, word)
        member._value_, member.says = word, says
        return member

    def __str__(self) -> str:
        return str(self.value)


def count(number: int, noun: str) -> str:
    """Return ``1 point`` or ``2,000 points``."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def printable(text: str) -> str:
    """Return text with its control characters shown, so that no escape sequence runs a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def harmless(cell: str) -> str:
    """Return a cell of a table; one that a spreadsheet would take for a formula gets a quote first.

    Numbers stay numbers.
    """
    if not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def plural(noun: str) -> str:
    """Return ``points`` for ``point``, ``launches`` for ``launch``."""
    return f"{noun}{'es' if noun.endswith('ch') else 's'}"


def tally(counts: Mapping[str, int], order: Iterable[str]) -> str:
    """Return ``3 ok, 1 error``: names in `order` first, then the others by name; zeros left out."""
    names = dict.fromkeys([*order, *sorted(counts)])
    return ", ".join(f"{counts[name]:,} {name}" for name in names if counts.get(name))


def duration(seconds: float) -> str:
    """Return ``5 s``, ``12 min`` or ``3.5 h``: as precise as an estimate is."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Return one line per row, with columns two spaces apart.

    The first `left` columns are aligned left, the others right, as numbers are. Without `left`
    every column is aligned left. All rows have the same number of cells.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [in_columns(row, widths, left) for row in rows]


def in_columns(row: Sequence[str], widths: Sequence[int], left: int | None = None) -> str:
    """Return a line of `aligned`, for columns of which the widths are known."""
    return "  ".join(
        cell.ljust(width) if left is None or place < left else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
