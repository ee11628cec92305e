"""Reads CSV tables of other programs, packed or not, in any delimiter, encoding and notation."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hpcsweep import numerals
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import unpacking

_DELIMITERS: Final = ",;\t"
_MOST: Final = 4 << 30  # bytes of a table
_HEADER: Final = 1 << 20  # bytes of its first line
_NAMED: Final = "sep="  # how a spreadsheet names the delimiter, in a line before the header


@contextmanager
def opened(path: Path) -> Iterator[csv.DictReader[str]]:
    """Open a table, which must be a regular file; `ResultsError` where it cannot be read."""
    with unpacking.opened(path, _MOST) as file:
        try:
            text = unpacking.as_text(file)
            first = text.readline(_HEADER)
            if not first and text.encoding != "utf-8":
                raise ResultsError(f"{path}: has no text, only the mark of its encoding")
            if first.startswith(_NAMED):
                first = text.readline(_HEADER)
            heads = [(mark, next(csv.reader([first], delimiter=mark), [])) for mark in _DELIMITERS]
            delimiter, names = max(heads, key=lambda head: len(head[1]))
            yield csv.DictReader(text, names, delimiter=delimiter)
        except UnicodeDecodeError as error:
            raise ResultsError(f"{path}: cannot be read ({error}); save it as UTF-8") from error
        except (csv.Error, OSError) as error:
            raise ResultsError(f"{path}: cannot be read ({error})") from error


def rows(
    path: Path, numbers: Mapping[str, str], how: str, *, usual: str = "", told: str = ""
) -> Iterator[dict[str, str]]:
    """Yield the rows of a table; `numbers` are its columns of numbers, each with its fractions.

    Their cells are as Python reads them, empty for what is no number. `usual` and `told` are
    as in `numerals.notation`, `how` is what to do where nothing tells it.

    `UsageError` where nothing does, `ResultsError` where the file cannot be read.
    """
    with opened(path) as reader:
        names = [name for name in reader.fieldnames or () if name in numbers]
        cells = ((row[name] or "", numbers[name]) for row in reader for name in names)
        try:
            notation = numerals.notation(cells, usual, told)
        except UsageError as error:
            raise UsageError(f"{path}: {error}; {how}") from None
    with opened(path) as reader:
        for row in reader:
            yield {**row, **{name: notation.plain(row[name] or "") for name in names}}
