"""Sends every chunk of a submission as job arrays, whatever it is that submits one.

Each array is in the journal as soon as it is in the queue. Where a limit on submitted jobs is hit,
smaller arrays are tried; chunks that did not go in are sent by the next `hpcsweep submit`.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from hpcsweep import slurm
from hpcsweep.errors import PartlySubmitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.rundir import SubmissionDir

    SubmitOne = Callable[[int, int], str]  # first chunk, number of tasks: id of the array

_MAX_ARRAY_SIZE: Final = 1001  # Slurm's default, where it cannot be asked


def send(submission: SubmissionDir, submit_one: SubmitOne) -> list[str]:
    """Submit every chunk; return the ids of the arrays.

    Raises:
        PartlySubmitted: something stopped it after some chunks went in.
        SchedulerError: nothing went in.

    """
    total = int(submission.read_manifest()["chunks"])
    sent, size = 0, max_size()
    ids: list[str] = []
    while sent < total:
        size = min(size, total - sent)
        try:
            job = submit_one(sent, size)
        except slurm.LimitReached as error:
            if size > 1 and error.limit != "MaxJobCount":  # sbatch is slow to tell that one
                size //= 2
                continue
            if not sent:
                raise
            raise _partly(sent, total, error) from error
        except slurm.Rejected as error:
            if not sent:
                raise
            raise _partly(sent, total, error) from error
        submission.append_job(
            {
                "job_id": job,
                "first_chunk": sent,
                "tasks": size,
                "submitted_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
        )
        ids.append(job)
        sent += size
    return ids


def max_size() -> int:
    """Return how many tasks one array may have; the setting caps the index."""
    asked = slurm.config()
    found = None if isinstance(asked, slurm.CouldNotAsk) else asked.get("MaxArraySize")
    return max(1, slurm.number(found) or _MAX_ARRAY_SIZE)


def _partly(sent: int, total: int, error: Exception) -> PartlySubmitted:
    return PartlySubmitted(f"{sent} of {total} chunks went in; {error}")
