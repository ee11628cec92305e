"""Runs a program for a limited time, and ends it with what it started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

from benchmarks.gpu import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LAST_WORDS_S: Final = 4.0  # `hpcsweep submit` ends its workers, and a step writes its file
DONE: Final = "status 0"
TOO_LATE: Final = "its time over"
SIGNAL: Final = "signal"  # and its number


def run(
    command: Sequence[str],
    seconds: float,
    environ: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> str:
    """Run a command in the source tree and say how it ended; `log` takes what it prints.

    When its time is over it is asked to end, and then killed. All that it started ends with it.
    """
    with (
        log.open("a") if log else nullcontext() as file,
        subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=file, stderr=file, start_new_session=True
        ) as child,
    ):
        try:
            status = child.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(LAST_WORDS_S)
            return TOO_LATE
        finally:
            with suppress(ProcessLookupError):  # nobody of its group is left
                os.killpg(child.pid, signal.SIGKILL)
    return f"{SIGNAL} {-status}" if status < 0 else f"status {status}"
