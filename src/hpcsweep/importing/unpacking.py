"""Unpacks what is imported, but never more than an honest file of its size holds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hpcsweep import files
from hpcsweep.errors import ResultsError

# Times do not repeat: tables in which all else is the same in each row pack to an eleventh, and
# traces to a twentieth. Zeros pack to a thousandth.
_RATIO: Final = 100
_SPARE: Final = 64 << 20  # bytes that any file may have: the least of them may be of one letter
_GZIP: Final = b"\x1f\x8b"  # how such a file begins (RFC 1952)
_BZIP2: Final = b"BZh"


def most(packed: int) -> int:
    """Return the bytes that a file of `packed` bytes may become."""
    return max(_SPARE, _RATIO * packed)


@contextmanager
def opened(
    path: Path, largest: int, advice: str = "import it in parts"
) -> Iterator[io.BufferedReader]:
    """Open a file that may be packed by gzip or bzip2, with whatever other name.

    `ResultsError` where it is no regular file or damaged, and as soon as it has more than `largest`
    bytes, unpacked, or more than an honest one. `advice` is what to do with a large one.
    """
    try:
        with files.opened(path, most=largest) as file:
            begin = file.read(len(_BZIP2))
            packed = file.seek(0, io.SEEK_END)
            file.seek(0)
            honest = most(packed)
            if honest < largest:
                advice = "unpack it yourself if you trust it"
            limit = min(honest, largest)
            if begin.startswith(_GZIP):
                yield io.BufferedReader(_Limited(path, gzip.GzipFile(fileobj=file), limit, advice))
            elif begin == _BZIP2:
                yield io.BufferedReader(_Limited(path, bz2.BZ2File(file), limit, advice))
            else:
                yield file
    except (EOFError, zlib.error) as error:
        text = f"{path}: cannot be read ({error}); if the file was cut, export it again"
        raise ResultsError(text) from error


def as_text(file: io.BufferedReader, errors: str = "strict") -> io.TextIOWrapper:
    """Return an opened file as text, in UTF-8, 16 or 32, as its first bytes tell."""
    encoding = json.detect_encoding(file.peek(4)[:4])
    return io.TextIOWrapper(file, encoding, errors, newline="")


class _Limited(io.RawIOBase):
    """A stream that raises `ResultsError` where it has more than it may."""

    def __init__(self, path: Path, file: io.BufferedIOBase, most: int, advice: str) -> None:
        self._path = path
        self._file = file
        self._most = most
        self._advice = advice
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        block = self._file.read(len(buffer))
        self._left -= len(block)
        if self._left < 0:
            text = f"{self._path}: unpacks to more than {self._most:,} bytes; {self._advice}"
            raise ResultsError(text)
        buffer[: len(block)] = block
        return len(block)
