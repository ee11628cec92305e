"""Whether to stop: after a signal, or when the launcher is gone."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Final

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stop:
    """Whether and why to stop; entering the context installs the signal handlers.

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

    def __enter__(self) -> Stop:  # noqa: PYI034 - Self needs Python 3.11
        for number in _STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        if self._lifeline:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        pass  # the handlers stay, since the process is about to end

    def wanted(self) -> bool:
        """Say whether to stop."""
        return bool(self.reason)

    def launcher_is_gone(self) -> bool:
        """Say whether the launcher is gone; signals that came meanwhile are forgotten."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 64):
                pass
        return self.orphaned

    def _on_signal(self, number: int, _frame: object) -> None:
        self.reason = self.reason or signal.Signals(number).name
        self._wake()

    def _watch(self) -> None:
        while os.read(0, 64):
            pass
        self.orphaned, self.reason = True, "the launcher is gone"
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._write, b"x")
