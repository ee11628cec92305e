"""Messages to people, besides answers and errors: progress, notes and warnings.

Whoever listens chooses the form: the command line prints them, and `--json` lists them. Without a
listener, as in the Python API, notes and warnings are Python's, and progress goes into the log.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from hpcsweep.text import printable

Level = Literal["progress", "note", "warning"]


@dataclass(frozen=True)
class Message:
    """What a person is told, and what to do about it."""

    level: Level
    text: str
    remedy: str = ""

    @property
    def words(self) -> str:
        return printable(f"{self.text}; {self.remedy}" if self.remedy else self.text)

    def __str__(self) -> str:
        """Return the line to print."""
        return self.words if self.level == "progress" else f"{self.level}: {self.words}"


Listener = Callable[[Message], None]


def progress(text: str) -> None:
    """Tell what is done, as was asked for."""
    _listener(Message("progress", text))


def note(text: str, remedy: str = "") -> None:
    """Tell what may be unexpected, and wrong in no case."""
    _listener(Message("note", text, remedy))


def warning(text: str, remedy: str = "") -> None:
    """Tell what may be wrong."""
    _listener(Message("warning", text, remedy))


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Hand each message to a listener while the block runs."""
    global _listener  # noqa: PLW0603 - of the process, as the filters of Python's warnings are
    before = _listener
    _listener = listener
    try:
        yield
    finally:
        _listener = before


def _warn(message: Message) -> None:
    if message.level == "progress":
        import logging  # noqa: PLC0415 - 5 ms, which only a script without a listener pays

        logging.getLogger(__name__).info("%s", message.text)
        return
    level = 1
    while str(sys._getframe(level).f_globals.get("__package__")).startswith("hpcsweep"):  # noqa: SLF001
        level += 1  # the line of the caller's own program is named; a script has no package
    warnings.warn(message.words, stacklevel=level + 1)


_listener: Listener = _warn
