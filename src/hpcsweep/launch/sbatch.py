"""Sends a submission to Slurm: one array, split at MaxArraySize by an offset of the index.

Each array is in the journal as soon as it is in the queue. Where a limit on submitted jobs is hit,
smaller arrays are tried; chunks that did not go in are sent by the next `hpcsweep submit`.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from hpcsweep import rundir, script, slurm
from hpcsweep.errors import PartlySubmitted

if TYPE_CHECKING:
    from hpcsweep.profile import Profile
    from hpcsweep.rundir import SubmissionDir

_MAX_ARRAY_SIZE: Final = 1001  # Slurm's default, where it cannot be asked


def write(submission: SubmissionDir, profile: Profile) -> None:
    """Write the job script of a submission."""
    with rundir.replacing(submission.script) as file:
        file.write(script.render(profile, submission).encode())


def launch(submission: SubmissionDir, profile: Profile) -> list[str]:
    """Submit every chunk; return the ids of the arrays.

    Raises:
        PartlySubmitted: something stopped it after some chunks went in.
        SchedulerError: nothing went in.

    """
    write(submission, profile)
    total = int(submission.read_manifest()["chunks"])
    sent, size = 0, max_array_size()
    ids: list[str] = []
    while sent < total:
        size = min(size, total - sent)
        try:
            job = slurm.submit(
                submission.script.absolute(), options=options(submission, profile, sent, size)
            )
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
                "job_id": str(job),
                "first_chunk": sent,
                "tasks": size,
                "submitted_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
        )
        ids.append(str(job))
        sent += size
    return ids


def options(submission: SubmissionDir, profile: Profile, first: int, tasks: int) -> list[str]:
    """Return sbatch's options for one array: its folder, its range and the offset."""
    throttle = f"%{profile.array_throttle}" if profile.array_throttle else ""
    return [
        f"--chdir={submission.path.absolute()}",
        "--requeue",
        f"--array=0-{tasks - 1}{throttle}",
        f"--export=ALL,HPCSWEEP_OFFSET={first}",
    ]


def max_array_size() -> int:
    """Return how many tasks one array may have; the setting caps the index."""
    asked = slurm.config()
    found = None if isinstance(asked, slurm.CouldNotAsk) else asked.get("MaxArraySize")
    return max(1, slurm.number(found) or _MAX_ARRAY_SIZE)


def _partly(sent: int, total: int, error: Exception) -> PartlySubmitted:
    return PartlySubmitted(f"{sent} of {total} chunks went in; {error}")
