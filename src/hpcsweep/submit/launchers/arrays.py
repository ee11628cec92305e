"""Sends the chunks of a submission as job arrays; the launcher submits each array.

The journal notes each array before sbatch is asked, and then the answer, so that an array whose
answer was lost can be found again. At a limit on submitted jobs, smaller arrays are tried. The next
`hpcsweep submit` sends the chunks that did not go in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcsweep import slurm
from hpcsweep.errors import HpcsweepError, PartlySubmitted
from hpcsweep.tracking import journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.store.rundir import SubmissionDir

    SubmitOne = Callable[[int, int], str]  # first chunk, number of tasks: id of the array

_MAX_ARRAY_SIZE: Final = 1001  # Slurm's default, where it cannot be asked


def send(submission: SubmissionDir, submit_one: SubmitOne) -> list[str]:
    """Submit every chunk; return the ids of the arrays.

    Raises:
        PartlySubmitted: something stopped it after some chunks went in.
        SchedulerError: nothing went in.
    """
    total = submission.read_manifest().chunks
    sent, size, here = 0, max_size(), slurm.here()
    ids: list[str] = []
    while sent < total:
        size = min(size, total - sent)
        journal.sending(submission, sent, size, here)
        try:
            job = submit_one(sent, size)
        except HpcsweepError as error:
            if not slurm.maybe_accepted(error):
                journal.not_sent(submission, sent)
            if isinstance(error, slurm.LimitReached) and _smaller_may_fit(error, size):
                size //= 2
                continue
            if not sent:
                raise
            raise PartlySubmitted(f"{sent} of {total} chunks went in; {error}") from error
        journal.went_in(submission, sent, size, job, here)
        ids.append(job)
        sent += size
    return ids


def max_size() -> int:
    """Return how many tasks one array may have: MaxArraySize limits the index."""
    asked = slurm.config()
    found = None if isinstance(asked, slurm.CouldNotAsk) else asked.get("MaxArraySize")
    return max(1, slurm.number(found) or _MAX_ARRAY_SIZE)


def _smaller_may_fit(error: slurm.LimitReached, size: int) -> bool:
    return size > 1 and error.limit != "MaxJobCount"  # sbatch is slow to tell that one
