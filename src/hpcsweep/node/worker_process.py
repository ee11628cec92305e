"""One worker process as the supervisor sees it: start, ask, wait, kill. Standard library only.

Requests go to the worker's stdin and replies come back on its stdout, one JSON object a line; its
stderr is the attempt's log. The request pipe is also the lifeline: when the supervisor dies, the
worker reads end-of-file and leaves at once, whatever it is computing.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from hpcsweep import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_LAST_WORDS = 400


@dataclass(frozen=True)
class Died:
    """The worker ended without a reply."""

    returncode: int
    last_words: str

    @property
    def by_signal(self) -> signal.Signals | None:
        try:
            return signal.Signals(-self.returncode) if self.returncode < 0 else None
        except ValueError:
            return None

    def __str__(self) -> str:
        how = self.by_signal.name if self.by_signal else f"exit code {self.returncode}"
        return f"{how}: {self.last_words}" if self.last_words else how


class TimedOut:
    """No reply within the time given."""


class Interrupted:
    """The supervisor was told to stop while it waited."""


Reply = dict[str, Any] | Died | TimedOut | Interrupted


class Worker:
    """A worker process, from its start to `stop`, `kill` or its own end.

    `wake_fd` becomes readable when `wait` should ask again whether to stop.
    """

    def __init__(self, log: Path, env: Mapping[str, str], wake_fd: int) -> None:
        self._log = log
        self._log_file: IO[bytes] = log.open("ab")
        self._mark = self._log_file.tell()
        self._process = subprocess.Popen(
            processes.python("hpcsweep.node.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            env={**os.environ, **env},
            start_new_session=True,  # Ctrl-C in a terminal is the supervisor's business
        )
        assert self._process.stdin  # noqa: S101 - for the type checker
        assert self._process.stdout  # noqa: S101
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._buffer = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(wake_fd, selectors.EVENT_READ)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send one request; if the worker is dead already, `wait` notices it."""
        self._mark = os.fstat(self._log_file.fileno()).st_size
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(json.dumps(request).encode() + b"\n")
            self._stdin.flush()

    def wait(self, seconds: float, stopping: Callable[[], bool]) -> Reply:
        """Return the next reply, or why there is none; `stopping` says whether to give up."""
        until = time.monotonic() + seconds
        while True:
            line = self._take_line()
            if line is not None:
                return dict(json.loads(line))
            if stopping():
                return Interrupted()
            left = until - time.monotonic()
            if left <= 0:
                return TimedOut()
            for key, _ in self._selector.select(left):
                if key.fileobj is self._stdout and not self._fill():
                    last = self._take_line()  # it may have spoken and left
                    return self._died() if last is None else dict(json.loads(last))

    def stop(self, grace: float = 2.0) -> None:
        """Close the process's stdin; after `grace` seconds kill its process group."""
        with contextlib.suppress(BrokenPipeError, OSError):
            self._stdin.close()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """Kill the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        self._selector.close()
        for file in (self._stdin, self._stdout, self._log_file):
            with contextlib.suppress(BrokenPipeError, OSError):
                file.close()

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _fill(self) -> bool:
        """Read what is there; false at end of file."""
        data = os.read(self._stdout.fileno(), 1 << 20)
        self._buffer += data
        return bool(data)

    def _died(self) -> Died:
        returncode = self._process.wait()
        self.kill()
        return Died(returncode, self._last_words())

    def _last_words(self) -> str:
        """Return the last line that the worker logged since the last request, or its fault."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._mark)
                text = file.read(1 << 16).decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        fatal = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python")), None)
        if fatal is not None:
            frame = next((line for line in lines[fatal:] if line.startswith("File ")), "")
            lines = [f"{lines[fatal]} {frame}".strip()]
        return lines[-1][-_LAST_WORDS:] if lines else ""
