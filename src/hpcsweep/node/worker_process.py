"""Starts, asks, awaits and kills one worker process of the supervisor. Standard library only.

The template forks it where there is one, else it is a new process.

Requests and replies go through a socket of the worker alone, one JSON object a line. Its stdout and
stderr are the attempt's log, so the output of a network is never a reply. The socket is also the
lifeline: when the supervisor dies, the worker loses its connection and ends at once. The worker's
end is noticed even if its child holds the socket, and its children are ended too.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from hpcsweep import files, processes
from hpcsweep.node.protocol import TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

# Characters, in a cell of the table: the log has the rest.
_LAST_WORDS: Final = 400
# What the C++ runtime prints before it ends the process, as for a CUDA error in a destructor.
_TERMINATE: Final = "terminate called"
_WHAT: Final = "what():  "
# Most replies fit; a larger buffer takes longer to make than to fill.
_READ: Final = 1 << 16
# For a process to end after its socket: it is killed then, and its exit code is not known.
_END_SECONDS: Final = 0.5
# Between two looks at a process that is about to end, as most do in some milliseconds.
_NAP_SECONDS: Final = 0.001
# What is there so long after SIGKILL waits inside the kernel, perhaps for ever.
_KILLED_SECONDS: Final = 10.0
# For Python's tracker of shared memory to end after the worker, without a complaint in the log.
_TIDY_SECONDS: Final = 0.2


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
        if self.by_signal is signal.SIGKILL and not self.last_words:
            return f"{how}: perhaps by the kernel, which kills where memory runs out"
        return f"{how}: {self.last_words}" if self.last_words else how


@dataclass(frozen=True)
class Garbled:
    """The socket received something else than a reply to the request."""

    why: str

    def __str__(self) -> str:
        return f"the worker's reply cannot be trusted: {self.why}"


class TimedOut:
    """No reply within the time given."""


class Interrupted:
    """The supervisor was told to stop while it waited."""


NoReply = Died | Garbled | TimedOut | Interrupted


class Template:
    """The process that forks workers (`node.worker`), from its start to `end`."""

    def __init__(self, log: Path, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs, log.open("ab") as file:
            self._process = _start(theirs, file, env, TEMPLATE)
        self.pid = self._process.pid

    def fork(self, line: socket.socket) -> bool:
        """Let a worker begin with its end of a socket; say whether there is anybody to do it."""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [b"x"], [line.fileno()])
            return self._process.poll() is None
        return False

    def end(self) -> None:
        """End the process, not its workers."""
        self._process.kill()
        self._process.wait()
        self._socket.close()


@dataclass
class _Adopted:
    """A process of the template that became this one's child; for it there is no `Popen`."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


