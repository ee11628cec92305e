"""Whether an attempt has to stop, and why: signals, and the end of its launcher."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Final

# Slurm sends USR1 or USR2 ahead of the time limit, TERM for `scancel`, a preemption and the limit
# itself; a local launcher passes Ctrl-C on as TERM. INT is for who starts a supervisor by hand.
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stop:
    """Whether and why to stop, once `listen` has installed the signal handlers.

    With `lifeline`, end-of-file on stdin means that the launcher is gone. `fd` becomes readable at
    each of these events.
    """

    def __init__(self, *, lifeline: bool) -> None:
        self._lifeline = lifeline
        self.reason = ""
        self.orphaned = False
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self.fd, False)

    def listen(self) -> None:
        """Install the handlers, for as long as the process runs."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        if self._lifeline:
            threading.Thread(target=self._watch_stdin, daemon=True).start()

    def wanted(self) -> bool:
        """Say whether to stop."""
        return bool(self.reason)

    def because(self, why: str) -> None:
        """Want a stop; the first reason stands."""
        self.reason = self.reason or why

    def launcher_is_gone(self) -> bool:
        """Say whether the launcher is gone; signals that came meanwhile are forgotten."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 64):
                pass
        return self.orphaned

    def _on_signal(self, number: int, _frame: object) -> None:
        self.because(signal.Signals(number).name)
        self._wake()

    def _watch_stdin(self) -> None:
        while os.read(0, 64):
            pass
        self.orphaned = True
        self.reason = "the launcher is gone"
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full: who waits is awake already
            os.write(self._write, b"x")
