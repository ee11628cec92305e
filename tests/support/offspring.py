"""What tests start hears every signal, and is gone when its module is over."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "HPCSWEEP_TEST_MODULE"
PATIENCE = 60.0  # seconds in which they may end by themselves


def hear_signals() -> None:
    """Be deaf in a way that is not inherited, to what whoever started the tests lets them ignore.

    A script's background job ignores SIGINT, and `nohup` SIGHUP; so would all that it starts.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python ignores both
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextmanager
def all_end(name: str) -> Iterator[None]:
    """Mark every process that is started meanwhile; what does not end afterwards is an error."""
    mark = f"{os.getpid()} {name}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        yield
    if left := _left(mark):
        raise AssertionError(f"left running: {left}")


def _left(mark: str) -> list[str]:
    """Return the commands of what has to be killed."""
    until = time.monotonic() + PATIENCE
    while (found := _marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [*found.values()]


def _marked(mark: str) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if f"\0{MARK}={mark}\0".encode() in b"\0" + (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = command.decode(errors="replace")
    return found
