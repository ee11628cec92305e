"""The lock of a results folder, which submit and collect hold.

Jobs never take it, since locks on shared file systems break or hang. Where the file system has no
locks, the existence of the file is the lock, and a process that is killed on another host leaves it
behind: the message says how to remove it.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from hpcsweep import files, processes
from hpcsweep.errors import Busy, ResultsError
from hpcsweep.files import cannot_write
from hpcsweep.processes import Identity
from hpcsweep.store import manifest, typed_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcsweep.store.folders import SweepDir


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds the lock, its command, and since when (UTC, ISO 8601)."""

    what: str = ""
    since: str = ""
    process: Identity = field(default_factory=Identity)

    def __str__(self) -> str:
        if not self.what:
            return "another process"
        who = f"process {self.process.pid} on {self.process.host}"
        return f"{self.what}, {who}, since {self.since[:16]}Z"


@contextmanager
def held(sweep_dir: SweepDir, what: str, timeout: float = 10.0) -> Iterator[None]:
    """Hold the sweep folder's lock for the command `what`; remove a folder that is empty after it.

    `Busy` where another process held it for `timeout` seconds, `ResultsError` where the folder
    cannot be written or has a newer layout.
    """
    manifest.check_layout(sweep_dir.path)
    lock = FileLock(sweep_dir.lock)
    holder_file = sweep_dir.lock.with_name(".lock-holder")
    try:
        made = [path for path in (sweep_dir.path, sweep_dir.path.parent) if not path.exists()]
        sweep_dir.path.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():  # filelock warns where the file system has no locks
            warnings.simplefilter("ignore")
            lock.acquire(timeout=timeout)
    except Timeout:
        what = (
            f"locked for more than {timeout:g} s by {_holder(holder_file)}; wait for it, or end it"
        )
        again = ", and run this command again"
        with suppress(OSError):  # where the file system has no locks, the file is it: it has text
            if sweep_dir.lock.stat().st_size:
                again = f"{again}. If that process is gone, remove {sweep_dir.lock}"
        raise Busy(f"{sweep_dir.path}: {what}{again}") from None
    except OSError as error:
        raise cannot_write(sweep_dir.path, error) from error
    try:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with suppress(ResultsError):  # the holder's name is only for messages
            holder = Holder(what=what, since=now, process=processes.identity())
            files.write_json(holder_file, typed_json.to_plain(holder), lasting=False)
        manifest.check_layout(sweep_dir.path)  # again: a newer program may have held the lock
        sweep_dir.see_anew()  # so may another host
        yield
        if sweep_dir.submissions_dir.is_dir():
            manifest.keep_layout(sweep_dir.path)
    finally:
        holder_file.unlink(missing_ok=True)
        with suppress(OSError):  # a folder for which nothing was made but the lock
            if os.listdir(sweep_dir.path) == [sweep_dir.lock.name]:  # noqa: PTH208 - names
                sweep_dir.lock.unlink()
        lock.release()
        for path in (sweep_dir.path, *made[1:]):
            with suppress(OSError):
                path.rmdir()


def _holder(path: Path) -> Holder:
    try:
        return typed_json.from_plain(Holder, files.read_json(path))
    except (ResultsError, ValueError):
        return Holder()
