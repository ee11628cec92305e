"""Decides the state of a chunk from its rows, its attempts' files, the journal and Slurm.

Rows come first: a chunk whose points all have one is done, whatever Slurm says of its job. Next
comes whether its task may still write rows (`liveness`, which every command uses), then how the
task ended.

A job id is valid only on the cluster that gave it, and a line of squeue counts only for a job that
works in the submission's folder. A task that cannot be seen from here (it is on another cluster,
other users' jobs are hidden, or squeue is wrong) counts as live for the time limit of its job since
it was sent, or since its attempt last gave a sign of life.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import Meaning
from hpcsweep.records import dataclass
from hpcsweep.store import attempt
from hpcsweep.store.jobs_file import CANCELLED, LOST
from hpcsweep.store.state import AttemptState, ChunkState

if TYPE_CHECKING:
    from hpcsweep.cluster.journal import Journal, SlurmAnswer
    from hpcsweep.store.folders import ShardPath

GRACE: Final = timedelta(minutes=10)  # for so long Slurm may not yet list a task
_BEATS: Final = timedelta(minutes=2)  # an attempt touches its files more often than that
_ENDED: Final = frozenset({AttemptState.DONE, AttemptState.REFUSED})  # not to be requeued
_ELSEWHERE: Final = "REVOKED"  # of a federation's cluster: another one runs it


@dataclass(frozen=True)
class ChunkStatus:
    """The state of a chunk, the reason, and what to change if its job can never start."""

    state: ChunkState
    why: str = ""
    to_change: str = ""
    unseen: bool = False  # this squeue does not show its job; `why` says where to ask


ANSWER_LOST: Final = ChunkStatus(
    ChunkState.UNKNOWN, "sbatch's answer was lost; submit again to find out"
)
DOUBTFUL: Final = ChunkStatus(
    ChunkState.UNKNOWN, "a line of the journal is damaged; submit again to find out"
)
UNCERTAIN: Final = (ANSWER_LOST, DOUBTFUL)
_UNSENT: Final = ChunkStatus(
    ChunkState.UNSENT, "a limit on submitted jobs was reached; submit again"
)


def of_chunk(  # noqa: PLR0913 - each source of evidence
    chunk: int,
    journal: Journal,
    answer: SlurmAnswer,
    newest: ShardPath | None,
    *,
    missing: int = 1,
    runs_here: bool | None = None,
) -> ChunkStatus:
    """Return the state of a chunk of which `missing` points lack rows.

    `newest` is its latest attempt. `runs_here` is None for a submission to Slurm, else whether the
    local submission runs.
    """
    if not missing:
        return ChunkStatus(ChunkState.DONE)
    if runs_here is not None:
        return _here(newest, live=runs_here)
    if chunk not in journal.task_of:
        unknown = DOUBTFUL if chunk in journal.doubtful else _UNSENT
        return ANSWER_LOST if chunk in journal.unsure else unknown
    verdict = liveness(chunk, journal, answer)
    if chunk in journal.open_chunks and verdict.live:
        return _live(verdict.job, newest) if verdict.job else _unseen(verdict, newest)
    return _ended(chunk, journal, verdict.job, newest)


def _ended(
    chunk: int, journal: Journal, job: slurm.JobState | None, newest: ShardPath | None
) -> ChunkStatus:
    if chunk in journal.cancelled_at:
        return ChunkStatus(ChunkState.CANCELLED, "by `hpcsweep cancel`; submit again to continue")
    if job is not None and job.state.over:
        return _over(job.state, newest, job.exit_code)
    name = journal.over.get(chunk)
    if name not in {None, LOST, CANCELLED}:
        return _over(slurm.state_of(str(name)), newest, None)
    record = attempt.read_record(newest)  # without an end state from Slurm
    if record and record.state is AttemptState.REFUSED:
        return ChunkStatus(ChunkState.FAILED, record.reason)
    if record and record.state is AttemptState.STOPPED:
        why = "; ".join(filter(None, (record.reason, "submit again to continue")))
        return ChunkStatus(ChunkState.STOPPED, why)
    return ChunkStatus(ChunkState.LOST, "Slurm does not list its job; submit again")


def _here(newest: ShardPath | None, *, live: bool) -> ChunkStatus:
    record = attempt.read_record(newest)
    if record and record.state is AttemptState.REFUSED:
        return ChunkStatus(ChunkState.FAILED, record.reason)
    if live:
        return ChunkStatus(_running_or_pending(newest))
    return ChunkStatus(ChunkState.STOPPED, "submit again to continue")


def _running_or_pending(newest: ShardPath | None) -> ChunkState:
    record = attempt.read_record(newest)
    runs = record is not None and record.state is AttemptState.RUNNING
    return ChunkState.RUNNING if runs else ChunkState.PENDING


def _live(job: slurm.JobState, newest: ShardPath | None) -> ChunkStatus:
    state = _state_of(job.state)
    if state is ChunkState.UNKNOWN:
        return ChunkStatus(state, f"Slurm says {job.state.name}")
    if state is ChunkState.PENDING and newest is not None:  # Slurm calls a requeued job pending
        state = ChunkState.REQUEUED
    to_change = "" if state is ChunkState.RUNNING else slurm.in_vain(job.reason)
    return ChunkStatus(state, job.reason, to_change)


def _over(state: slurm.State, newest: ShardPath | None, code: int | None) -> ChunkStatus:
    record = attempt.read_record(newest)
    if record and record.state is AttemptState.REFUSED:
        return ChunkStatus(_state_of(state), record.reason)
    exit_code = f" ({code})" if code and state.name == "FAILED" else ""
    return ChunkStatus(_state_of(state), f"{state.name}: {state.says}{exit_code}")


def _unseen(verdict: Liveness, newest: ShardPath | None) -> ChunkStatus:
    """Return the state of a chunk that may be live, and that this squeue does not show."""
    if not verdict.until:
        return ChunkStatus(ChunkState.UNKNOWN, verdict.why)
    if verdict.elsewhere:
        state = _running_or_pending(newest)
        doing = "runs" if state is ChunkState.RUNNING else "queued"
        return ChunkStatus(state, f"{doing} {verdict.why}", unseen=True)
    why = f"{verdict.why}; counts as live until {verdict.until}"
    return ChunkStatus(ChunkState.MAYBE_LOST, why, unseen=True)


def _state_of(state: slurm.State) -> ChunkState:
    """Translate Slurm's state; a job that completed without all its rows has failed."""
    done = state.meaning is Meaning.DONE
    return ChunkState.FAILED if done else ChunkState(state.meaning.value)


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
    here = answer.here
    if journal.is_elsewhere(here):
        return _by_signs(chunk, journal, f"on {journal.place(here)}: ask there", elsewhere=True)
    if task[2] in answer.mute:
        return Liveness(live=True, why="squeue could not be asked")
    job = answer.tasks.get(task)
    is_its_own = job is not None and journal.owns(job) and job.state.name != _ELSEWHERE
    if job and is_its_own and (job.state.over or job.source == "squeue"):
        return Liveness(not job.state.over, job)
    if job is None and chunk in journal.cancelled_at:
        return Liveness(live=False)
    allowed = None
    if journal.is_mine(here) and task in answer.denied | answer.agreed:
        allowed = _BEATS if task in answer.denied else GRACE
    return _by_signs(chunk, journal, _doubt(journal, job, here), allowed=allowed)


