"""Asks Slurm about open tasks, and says which may still write rows, by files of attempts, too.

One question goes to each cluster's queue, one to its accounts. Squeue decides. What it does not
list lives for two minutes since it was sent, or since its attempt last gave a sign of life. A wrong
verdict costs the time of a chunk, not data: attempts are fenced off, and rows ranked. A job id is
valid only on the cluster that gave it, and a line of squeue counts only for a job that works in the
submission's folder. A task that squeue cannot show here (it is on another cluster, or other users'
jobs are hidden) lives for the time limit of its job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Final

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm.journal import Journal, Task, read_journal
from hpcsweep.store import attempt
from hpcsweep.store.folders import SubmissionDir
from hpcsweep.store.state import AttemptState

_LATE: Final = timedelta(minutes=10)  # for so long a job may live beyond its time limit
_BEATS: Final = timedelta(minutes=2)  # an attempt touches its files more often than that
_ENDED: Final = frozenset({AttemptState.DONE, AttemptState.REFUSED})  # not to be requeued
_ELSEWHERE: Final = "REVOKED"  # of a federation's cluster: another one runs it
_NOWHERE: Final = slurm.Here()


@dataclass(frozen=True)
class SlurmAnswer:
    """Slurm's answer about the tasks of submissions, and which of its programs gave none."""

    tasks: Mapping[Task, slurm.JobState] = field(default_factory=dict)
    attempts: tuple[slurm.JobState, ...] = ()
    unanswered: tuple[slurm.CouldNotAsk, ...] = ()
    here: slurm.Here = _NOWHERE

    @property
    def mute(self) -> bool:
        """Whether squeue gave no answer."""
        return any(why.program == "squeue" for why in self.unanswered)

    def live_chunks_of(self, submission: SubmissionDir) -> set[int]:
        """Return the chunks of a submission that may still write rows, by its journal of now."""
        return live_chunks(self, read_journal(submission))


def ask_slurm(submissions: Iterable[SubmissionDir]) -> SlurmAnswer:
    """Ask Slurm once about all tasks that may not be over."""
    return ask_journals(map(read_journal, submissions))


def ask_journals(journals: Iterable[Journal]) -> SlurmAnswer:
    """Ask Slurm once about all tasks in journals that may not be over.

    `liveness` ignores the answer about ids that another cluster gave.
    """
    unclear = [journal for journal in journals if journal.open_chunks or journal.uncertain]
    if not unclear:
        return SlurmAnswer()
    arrays = [array for journal in unclear if journal.open_chunks for array in journal.arrays]
    since = min(journal.submitted_at for journal in unclear)
    with ThreadPoolExecutor(1) as pool:  # if slurmctld is down, each question waits for a timeout
        future = pool.submit(slurm.this_cluster)
        found = slurm.survey(arrays, since)
        here = future.result()
    return SlurmAnswer(found.jobs, found.attempts, found.unanswered, here)


@dataclass(frozen=True)
class Liveness:
    """Whether a task may still write rows, and the evidence."""

    live: bool
    job: slurm.JobState | None = None  # Slurm's entry, where that decides
    why: str = ""  # else why Slurm's entry does not decide
    until: str = ""  # and until when the task counts as live, by its signs of life
    elsewhere: bool = False  # on another cluster: this cluster's Slurm cannot know it


def liveness(chunk: int, journal: Journal, answer: SlurmAnswer) -> Liveness:
    """Say whether the task of a chunk may still write rows."""
    task = journal.task_of[chunk]
    if answer.mute:
        return Liveness(live=True, why="squeue could not be asked")
    job = answer.tasks.get(task) or answer.tasks.get((task[0], None))
    is_revoked = job is not None and job.state.name == _ELSEWHERE
    owned = job is not None and journal.owns(job)
    if job and owned and not is_revoked and (job.state.over or job.source == "squeue"):
        return Liveness(not job.state.over, job)
    if chunk in journal.cancelled_at and (job is None or job.source == "sacct"):
        return Liveness(live=False)  # the accounts learn of it later
    allowed = _BEATS if journal.is_mine(answer.here) and not is_revoked else None
    if journal.is_others(answer.here):
        why = f"on {journal.place}: ask there"
        return _by_signs(chunk, journal, why, elsewhere=True)
    why = "Slurm does not list its job"
    if job and not owned:
        why = f"{job.id} is another job here, in {job.folder}"
    return _by_signs(chunk, journal, why, allowed)


def liveness_of_unanswered(journal: Journal, answer: SlurmAnswer) -> Liveness:
    """Say whether chunks may be live whose entry in the journal is incomplete or damaged."""
    if journal.is_others(answer.here):
        return _by_signs(None, journal, f"sbatch's answer was lost on {journal.place}")
    return Liveness(live=True)


def _by_signs(
    chunk: int | None,
    journal: Journal,
    why: str,
    allowed: timedelta | None = None,
    *,
    elsewhere: bool = False,
) -> Liveness:
    """Say whether an unseen task may run, by its attempts' files and its time limit."""
    newest = journal.newest.get(-1 if chunk is None else chunk)
    record = attempt.read_record(newest)
    if newest is not None and ((record and record.state in _ENDED) or attempt.is_fence(newest)):
        return Liveness(live=False, why=why, elsewhere=elsewhere)
    signs = [newest.overall, newest.samples] if newest else []
    sent = journal.submitted_at.timestamp()
    limit = allowed or journal.time_limit + _LATE
    left = limit.total_seconds() - attempt.silence(journal.submission.path, signs, sent)
    until = datetime.now(timezone.utc) + timedelta(seconds=left)
    shown = f"{until:%Y-%m-%dT%H:%MZ}"
    return Liveness(live=left > 0, why=why, until=shown, elsewhere=elsewhere)


def live_chunks(answer: SlurmAnswer, journal: Journal) -> set[int]:
    """Return the chunks of a submission that may still write rows."""
    live = {chunk for chunk in journal.open_chunks if liveness(chunk, journal, answer).live}
    if journal.uncertain and liveness_of_unanswered(journal, answer).live:
        live |= journal.uncertain
    return live
