"""Reads rows: the cells that are asked for, of shards; whole rows with their places, for `collect`.

Readers need no lock: they take complete rows and leave out others, of which `scan_shard` tells.
Checksums are compared by `collect` alone, since each costs reading the row's blocks.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import compress
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from hpcsweep import files
from hpcsweep.catalog.columns import LAYER_COLUMNS, SHARD_COLUMNS
from hpcsweep.errors import ResultsError
from hpcsweep.point import is_point_id
from hpcsweep.store import shards
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from hpcsweep.catalog.columns import Row
    from hpcsweep.store.folders import ShardPath

KEY: Final = ("point_id", "status")  # the first cells of each line, in every version
_STATUS: Final = {status.encode(): status for status in PointStatus}
_BEGINNING: Final = re.compile(rb"([0-9a-f]{16}),([^,]*),").match  # of a line: id and status
_ENDS: Final = (*KEY, SHARD_COLUMNS[-1])  # of the columns, in every version
csv.field_size_limit(1 << 30)  # a cell may hold a long map; the default is 131,072 characters


def read_rows(attempts: Iterable[ShardPath], columns: Sequence[str] | None = KEY) -> Iterator[Row]:
    """Yield the rows of shards, oldest first, with those of the asked cells that are filled.

    A line that begins with a point's id and a status is a row, so that `status` can look through
    300,000 in two seconds. Where the line has too few cells, or too many, it has no others.
    Without `columns` all cells are asked for, and such lines are left out.
    `Unread` where a shard cannot be read now; one that is not there has no rows.
    """
    for shard in attempts:
        yield from rows_in(complete_lines(shard.overall), columns)


def rows_in(lines: Sequence[bytes], columns: Sequence[str] | None = KEY) -> Iterator[Row]:
    """Yield the rows of a shard's complete lines, its header first, as `read_rows`."""
    names, first = _header(lines)
    if columns is None:
        for line in lines[first:]:
            whole = _cells_of(line, names)
            if not isinstance(whole, str):
                # most cells are empty, and take no room
                yield defaultdict(str, compress(zip(names, whole, strict=True), whole))
        return
    # from the end of a line, since most of what is asked for often stands there
    places = {name: names.index(name) - len(names) for name in columns if name in names[2:]}
    depth = -min(places.values(), default=0)
    for line in lines:
        begins = _BEGINNING(line)
        # NUL bytes: a machine died before its disk had the block
        if not begins or begins[2] not in _STATUS or b"\0" in line:
            continue
        row: Row = {"point_id": begins[1].decode(), "status": _STATUS[begins[2]]}
        cells = _last_cells(line, depth, len(names)) if depth else []
        if cells:
            for name, place in places.items():
                if cells[place]:
                    row[name] = cells[place].decode("utf-8", "replace")
        yield row


def _last_cells(line: bytes, depth: int, cells: int) -> list[bytes]:
    """Return at least the last cells of a line; none where it has not as many as its shard."""
    if b'"' in line:  # a comma may be part of a cell
        values = next(csv.reader([line.decode("utf-8", "replace")]))
        return [value.encode() for value in values] if len(values) == cells else []
    return line.rsplit(b",", depth) if line.count(b",") == cells - 1 else []


def table_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the asked cells of the rows of a merged table.

    `ResultsError` where it lacks a column, or is damaged; the next collect writes it anew.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield {name: row[name] for name in columns}
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise ResultsError(f"{path}: cannot be read ({error})") from error


class WholeRow(NamedTuple):
    """A complete row of a shard, and where it stands."""

    cells: list[str]  # in the order of the columns, and an empty one for any other column
    line: bytes
    at: int  # number of the line
    byte: int  # where it begins


@dataclass
class Shard:
    """The readable rows of one attempt in file order, and messages about the others."""

    path: ShardPath
    heads: shards.Heads = shards.OURS
    problems: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # what cannot be read for now
    taken: int = 0  # rows whose checksums fit
    left_out: int = 0  # complete lines that are damaged
    torn: bool = False  # the last line is not complete: being written, or its writer was killed


