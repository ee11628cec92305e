"""Reads blocks of layer rows and samples from the places that overall rows name."""

from __future__ import annotations

import csv
import errno
import io
import os
from typing import TYPE_CHECKING, Final

from hpcsweep.errors import ResultsError, Unread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

csv.field_size_limit(1 << 30)  # a cell may hold a long map; the default is 131,072 characters
_TOO_MANY: Final = (errno.EMFILE, errno.ENFILE)


class Blocks:
    """Reads blocks of rows from many files, of which at most `limit` are open at a time."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._open: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open = {}

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """Return whole lines from a place in a file.

        Raises:
            ResultsError: they are damaged, or the file is gone.
            Unread: they cannot be read now.
        """
        if not length:
            return b""
        try:
            fd = self._descriptor(path)
            # a damaged row may name any place: never ask for more than there is
            inside = offset >= 0 and 0 < length <= os.fstat(fd).st_size - offset
            block = _pread(fd, offset, length) if inside else b""
        except OSError as error:
            raise cannot_read(path, error) from error
        if len(block) != length or not block.endswith(b"\n") or b"\0" in block:
            raise ResultsError(f"{path}: the rows at byte {offset} are damaged")
        return block

    def _descriptor(self, path: Path) -> int:
        fd = self._open.pop(path, -1)
        if fd < 0:
            fd = self._opened(path)
        self._open[path] = fd  # at the end: the least recently used file is closed first
        if len(self._open) > self._limit:
            os.close(self._open.pop(next(iter(self._open))))
        return fd

    def _opened(self, path: Path) -> int:
        """Open a file; where too many are open, close those that were kept for later."""
        while True:
            try:
                return os.open(path, os.O_RDONLY)
            except OSError as error:
                if error.errno not in _TOO_MANY or not self._open:
                    raise
            os.close(self._open.pop(next(iter(self._open))))


def _pread(fd: int, offset: int, length: int) -> bytes:
    """Return `length` bytes: one read takes no more than 2 GiB, and network file systems less."""
    parts = []
    while length:
        part = os.pread(fd, length, offset)
        if not part:
            break
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_block(block: bytes, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Return the rows of a block by column name."""
    for values in csv.reader(io.StringIO(block.decode("utf-8", "replace"))):
        yield dict(zip(columns, values, strict=False))


def cannot_read(path: Path, error: OSError) -> ResultsError:
    """Return the error for a file that is gone, which is damage, or cannot be read now."""
    kind = ResultsError if isinstance(error, FileNotFoundError) else Unread
    return kind(f"{path}: cannot be read ({error.strerror or error})")
