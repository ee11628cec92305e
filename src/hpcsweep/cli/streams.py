"""Keeps the program going when its output cannot be written: closed, full, or nobody reads it.

Under cron a stream may be closed; a log may lie on a full disk; `| head` ends before we do. None
of this may cost a point that is being measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from hpcsweep.text import printable


def reopen_closed() -> None:
    """Open /dev/null in place of each closed standard stream.

    Otherwise the next file that is opened, such as a shard, would take the stream's number, and
    child processes would print into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


@contextmanager
def forgiving() -> Iterator[None]:
    """Discard output that cannot be written while the block runs, instead of raising."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Forgiving(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def show(text: str, *, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Print text; on a terminal its control characters are shown, and do nothing."""
    stream = file or sys.stdout
    shown = printable(text) if stream.isatty() else text
    try:
        print(shown, end=end, file=stream, flush=flush)
    except UnicodeEncodeError:  # a name that is not UTF-8, or a locale that has not every letter
        code = stream.encoding or "ascii"
        known = shown.encode(code, "backslashreplace").decode(code)
        print(known, end=end, file=stream, flush=flush)


@contextmanager
def verbose() -> Iterator[None]:
    """Print what the program does to stderr while the block runs: programs started, files read."""
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("hpcsweep")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def discard(stream: TextIO) -> None:
    """Send what a stream still holds, and all that follows, to /dev/null."""
    with suppress(OSError, ValueError):  # in tests it may be no file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class _Forgiving:
    """A text stream that discards all output after the first write that fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            discard(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)