def complete_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a shard, its header first."""
    try:
        return files.regular_bytes(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise files.cannot_read(path, error) from error


def scan_shard(shard: ShardPath) -> tuple[Shard, Iterator[WholeRow]]:
    """Return a shard without its rows, and its complete rows one by one: all would fill the memory.

    Messages about damaged lines come while the rows are read.
    Without a header, rows and layer rows have the columns of this version, which their checksums
    prove. `Unread` where a file cannot be opened.
    """
    try:
        *lines, unended = files.regular_bytes(shard.overall).split(b"\n")
    except OSError as error:
        raise files.cannot_read(shard.overall, error) from error
    columns, first = _header(lines)
    heads = shards.Heads(columns, _layer_columns(shard))
    result = Shard(shard, heads, torn=bool(unended))
    return result, _rows(result, lines, first)


def _header(lines: Sequence[bytes]) -> tuple[shards.Names, int]:
    """Return the columns of a shard's lines, and the place of its first row."""
    names = shards.names_in(lines[0]) if lines else ()
    is_header = (*names[:2], *names[-1:]) == _ENDS
    return (names, 1) if is_header else (SHARD_COLUMNS, 0)


def _rows(shard: Shard, lines: Sequence[bytes], first: int) -> Iterator[WholeRow]:
    """Yield the rows of a shard from its first line after the header on; note what is damaged."""
    byte = sum(len(line) + 1 for line in lines[:first])
    for number, line in enumerate(lines[first:], 1 + first):
        cells = _cells_of(line, shard.heads.columns) if line else ""
        if not isinstance(cells, str):
            cells.append("")
            yield WholeRow(cells, line, number, byte)
        elif cells:
            begins = _BEGINNING(line)
            point = f" (point {begins[1].decode()})" if begins else ""
            shard.problems.append(f"{shard.path.overall}:{number}: row{point} left out: {cells}")
            shard.left_out += 1
        byte += len(line) + 1


def _layer_columns(shard: ShardPath) -> tuple[str, ...]:
    """Return the columns of a shard's layer rows, without a header this version's."""
    try:
        with files.open_regular(shard.layers) as file:
            names = shards.names_in(file.readline())
    except FileNotFoundError:
        return LAYER_COLUMNS
    except OSError as error:
        raise files.cannot_read(shard.layers, error) from error
    return names if "point_id" in names else LAYER_COLUMNS


def _cells_of(line: bytes, columns: tuple[str, ...]) -> list[str] | str:
    """Return the cells of a line in the order of the columns; or what is wrong."""
    if b"\0" in line:
        return "NUL bytes"
    try:
        cells = shards.split(line)
    except (csv.Error, UnicodeDecodeError) as error:
        return f"not CSV ({error})"
    if len(cells) != len(columns):
        return f"{len(cells)} cells instead of {len(columns)}"
    point_id, status = cells[:2]  # as `KEY` says
    if not is_point_id(point_id):
        return "no point id"
    if status.encode() not in _STATUS:
        return f"unknown status '{status}'"
    return cells


class Blocks:
    """Reads blocks of rows from many files, of which at most `limit` are open at a time."""

    def __init__(self, limit: int = 96) -> None:  # macOS allows 256 a process, Linux 1,024
        self._limit = limit
        self._open: dict[Path, tuple[IO[bytes], int]] = {}  # with their sizes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for file, _size in self._open.values():
            file.close()
        self._open = {}

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """Return the lines at a place in a file.

        `ResultsError` where that place or the file does not exist, `Unread` where it cannot be read
        now.
        """
        if not length:
            return b""
        try:
            file, size = self._open.get(path) or self._opened(path)
            # a damaged row may name any place: never ask for more than there is
            inside = offset >= 0 and 0 < length <= size - offset
            # rows of a table lie apart in their shards: a buffer would be filled for each
            block = os.pread(file.fileno(), length, offset) if inside else b""
        except OSError as error:
            raise files.cannot_read(path, error) from error
        if len(block) != length:  # what is in it the checksum of its row proves
            raise ResultsError(f"{path}: has no {length} bytes at byte {offset}: damaged")
        return block

    def _opened(self, path: Path) -> tuple[IO[bytes], int]:
        """Open a file; where too many are open, close the one that was opened first.

        Its size is asked once: a row is read after its blocks were written, and before they are.
        """
        file = files.open_regular(path)
        self._open[path] = file, os.fstat(file.fileno()).st_size
        if len(self._open) > self._limit:
            first, _size = self._open.pop(next(iter(self._open)))
            first.close()
        return self._open[path]


def parse_block(block: bytes, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Return the rows of a block by column name."""
    for values in csv.reader(io.StringIO(block.decode("utf-8", "replace"))):
        yield dict(zip(columns, values, strict=False))