def _doubt(journal: Journal, job: slurm.JobState | None, here: slurm.Here) -> str:
    """Return why Slurm's list does not decide whether a task is over."""
    if job is None:
        whose = f" (sent by {journal.origin.user})" if journal.is_anothers(here) else ""
        return f"Slurm does not list its job{whose}"
    if not journal.owns(job):
        return f"{job.id} is another job here, in {job.folder}"
    if job.state.name == _ELSEWHERE:
        return "another cluster of the federation has it"
    return f"squeue does not list its job, and sacct calls it {job.state.name}"


def liveness_of_unanswered(journal: Journal, answer: SlurmAnswer) -> Liveness:
    """Say whether chunks may be live whose entry in the journal is incomplete or damaged."""
    if journal.is_elsewhere(answer.here) or journal.is_anothers(answer.here):
        return _by_signs(None, journal, f"sbatch's answer was lost on {journal.place(answer.here)}")
    return Liveness(live=True)


def _by_signs(
    chunk: int | None,
    journal: Journal,
    why: str,
    *,
    allowed: timedelta | None = None,
    elsewhere: bool = False,
) -> Liveness:
    """Say whether an unseen task may run, by its attempts' files and its time limit."""
    newest = journal.newest.get(-1 if chunk is None else chunk)
    record = attempt.read_record(newest)
    if newest is not None and ((record and record.state in _ENDED) or attempt.is_fence(newest)):
        return Liveness(live=False, why=why, elsewhere=elsewhere)
    signs = [newest.overall, newest.samples] if newest else []
    sent = journal.submitted_at.timestamp() if allowed is not _BEATS else 0.0
    limit = allowed or journal.time_limit + GRACE
    left = limit.total_seconds() - attempt.silence(journal.submission.path, signs, sent)
    until = datetime.now(timezone.utc) + timedelta(seconds=left)
    shown = f"{until:%Y-%m-%dT%H:%MZ}"
    return Liveness(live=left > 0, why=why, until=shown, elsewhere=elsewhere)
