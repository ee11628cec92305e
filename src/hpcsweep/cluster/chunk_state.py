"""Decides the state of a chunk from its rows, its attempts' files, the journal and Slurm.

Rows come first: a chunk whose points all have one is done, whatever Slurm says of its job. Next
comes whether its task may still write rows (`slurm.journal`, which every command uses), then how
the task ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm.journal import Journal, Liveness, SlurmAnswer, liveness
from hpcsweep.store import attempt
from hpcsweep.store.folders import ShardPath
from hpcsweep.store.jobs_file import CANCELLED, LOST
from hpcsweep.store.state import AttemptState, ChunkState


@dataclass(frozen=True)
class ChunkStatus:
    """The state of a chunk, the reason, and what to change if its job can never start."""

    state: ChunkState
    why: str = ""
    to_change: str = ""
    unseen: bool = False  # this squeue does not show its job; `why` says where to ask


UNCERTAIN: Final = ChunkStatus(
    ChunkState.UNKNOWN, "sbatch's answer was lost; submit again to find out"
)
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
        record = attempt.read_record(newest)
        if record and record.state is AttemptState.REFUSED:
            return ChunkStatus(ChunkState.FAILED, record.reason)
        stopped = ChunkStatus(ChunkState.STOPPED, "submit again to continue")
        return ChunkStatus(_running_or_pending(newest)) if runs_here else stopped
    if chunk not in journal.task_of:
        return UNCERTAIN if chunk in journal.uncertain else _UNSENT
    verdict = liveness(chunk, journal, answer)
    if chunk in journal.open_chunks and verdict.live:
        return _live(verdict.job, newest) if verdict.job else _unseen(verdict, newest)
    return _ended(chunk, journal, verdict.job, newest)


def _ended(
    chunk: int, journal: Journal, job: slurm.JobState | None, newest: ShardPath | None
) -> ChunkStatus:
    if chunk in journal.cancelled_at:
        return ChunkStatus(ChunkState.CANCELLED, "by `hpcsweep cancel`; submit again to continue")
    state = job.state if job is not None and job.state.over else None
    name = journal.over.get(chunk)
    if state is None and name not in {None, LOST, CANCELLED}:
        state = slurm.state_of(str(name))
    record = attempt.read_record(newest)
    if record and record.state is AttemptState.REFUSED:
        return ChunkStatus(_state_of(state) if state else ChunkState.FAILED, record.reason)
    if record and record.state is AttemptState.DONE and record.reason == attempt.LEFT_TO_OTHERS:
        return ChunkStatus(ChunkState.DONE, record.reason)
    if state:
        why = f"{state.name}: {state.says}"
        if job and job.exit_code and state.name == "FAILED":
            why = f"{why} ({job.exit_code})"
        return ChunkStatus(_state_of(state), why)
    if record and record.state is AttemptState.STOPPED:
        why = "; ".join(filter(None, (record.reason, "submit again to continue")))
        return ChunkStatus(ChunkState.STOPPED, why)
    return ChunkStatus(ChunkState.LOST, "Slurm does not list its job; submit again")


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
    return ChunkState.FAILED if state.meaning is ChunkState.DONE else state.meaning
