"""Waits for what another process does: polls with a deadline, and fails with what it saw last.

A test never sleeps for as long as something should take: on a busy machine it takes longer.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

Seen = TypeVar("Seen")
_SECONDS = 60.0  # what takes a second on a quiet machine, beside a whole suite on two cores
_POLL_SECONDS = 0.02
_PATIENCES = (0.5, 4.0, 32.0)  # seconds: the first is enough on a quiet machine


def wait_for(
    what: str,
    look: Callable[[], Seen],
    *,
    seconds: float = _SECONDS,
    enough: Callable[[Seen], object] = bool,
    told: Callable[[], Any] | None = None,
) -> Seen:
    """Return what `look` sees as soon as that is `enough`.

    `told` adds to the message what else there is to see.

    Raises:
        AssertionError: it was not within `seconds`; says what was seen last.
    """
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if enough(seen):
            return seen
        if time.monotonic() > deadline:
            also = f"; {told()}" if told else ""
            raise AssertionError(f"no {what} within {seconds:g} s; last seen: {seen!r}{also}")
        time.sleep(_POLL_SECONDS)


def given_time(ask: Callable[[float], Seen], has_begun: Callable[[], object]) -> tuple[float, Seen]:
    """Let `ask` end a program after some seconds; return the first that were enough to begin, too.

    A program that is ended early on a busy machine may not have said its first word.
    """
    for seconds in _PATIENCES:
        answer = ask(seconds)
        if has_begun():
            return seconds, answer
    raise AssertionError(f"it did not begin within {seconds:g} s; the last answer: {answer!r}")


def has_heard(pid: int, number: signal.Signals) -> bool:
    """Say whether a signal that was sent to a process does not wait for it any more (proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)$", status, re.MULTILINE)
    return not any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that nobody waited for does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
