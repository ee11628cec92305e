"""Whether a task that was sent may still write rows: the one answer that every command goes by.

A job's number means something only on the cluster that gave it, and what squeue prints counts only
for a job that works in the submission's folder. A task that cannot be seen from here (another
cluster has it, or another user's jobs are hidden, or squeue is wrong) is live as long as it may be:
for the time limit of its job since it was sent, or since its attempt last gave a sign of life.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from hpcsweep.store import attempt
from hpcsweep.store.state import AttemptState

if TYPE_CHECKING:
    from hpcsweep import slurm
    from hpcsweep.tracking.journal import Answer, Sent

GRACE: Final = timedelta(minutes=10)  # for so long Slurm may not yet list a task
_BEATS: Final = timedelta(minutes=2)  # an attempt touches its files more often than that
_ENDED: Final = frozenset({AttemptState.DONE, AttemptState.REFUSED})  # not to be requeued
_ELSEWHERE: Final = "REVOKED"  # of a federation's cluster: another one runs it


@dataclass(frozen=True)
class Verdict:
    """Whether a task may still write rows, and what says so."""

    live: bool
    job: slurm.JobState | None = None  # by Slurm's word on it
    why: str = ""  # by its signs of life: why Slurm's word is not enough
    until: str = ""  # and how long it counts as live then
    elsewhere: bool = False  # on another cluster: whatever is asked here is not about it


def of_chunk(chunk: int, known: Sent, answer: Answer) -> Verdict:
    """Say whether the task of a chunk may still write rows."""
    task, here = known.task_of[chunk], answer.here
    if known.is_elsewhere(here):
        return _by_signs(chunk, known, f"on {known.place(here)}: ask there", elsewhere=True)
    if task[2] in answer.mute:
        return Verdict(live=True, why="squeue could not be asked")
    job = answer.tasks.get(task)
    is_its_own = job is not None and known.owns(job) and job.state.name != _ELSEWHERE
    if job and is_its_own and (job.state.over or job.source == "squeue"):
        return Verdict(not job.state.over, job)
    if job is None and chunk in known.cancelled_at:
        return Verdict(live=False)
    allowed = None
    if known.is_mine(here) and task in answer.denied | answer.agreed:
        allowed = _BEATS if task in answer.denied else GRACE
    return _by_signs(chunk, known, _doubt(known, job, here), allowed=allowed)


def _doubt(known: Sent, job: slurm.JobState | None, here: slurm.Here) -> str:
    """Return why what Slurm lists does not settle whether a task is over."""
    if job is None:
        whose = f" (sent by {known.origin.user})" if known.is_anothers(here) else ""
        return f"Slurm does not list its job{whose}"
    if not known.owns(job):
        return f"{job.id} is another job here, in {job.folder}"
    if job.state.name == _ELSEWHERE:
        return "another cluster of the federation has it"
    return f"squeue does not list its job, and sacct calls it {job.state.name}"


def of_unanswered(known: Sent, answer: Answer) -> Verdict:
    """Say whether chunks may be live for which sbatch's answer was lost, or which are in doubt."""
    if known.is_elsewhere(answer.here) or known.is_anothers(answer.here):
        return _by_signs(None, known, f"sbatch's answer was lost on {known.place(answer.here)}")
    return Verdict(live=True)


def _by_signs(
    chunk: int | None,
    known: Sent,
    why: str,
    *,
    allowed: timedelta | None = None,
    elsewhere: bool = False,
) -> Verdict:
    """Say whether a task that is not to be seen may run, by what its attempts and its time say."""
    newest = known.newest.get(-1 if chunk is None else chunk)
    said = attempt.read(newest)
    if newest is not None and ((said and said.state in _ENDED) or attempt.is_fence(newest)):
        return Verdict(live=False, why=why, elsewhere=elsewhere)
    signs = [newest.overall, newest.samples] if newest else []
    sent = known.submitted_at.timestamp() if allowed is not _BEATS else 0.0
    limit = allowed or known.time_limit + GRACE
    left = limit.total_seconds() - attempt.silence(known.submission.path, signs, sent)
    until = datetime.now(timezone.utc) + timedelta(seconds=left)
    told = f"{until:%Y-%m-%dT%H:%MZ}"
    return Verdict(live=left > 0, why=why, until=told, elsewhere=elsewhere)
