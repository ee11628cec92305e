"""The lock around the two critical sections of the submitting host: submit and collect.

Jobs never take it: locks on shared file systems break or hang, so nothing that measures may wait
for one.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from hpcsweep.errors import Busy
from hpcsweep.files import cannot_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.store.rundir import RunDir


@contextmanager
def held(run: RunDir, what: str, timeout: float = 10.0) -> Iterator[None]:
    """Hold the run folder's lock while doing `what`.

    Raises:
        Busy: another process held it for `timeout` seconds; the text says which.
        ResultsError: the folder cannot be written.

    """
    holder = run.lock.with_name(".lock-holder")
    lock = FileLock(run.lock)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=timeout)
    except Timeout:
        raise Busy(
            f"{run.path}: locked for more than {timeout:g} s by {_holder(holder)}; "
            "wait for it, or end it, and run this command again"
        ) from None
    except OSError as error:
        raise cannot_write(run.path, error) from error
    try:
        with suppress(OSError):  # it only serves a message
            holder.write_text(f"{what}, process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _holder(path: os.PathLike[str]) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - any path-like
            return file.read().strip() or "another process"
    except OSError:
        return "another process"
