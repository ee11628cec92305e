"""Reads blocks of rows; computes and checks the checksum at the end of each row.

The checksum covers the header of `overall.csv`, the row's layer rows with their header, its
samples, and the row's own text. So a row is never read by the names of other columns.
"""

from __future__ import annotations

import csv
import io
import os
import zlib
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from hpcsweep import files
from hpcsweep.catalog.columns import LAYER_COLUMNS, SHARD_COLUMNS
from hpcsweep.errors import ResultsError, Unread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

Names = tuple[str, ...]
csv.field_size_limit(1 << 30)  # a cell may hold a long map; the default is 131,072 characters


class Blocks:
    """Reads blocks of rows from many files, of which at most `limit` are open at a time."""

    def __init__(self, limit: int = 96) -> None:
        self._limit = limit
        self._open: dict[Path, IO[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for file in self._open.values():
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
            file = self._file(path)
            # a damaged row may name any place: never ask for more than there is
            inside = offset >= 0 and 0 < length <= os.fstat(file.fileno()).st_size - offset
            file.seek(offset if inside else 0)
            block = file.read(length if inside else 0)
        except OSError as error:
            raise cannot_read(path, error) from error
        if len(block) != length:  # what is in it the checksum of its row proves
            raise ResultsError(f"{path}: has no {length} bytes at byte {offset}: damaged")
        return block

    def _file(self, path: Path) -> IO[bytes]:
        """Return an open file; where too many are open, close the least recently used."""
        file = self._open.pop(path, None) or files.open_regular(path)
        self._open[path] = file  # at the end, as the one used last
        if len(self._open) > self._limit:
            self._open.pop(next(iter(self._open))).close()
        return file


def parse_block(block: bytes, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Return the rows of a block by column name."""
    for values in csv.reader(io.StringIO(block.decode("utf-8", "replace"))):
        yield dict(zip(columns, values, strict=False))


def cannot_read(path: Path, error: OSError) -> ResultsError:
    """Return `ResultsError` for a file that is gone, `Unread` if it cannot be read now."""
    kind = ResultsError if isinstance(error, FileNotFoundError) else Unread
    return kind(f"{path}: cannot be read ({error.strerror or error})")


class Heads(NamedTuple):
    """The columns of a shard's rows, and of its layer rows."""

    columns: Names
    layers: Names = ()


OURS: Final = Heads(SHARD_COLUMNS, LAYER_COLUMNS)


def header(names: Names) -> bytes:
    """Return the first line of a file with these columns."""
    return ",".join(names).encode() + b"\n"


@lru_cache  # shards have the same few headers
def names_in(line: bytes) -> Names:
    """Return the column names in a header line, which may be damaged."""
    return tuple(line.decode("utf-8", "replace").removesuffix("\n").split(","))


def seal(text: bytes, heads: Heads, layers: bytes, samples: bytes) -> bytes:
    """Return the checksum of a row: `text` is its line up to the last comma, included."""
    crc = zlib.crc32(layers, _start(heads, with_layers=bool(layers)))
    return b"%08x" % zlib.crc32(text, zlib.crc32(samples, crc))


def fits(line: bytes, heads: Heads, layers: bytes, samples: bytes) -> bool:
    """Say whether a row's checksum fits its text, its blocks and these headers."""
    text, comma, checksum = line.rpartition(b",")
    return checksum == seal(text + comma, heads, layers, samples)


@lru_cache
def _start(heads: Heads, *, with_layers: bool) -> int:
    crc = zlib.crc32(header(heads.columns))
    return zlib.crc32(header(heads.layers), crc) if with_layers else crc
