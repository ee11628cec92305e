"""Reads a JSON document of any size piece by piece: its large list is never in memory."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hpcsweep import files
from hpcsweep.errors import ResultsError, UsageError

_MOST: Final = 1 << 36  # bytes of a file
_BLOCK: Final = 1 << 20  # characters that are read at once
_LARGEST: Final = 1 << 25  # characters of a value: the largest events have some thousand
_CUT: Final = 16  # characters at the end in which a value that was cut may seem to be wrong
_BLANK: Final = re.compile(r"[\s,:]*")
_DECODE: Final = json.JSONDecoder(strict=False).raw_decode
_GZIP: Final = b"\x1f\x8b"
_CUT_OFF: Final = "it ends there: the file was cut"


@contextmanager
def opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file as text, packed by gzip or not; `ResultsError` where it cannot be read."""
    with files.opened(path, most=_MOST) as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        try:
            plain = gzip.GzipFile(fileobj=file) if packed else file
            yield io.TextIOWrapper(plain, encoding="utf-8-sig", errors="replace")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ResultsError(f"{path}: cannot be read ({error}): export it again") from error


class Document:
    """An object with a large list under one key, or the list alone.

    `head` has the other values, as far as they were read. `RecursionError`-deep, endless or wrong
    values are a `ResultsError` that says where.
    """

    def __init__(self, path: Path, file: io.TextIOWrapper, key: str) -> None:
        self._path, self._file, self._key = path, file, key
        self._text, self._at, self._before = "", 0, 0
        self.head: dict[str, Any] = {}
        self.elements = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements of the list; `UsageError` where there is none."""
        first = self._next()
        if first == "[":
            yield from self._list()
            return
        has_list = False
        if first == "{":
            self._at += 1
            while (char := self._next()) != "}":
                name = self._value() if char == '"' else self._refuse("a key is missing")
                if name == self._key and self._next() == "[":
                    has_list = True
                    yield from self._list()
                else:
                    self.head[name] = self._value()
        if not has_list:
            raise UsageError(f"{self._path}: has no list '{self._key}', so it is no profiler trace")

    def _list(self) -> Iterator[Any]:
        self._at += 1
        while self._next() != "]":
            yield self._value()
            self.elements += 1
        self._at += 1

    def _next(self) -> str:
        """Return the next character that is no blank, comma or colon."""
        while True:
            self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                self._refuse(_CUT_OFF)

    def _value(self) -> Any:  # noqa: ANN401 - any JSON
        self._next()
        while True:
            try:
                value, end = _DECODE(self._text, self._at)
                if end < len(self._text) or self._text[end - 1] in '}]"':
                    self._at = end
                    return value
            except RecursionError:
                self._refuse("nested too deep")
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _CUT
                if not cut:
                    self._at = error.pos
                    self._refuse(error.msg)
            if len(self._text) - self._at > _LARGEST:
                self._refuse(f"a value of more than {_LARGEST:,} characters")
            if not self._more():
                self._refuse(_CUT_OFF)

    def _more(self) -> bool:
        """Read as much again as there is of a value, so that a large one is not tried too often."""
        block = self._file.read(max(_BLOCK, len(self._text) - self._at))
        self._before += self._at
        self._text, self._at = self._text[self._at :] + block, 0
        return bool(block)

    def _refuse(self, why: str) -> Any:  # noqa: ANN401 - never returns
        where = f"character {self._before + self._at:,}"
        raise ResultsError(
            f"{self._path}: no JSON at {where}, after {self.elements:,} elements: {why}"
        )
