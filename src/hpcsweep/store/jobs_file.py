"""A submission's journal, `jobs.jsonl`: one entry a line, which says what was started.

The first key of an entry says of which kind it is. Times are UTC in ISO 8601, of local runs seconds
since the epoch. Chunks stand there as in ``0-2,5``.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcsweep.processes import Identity  # noqa: TC001 - `typed_json` asks for it
from hpcsweep.store import typed_json

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Started:
    """A process on the submitting machine runs the submission."""

    process: Identity
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """That process is through."""

    ended: float


@dataclass(frozen=True, kw_only=True)
class Sending:
    """Sbatch is about to be asked for an array; as the last entry: its answer was lost."""

    sending: int  # first chunk
    tasks: int
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class Queued:
    """An array is in the queue; its task 0 runs `first_chunk`."""

    job_id: str
    first_chunk: int = 0
    tasks: int = 0
    submitted_at: str = ""


@dataclass(frozen=True, kw_only=True)
class NotSent:
    """The array that was last asked for is not in the queue."""

    not_sent: int  # first chunk
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """The chunks whose tasks `hpcsweep cancel` ended."""

    cancelled: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Over:
    """How tasks ended that are no longer in the queue."""

    over: dict[str, str]  # Slurm's state, or LOST: its chunks
    at: str = ""


Entry = Started | Ended | Sending | Queued | NotSent | Cancelled | Over
_KINDS: Final[dict[str, type[Entry]]] = {
    "process": Started,
    "ended": Ended,
    "sending": Sending,
    "job_id": Queued,
    "not_sent": NotSent,
    "cancelled": Cancelled,
    "over": Over,
}


def read(path: Path) -> list[Entry]:
    """Return the entries; torn and damaged lines, and those of newer versions, are left out."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [entry for line in lines if (entry := _entry(line)) is not None]


def append(path: Path, entry: Entry) -> None:
    """Add an entry, synced before this returns."""
    with path.open("ab+") as file:
        file.seek(max(file.tell() - 1, 0))
        torn = file.read() not in {b"", b"\n"}
        file.write(b"\n" * torn + json.dumps(typed_json.write(entry)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _entry(line: bytes) -> Entry | None:
    try:
        record = json.loads(line)
        kind = next((kind for key, kind in _KINDS.items() if key in record), None)
        return typed_json.read(kind, record) if kind else None
    except (ValueError, TypeError, AttributeError):
        return None
