"""What became of a chunk: its rows, its attempts' files, the journal and Slurm, put together.

Rows come first: a chunk whose points all have one is done, whatever Slurm says of its job. Next
comes whether its job is queued or runs, then how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hpcsweep import slurm
from hpcsweep.slurm import Meaning
from hpcsweep.store import attempt
from hpcsweep.store.state import AttemptState, ChunkState
from hpcsweep.tracking import liveness
from hpcsweep.tracking.journal import CANCELLED, LOST

if TYPE_CHECKING:
    from hpcsweep.store.rundir import ShardPath
    from hpcsweep.tracking.journal import Answer, Sent
    from hpcsweep.tracking.liveness import Verdict


@dataclass(frozen=True)
class Standing:
    """The state of a chunk, why it has it, and for a job that can never start what to change."""

    state: ChunkState
    why: str = ""
    to_change: str = ""
    unseen: bool = False  # from here; `why` says who has to be asked


ASKED: Final = Standing(ChunkState.UNKNOWN, "sbatch's answer was lost; submit again to find out")
DOUBTFUL: Final = Standing(
    ChunkState.UNKNOWN, "a line of the journal is damaged; submit again to find out"
)
_UNSENT: Final = Standing(ChunkState.UNSENT, "a limit on submitted jobs was reached; submit again")


def in_slurm(chunk: int, known: Sent, answer: Answer, newest: ShardPath | None) -> Standing:
    """Return what became of a chunk that was sent to Slurm and lacks rows.

    `newest` is its latest attempt, if any.
    """
    if chunk not in known.task_of:
        unknown = DOUBTFUL if chunk in known.doubtful else _UNSENT
        return ASKED if chunk in known.unsure else unknown
    verdict = liveness.of_chunk(chunk, known, answer)
    job = verdict.job
    if chunk in known.open_chunks and verdict.live:
        return _live(job, newest) if job else _unseen(verdict, newest)
    if chunk in known.cancelled_at:
        return Standing(ChunkState.CANCELLED, "by `hpcsweep cancel`; submit again to continue")
    if job is not None and job.state.over:
        return _over(job.state, newest, job.exit_code)
    name = known.over.get(chunk)
    if name not in {None, LOST, CANCELLED}:
        return _over(slurm.state_of(str(name)), newest, None)
    return _unlisted(newest)


def here(newest: ShardPath | None, *, live: bool) -> Standing:
    """Return what became of a chunk of a local submission that lacks rows."""
    said = attempt.read(newest)
    if said and said.state is AttemptState.REFUSED:
        return Standing(ChunkState.FAILED, said.reason)
    if live:
        runs = said is not None and said.state is AttemptState.RUNNING
        return Standing(ChunkState.RUNNING if runs else ChunkState.PENDING)
    return Standing(ChunkState.STOPPED, "submit again to continue")


def _live(job: slurm.JobState, newest: ShardPath | None) -> Standing:
    state = _state_of(job.state)
    if state is ChunkState.UNKNOWN:
        return Standing(state, f"Slurm says {job.state.name}")
    if state is ChunkState.PENDING and newest is not None:  # Slurm calls a requeued job pending
        state = ChunkState.REQUEUED
    to_change = "" if state is ChunkState.RUNNING else slurm.in_vain(job.reason)
    return Standing(state, job.reason, to_change)


def _over(state: slurm.State, newest: ShardPath | None, code: int | None) -> Standing:
    """Return how a job ended that leaves points without a row."""
    said = attempt.read(newest)
    if said and said.state is AttemptState.REFUSED:
        return Standing(_state_of(state), said.reason)
    exit_code = f" ({code})" if code and state.name == "FAILED" else ""
    return Standing(_state_of(state), f"{state.name}: {state.says}{exit_code}")


def _unseen(verdict: Verdict, newest: ShardPath | None) -> Standing:
    """Return what can be said of a chunk that may live, and that this squeue does not show."""
    if not verdict.until:
        return Standing(ChunkState.UNKNOWN, verdict.why)
    said = attempt.read(newest)
    runs = said is not None and said.state is AttemptState.RUNNING
    if verdict.elsewhere:
        told = Standing(ChunkState.RUNNING if runs else ChunkState.PENDING, f"queued {verdict.why}")
        told = replace(told, why=f"runs {verdict.why}") if runs else told
    else:
        why = f"{verdict.why}; counts as live until {verdict.until}"
        told = Standing(ChunkState.MAYBE_LOST, why)
    return replace(told, unseen=True)


def _unlisted(newest: ShardPath | None) -> Standing:
    """Return what can be said of a chunk that counts as dead, and of whose end nobody tells."""
    said = attempt.read(newest)
    if said and said.state is AttemptState.REFUSED:
        return Standing(ChunkState.FAILED, said.reason)
    if said and said.state is AttemptState.STOPPED:
        why = "; ".join(filter(None, (said.reason, "submit again to continue")))
        return Standing(ChunkState.STOPPED, why)
    return Standing(ChunkState.LOST, "Slurm does not list its job; submit again")


def _state_of(state: slurm.State) -> ChunkState:
    """Return Slurm's state as a chunk's; a job that ended well and left points out has failed."""
    done = state.meaning is Meaning.DONE
    return ChunkState.FAILED if done else ChunkState(state.meaning.value)
