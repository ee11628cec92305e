"""Runs a program for a limited time, and ends it with what it started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.gpu import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAST_WORDS_S: Final = 4.0  # `hpcsweep submit` ends its workers, and a step writes its file


@dataclass(frozen=True)
class Ended:
    """How a program ended: its status, None if its time was over; what it printed, if kept."""

    status: int | None
    said: str = ""
    errors: str = ""

    def __str__(self) -> str:
        return "its time over" if self.status is None else f"status {self.status}"


def run(
    command: Sequence[str],
    seconds: float,
    environ: Mapping[str, str] | None = None,
    *,
    listen: bool = False,
) -> Ended:
    """Run a command in the source tree; `listen` keeps what it prints.

    When its time is over it is asked to end, and then killed. Without `listen` all that it started
    ends with it; with `listen` it stays in the group of this process, which ends it together.
    """
    pipe = subprocess.PIPE if listen else None
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=not listen,
    ) as child:
        try:
            said, errors = child.communicate(timeout=max(seconds, 0.1))
            return Ended(child.returncode, said or "", errors or "")
        except subprocess.TimeoutExpired:
            _signal(child, signal.SIGTERM, alone=listen)
            with suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=LAST_WORDS_S)
            return Ended(None)
        finally:
            _signal(child, signal.SIGKILL, alone=listen)


def _signal(child: subprocess.Popen[str], number: int, *, alone: bool) -> None:
    if alone:
        child.send_signal(number)  # does nothing when it has ended
        return
    with suppress(ProcessLookupError):  # nobody of its group is left
        os.killpg(child.pid, number)
