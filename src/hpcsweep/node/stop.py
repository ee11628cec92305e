"""When to stop: a signal that came, or a parent that went."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Final

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stop:
    """Whether and why to stop: a signal that came, or a parent that went."""

    def __init__(self, *, lifeline: bool) -> None:
        """Prepare; nothing is installed before the context is entered."""
        self._lifeline = lifeline
        self.reason = ""
        self.orphaned = False
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self.fd, False)

    def __enter__(self) -> Stop:  # noqa: PYI034 - Self needs Python 3.11
        """Install handlers and the watch on the lifeline."""
        for number in _STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        if self._lifeline:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Leave the handlers in place: the process is about to end."""

    def wanted(self) -> bool:
        """Say whether to stop."""
        return bool(self.reason)

    def left_alone(self) -> bool:
        """Say whether the parent went; a signal that came again is let pass."""
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