class Worker:
    """A worker process, from its start to `stop`, `kill` or its own end.

    When `wake_fd` becomes readable, `wait` checks again whether to stop.
    """

    def __init__(
        self, log: Path, env: Mapping[str, str], wake_fd: int, template: Template | None = None
    ) -> None:
        self._log = log
        self._log_file: IO[bytes] = log.open("ab")
        self._mark = self._log_file.tell()
        self._template = template
        self._process: subprocess.Popen[bytes] | _Adopted | None = None
        self._buffer = bytearray()
        self._hung_up = False
        self._exit_fd = -1
        self._socket, theirs = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(wake_fd, selectors.EVENT_READ)
        with theirs:
            if not (template and template.fork(theirs)):
                self._watch(_start(theirs, self._log_file, env))

    def _watch(self, process: subprocess.Popen[bytes] | _Adopted) -> None:
        """Let the end of the process end waiting."""
        self._process = process
        # without pidfd the socket alone tells, which a child in C may hold
        with contextlib.suppress(AttributeError, OSError):
            self._exit_fd = os.pidfd_open(process.pid)
            self._selector.register(self._exit_fd, selectors.EVENT_READ)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request; `wait` notices if the worker is dead."""
        self._mark = os.fstat(self._log_file.fileno()).st_size
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(json.dumps(request).encode() + b"\n")

    def wait(self, seconds: float, stopping: Callable[[], bool]) -> dict[str, Any] | NoReply:
        """Return the next reply, or why there is none; give up once `stopping` returns True."""
        until = time.monotonic() + seconds
        while True:
            ended = self._process is not None and self._process.poll() is not None
            while self._fill():
                pass  # a worker that ended may have sent its reply before
            reply = self._take()
            if isinstance(reply, dict) and self._process is None:
                self._watch(_Adopted(reply["pid"]))  # a forked worker says it first
                continue
            if reply is not None:
                return reply
            if ended or self._hung_up:
                return self._died()
            if stopping():
                return Interrupted()
            left = until - time.monotonic()
            if left <= 0:
                return TimedOut()
            self._selector.select(left)

    def is_idle(self) -> bool:
        """Say whether the worker waits for a request."""
        self._fill()
        ended = self._process is None or self._process.poll() is not None
        return not (self._buffer or self._hung_up or ended)

    def stop(self, grace: float = 2.0) -> None:
        """Close the connection; kill its process group when it has ended, or after `grace`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        process = self._process
        if process and _comes(lambda: process.poll() is not None, grace):
            _comes(lambda: not _is_group(process.pid), _TIDY_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process and all that it started, once."""
        if self._socket.fileno() < 0:
            return
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            # what waits inside a broken driver never ends; others need the supervisor
            _comes(lambda: process.poll() is not None, _KILLED_SECONDS)
        processes.end_orphans(self._template.pid if self._template else 0)
        self._selector.close()
        self._socket.close()
        self._log_file.close()
        if self._exit_fd >= 0:
            os.close(self._exit_fd)
            self._exit_fd = -1

    def _fill(self) -> bool:
        """Read the available data; say whether there may be more."""
        try:
            data = self._socket.recv(_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._hung_up = self._hung_up or not data
        self._buffer += data
        return bool(data)

    def _take(self) -> dict[str, Any] | Garbled | None:
        """Return the next line as an object; None if no line is complete."""
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        return reply if isinstance(reply, dict) else Garbled(f"{line[:80]!r} is no JSON object")

    def _died(self) -> Died | Garbled:
        process = self._process
        ended = process and _comes(lambda: process.poll() is not None, _END_SECONDS)
        returncode = process.returncode if process and ended else None
        self.kill()
        if returncode is None:
            return Garbled("the worker closed its socket")
        return Died(returncode, self._last_words(returncode)[-_LAST_WORDS:])

    def _last_words(self, returncode: int) -> str:
        """Return the last line logged since the last request.

        After a fault it is the fault's place; after an exception that ended C++, what that said.
        """
        try:
            with self._log.open("rb") as file:
                said = files.last_lines(file, self._mark)
        except OSError:
            return ""
        lines = [line.strip() for line in said if line.strip()]
        thrown = _thrown(lines) if returncode == -signal.SIGABRT else ""
        if thrown:
            return thrown
        faults = [i for i, line in enumerate(lines) if line.startswith("Fatal Python error")]
        if returncode < 0 and faults:
            trace = lines[faults[-1] :]
            current = [i for i, line in enumerate(trace) if line.startswith("Current thread")]
            after = trace[current[0] :] if current else trace
            frame = next((line for line in after if line.startswith("File ")), "")
            lines = [f"{trace[0]} {frame}".strip()]
        return lines[-1] if lines else ""


def _thrown(lines: Sequence[str]) -> str:
    """Return what C++ printed of the last exception that nobody caught; empty without one."""
    ends = [at for at, line in enumerate(lines) if line.startswith(_TERMINATE)]
    if not ends:
        return ""
    after = lines[ends[-1] : ends[-1] + 2]  # its message stands in the next line, if it has one
    return after[-1].removeprefix(_WHAT) if after[-1].startswith(_WHAT) else after[0]


def _start(
    line: socket.socket, log: IO[bytes], env: Mapping[str, str], *role: str
) -> subprocess.Popen[bytes]:
    """Start a worker, or the template by its role, with its end of a socket."""
    return subprocess.Popen(
        processes.python("hpcsweep.node.worker", line.fileno(), *role),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[line.fileno()],
        env={**os.environ, **env},
        start_new_session=True,  # Ctrl-C in a terminal is the supervisor's business
    )


def _comes(what: Callable[[], bool], seconds: float) -> bool:
    """Wait so many seconds for something; say whether it came."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(_NAP_SECONDS)
    return True


def _is_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
