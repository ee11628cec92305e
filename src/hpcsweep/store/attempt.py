"""The record that the supervisor of an attempt keeps: `<chunk>.<attempt>.env.json`.

The supervisor imports this module, so it needs nothing but the standard library.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files
from hpcsweep.errors import ResultsError
from hpcsweep.store import typed_json
from hpcsweep.store.state import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hpcsweep.store.folders import ShardPath

_BEAT_SECONDS: Final = 20.0  # several signs of life fit into the silence that ends an attempt
_SILENT_SECONDS: Final = 120.0  # NFS may show a change a minute late
LEFT_TO_OTHERS: Final = "its points were left to another submission"  # a record's `reason`
# ends the `reason` of an attempt whose job was too short for a point by the estimate's fault
TOO_SHORT: Final = "submit again: the next job asks for the profile's whole `time`"


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """The state of an attempt, its node, and the cells of its machine."""

    state: AttemptState
    reason: str = ""
    pid: int = 0  # of the supervisor
    node: str = ""
    updated_at: str = ""  # UTC, ISO 8601
    slurm: dict[str, str] = field(default_factory=dict)  # Slurm's environment variables
    row: dict[str, Any] = field(default_factory=dict)  # the machine's cells, once a worker is ready


def write_record(shard: ShardPath, record: AttemptRecord, machine: Mapping[str, Any]) -> None:
    """Write the record with the worker's report on its machine; `ResultsError` on a full disk."""
    files.write_json(shard.env, {**typed_json.to_plain(record), **machine})


def read_record(shard: ShardPath | None) -> AttemptRecord | None:
    """Return the record of an attempt; None where there is none, or it is damaged."""
    try:
        return typed_json.from_plain(AttemptRecord, files.read_json(shard.env)) if shard else None
    except (ResultsError, ValueError):
        return None


def fence_off(attempts: Iterable[ShardPath]) -> None:
    """Keep attempts that may still run from further rows by creating their successors' files."""
    newest = {shard.chunk: shard for shard in attempts}  # of each chunk
    for shard in newest.values():
        path = shard.next_attempt().overall
        record = read_record(shard)
        try:
            if record:
                may_run = record.state is AttemptState.RUNNING
            else:  # a fence is an empty file, an attempt has at least a header
                may_run = shard.overall.exists() and shard.overall.stat().st_size > 0
            if may_run:
                path.touch()
        except OSError as error:
            raise files.cannot_write(path, error) from error


def is_fence(shard: ShardPath) -> bool:
    """Say whether this is the file of `fence_off`, and no attempt."""
    try:
        return shard.overall.stat().st_size == 0 and not shard.env.exists()
    except OSError:
        return False


def start_beating(shard: ShardPath, every: float = _BEAT_SECONDS) -> None:
    """Touch a file of the attempt until this process ends, as a sign of life for other hosts."""

    def beat() -> None:
        while True:
            time.sleep(every)
            with suppress(OSError):
                # rows change its time, too: this stands for the time between two rows
                os.utime(shard.samples)

    threading.Thread(target=beat, daemon=True).start()


def beats(folder: Path, touched: Iterable[Path]) -> bool:
    """Say whether a file was touched in the last two minutes, by the clock of `folder`."""
    return silence(folder, touched) < _SILENT_SECONDS


def silence(folder: Path, touched: Iterable[Path], since: float = 0.0) -> float:
    """Return the seconds since a file was last touched, or since `since` if that is later.

    The clock is that of the file system of `folder`, since clocks of two hosts may differ. `Unread`
    where a file cannot be read now.
    """
    latest = since
    for path in touched:
        try:
            latest = max(latest, path.stat().st_mtime)
        except FileNotFoundError:  # noqa: PERF203 - of a few files
            continue
        except OSError as error:
            raise files.cannot_read(path, error) from error
    now = time.time()
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        now = os.fstat(file.fileno()).st_mtime
    return now - latest
