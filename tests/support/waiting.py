"""Waits for what another process does: polls with a deadline, and fails with what it saw last.

A test never sleeps for as long as something should take: on a busy machine it takes longer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

Seen = TypeVar("Seen")
_SECONDS = 60.0  # what takes a second on a quiet machine, beside a whole suite on two cores
_POLL_SECONDS = 0.02


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


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that nobody waited for does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
