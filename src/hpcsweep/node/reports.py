"""What an attempt says of its course: to its log, to the job's output or the local launcher.

What is measured counts more than what is said of it: a disk that is full, or an output that is
closed, ends nothing.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TextIO

from hpcsweep import environment

if TYPE_CHECKING:
    from pathlib import Path


class Reports:
    """The lines of one attempt, and its news for a local launcher: a JSON object a line.

    The news are `begins`, the label of the point in work, and `status` and `doubts` of the one that
    ended before it. What a point's end says is written with what comes next.
    """

    def __init__(self, log: Path) -> None:
        self._to_launcher = os.environ.get(environment.PROGRESS) == "json"
        self._log, self._fd = log, -1
        self._lines: list[str] = []
        self._news: dict[str, str] = {}

    def begins(self, text: str, label: str) -> None:
        """Say which point begins: what the worker prints until it ends is about this one."""
        self._news["begins"] = label
        self.say(text)

    def ended(self, text: str, status: str, doubts: str) -> None:
        """Say how a point ended."""
        self._news |= {"status": status, "doubts": doubts}
        self._lines.append(_line(text))

    def say(self, text: str) -> None:
        """Write a line, and what waits."""
        self._lines.append(_line(text))
        self.flush()

    def flush(self) -> None:
        """Write what waits."""
        lines, self._lines = "".join(self._lines), []
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.write(self._fd, lines.encode())
        if not self._to_launcher:
            show(lines, sys.stdout)
        elif self._news:
            news, self._news = self._news, {}
            sys.stdout.write(json.dumps(news) + "\n")
            sys.stdout.flush()


def show(text: str, stream: TextIO) -> None:
    """Write to the job's output; once that fails, such as on a full disk, to nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def now() -> str:
    """Return the UTC time in ISO format, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _line(text: str) -> str:
    return f"{now()} {' '.join(text.split())}\n"
