"""A submission's journal, `jobs.jsonl`: one entry a line for each start, end and cancellation.

The first key of an entry is its kind. Times are UTC in ISO 8601, those of local runs seconds since
the epoch. Lists of chunks look like ``0-2,5``.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files
from hpcsweep.files import cannot_write
from hpcsweep.processes import Identity
from hpcsweep.store import typed_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Started:
    """A process on the submitting machine runs the submission."""

    process: Identity
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The process that ran the submission has ended."""

    ended: float


@dataclass(frozen=True, kw_only=True)
class Sending:
    """Written before a call of sbatch; as the last entry it means that sbatch's answer was lost."""

    sending: int  # first chunk
    tasks: int
    per_task: int = 1
    at: str = ""
    cluster: str = ""
    controller: str = ""
    user: str = ""


@dataclass(frozen=True, kw_only=True)
class Queued:
    """An array is in the queue; its task 0 runs `first_chunk`, or the first `per_task` chunks.

    Its id is valid on its cluster alone. Clusters may share a name, but not a controller.
    """

    job_id: str
    first_chunk: int = 0
    tasks: int = 0  # that is chunks, each with a task of its own, but for:
    per_task: int = 1
    submitted_at: str = ""
    cluster: str = ""
    controller: str = ""  # host:port
    user: str = ""


@dataclass(frozen=True, kw_only=True)
class NotSent:
    """The array of the last call of sbatch is not in the queue."""

    not_sent: int  # first chunk
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """Chunks whose tasks `hpcsweep cancel` ended."""

    cancelled: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Over:
    """The final states of tasks that left the queue."""

    over: dict[str, str]  # Slurm's state, or LOST: its chunks
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class Then:
    """What became of the job after the last array; its command stays out: it may hold secrets.

    `SENDING` as the last of them means that sbatch's answer was lost.
    """

    then: str  # one of the words below, or Slurm's state of a job that is over
    job: str = ""
    at: str = ""


@dataclass(frozen=True)
class Damaged:
    """A line that cannot be read (0: the whole file), and why."""

    line: int
    why: str


CANCELLED: Final = "CANCELLED"  # as Slurm calls it
LOST: Final = "LOST"
# of a `Then`
SENDING: Final = "sending"
QUEUED: Final = "queued"
NOT_SENT: Final = "not sent"
Entry = Started | Ended | Sending | Queued | NotSent | Cancelled | Over | Then
_MOST: Final = 1_000_000  # chunks: no site takes as many tasks, so a larger number is damage
_CHUNKS: Final = re.compile(r"(\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*)?", re.ASCII)
_JOB_ID: Final = re.compile(r"\d{1,18}(_\d{1,18})?(;\S+)?", re.ASCII)
_KINDS: Final[dict[str, type[Entry]]] = {
    "process": Started,
    "ended": Ended,
    "sending": Sending,
    "job_id": Queued,
    "not_sent": NotSent,
    "cancelled": Cancelled,
    "over": Over,
    "then": Then,
}


def read_jobs(path: Path) -> list[Entry | Damaged]:
    """Return entries and damaged lines; skip torn lines and kinds of entries of newer versions."""
    try:
        lines = files.regular_bytes(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Damaged(0, error.strerror or str(error))]
    if not _is_sealed(lines[-1]):  # being written
        lines.pop()
    entries: list[Entry | Damaged] = []
    for number, line in enumerate(lines, 1):
        if not line or _is_torn(line):
            continue
        try:
            entry = _parsed(json.loads(line))
        except (ValueError, RecursionError) as error:
            entries.append(Damaged(number, str(error)))
            continue
        if entry is not None:
            entries.append(entry)
    return entries


def append(path: Path, entry: Entry) -> None:
    """Append an entry, synced before this returns; `ResultsError` where that fails."""
    record = typed_json.sealed(typed_json.to_plain(entry))
    try:
        # not a file of another that is linked in its place
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with os.fdopen(descriptor, "ab+") as file:
            # a writer that was killed left no end of line: its torn entry must not swallow this one
            file.seek(max(file.tell() - 1, 0))
            torn = file.read() not in {b"", b"\n"}
            file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")
            file.flush()
            # before sbatch is called: a lost entry would be a job that nobody knows
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from error


def _is_torn(line: bytes) -> bool:
    """Say whether a line is the beginning of an entry: the disk was full, or its writer killed.

    That command ended with an error; for a job that was sent, the entry before says so. No text in
    an entry has braces.
    """
    is_open = line.startswith(b"{") and line.count(b"{") > line.count(b"}")
    return is_open and not _is_sealed(line)


def _is_sealed(line: bytes) -> bool:
    """Say whether a line has its end, where the checksum stands; it may be damaged before."""
    _, checksum, end = line.rpartition(b'"crc": ')
    return bool(checksum) and len(end) >= len(b'"00000000"}')


def _parsed(record: Any) -> Entry | None:  # noqa: ANN401 - whatever JSON holds
    """Return the entry of a JSON object; None for an unknown kind, `ValueError` for damage."""
    if not isinstance(record, dict):
        raise ValueError("not an object")  # noqa: TRY004 - as for all other damage
    typed_json.prove(record)
    for key, kind in _KINDS.items():
        if key in record:
            entry = typed_json.from_plain(kind, record)
            _check(entry)
            return entry
    return None


def _check(entry: Entry) -> None:
    """Raise `ValueError` where an entry names jobs or chunks that cannot exist."""
    match entry:
        case Sending():
            numbers = [entry.sending, entry.tasks]
            _check_share(entry.per_task)
        case Queued():
            numbers = [entry.first_chunk, entry.tasks]
            _check_share(entry.per_task)
            _match(_JOB_ID, entry.job_id)
        case Then(job=job) if job:
            _match(_JOB_ID, job)
            return
        case Cancelled():
            numbers = _numbers([entry.cancelled])
        case Over():
            numbers = _numbers(entry.over.values())
        case _:
            return
    if any(not 0 <= number <= _MOST for number in numbers):
        raise ValueError(f"no chunks can have the numbers {numbers}")


def _check_share(chunks: int) -> None:
    if not 1 <= chunks <= _MOST:
        raise ValueError(f"no task can have {chunks} chunks")


def _numbers(lists: Iterable[str]) -> list[int]:
    """Return the numbers in lists of chunks; `ValueError` for other text."""
    numbers: list[int] = []
    for chunks in lists:
        _match(_CHUNKS, chunks)
        numbers += map(int, re.findall(r"\d+", chunks))
    return numbers


def _match(form: re.Pattern[str], text: object) -> None:
    if not isinstance(text, str) or not form.fullmatch(text):
        raise ValueError(f"{text!r:.80} names no jobs and no chunks")
