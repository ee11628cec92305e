"""What became of each chunk: its rows, its attempts' files, the journal and Slurm, put together.

Rows come first: a chunk whose points all have one is done, whatever Slurm says of its job. Then
whoever lives, then how it ended. `STATES` is every answer there is.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import slurm
from hpcsweep.slurm import Meaning
from hpcsweep.tracking.journal import CANCELLED, GRACE, LOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcsweep.store.rundir import ShardPath
    from hpcsweep.tracking.journal import Answer, Sent

STATES: Final[Mapping[str, str]] = {
    "pending": "waits in the queue; Slurm's reason is shown",
    "running": "has a node",
    "requeued": "was interrupted and waits to go on with the points that are left",
    "unknown": "squeue could not be asked, or said a word that this version does not know",
    "done": "every point has a row",
    "failed": "the job ended badly, or a worker refused the machine",
    "infrastructure": "the cluster broke it; its points are pending again, uncharged",
    "timeout": "the job's time was up",
    "cancelled": "by a person",
    "stopped": "was told to stop before its last point",
    "lost?": "nobody lists its job (yet)",
    "lost": "nobody listed its job for ten minutes: cancelled while it waited, or forgotten",
    "unsent": "never went in: a limit on submitted jobs was reached",
}
LIVE: Final = frozenset({"pending", "running", "requeued", "unknown"})
_MEANING: Final = {
    Meaning.PENDING: "pending",
    Meaning.RUNNING: "running",
    Meaning.REQUEUED: "requeued",
    Meaning.UNKNOWN: "unknown",
    Meaning.DONE: "failed",  # it ended well, and left points out
    Meaning.FAILED: "failed",
    Meaning.INFRASTRUCTURE: "infrastructure",
    Meaning.CANCELLED: "cancelled",
    Meaning.TIMEOUT: "timeout",
}


@dataclass(frozen=True)
class Standing:
    """What became of a chunk, why, and for one that waits in vain what to change."""

    state: str
    why: str = ""
    in_vain: str = ""

    @property
    def live(self) -> bool:
        """Say whether it may still write rows."""
        return self.state in LIVE


DONE: Final = Standing("done")
ASKED: Final = Standing("unknown", "sbatch's answer was lost; submit again to find out")
_UNSENT: Final = Standing("unsent", "a limit on submitted jobs was reached; submit again")


def in_slurm(chunk: int, known: Sent, answer: Answer, newest: ShardPath | None) -> Standing:
    """Return what became of a chunk that was sent to Slurm and lacks rows.

    `newest` is its latest attempt, if any.
    """
    task = known.task_of.get(chunk)
    if task is None:
        return ASKED if chunk in known.unsure else _UNSENT
    job = answer.tasks.get(task)
    if chunk in known.open_chunks and answer.lives(task):
        return _live(job, answer, newest)
    if chunk in known.cancelled_at:
        return Standing("cancelled", "by `hpcsweep cancel`; submit again to continue")
    if job is not None and job.state.over:
        return _over(job.state, newest, job.exit_code)
    name = known.over.get(chunk)
    if name not in {None, LOST, CANCELLED}:
        return _over(slurm.state_of(str(name)), newest, None)
    return _unlisted(known, newest, forgotten=name == LOST)


def here(newest: ShardPath | None, *, live: bool) -> Standing:
    """Return what became of a chunk of a local submission that lacks rows."""
    env = _env(newest)
    if env.get("state") == "refused":
        return Standing("failed", str(env.get("reason")))
    if live:
        return Standing("running" if env.get("state") == "running" else "pending")
    return Standing("stopped", "submit again to continue")


def _live(job: slurm.JobState | None, answer: Answer, newest: ShardPath | None) -> Standing:
    if answer.silent or job is None:
        return Standing("unknown", "squeue could not be asked")
    state = _MEANING[job.state.meaning]
    if state == "unknown":
        return Standing(state, f"Slurm says {job.state.name}")
    if state == "pending" and newest is not None:  # Slurm calls a requeued job pending
        state = "requeued"
    return Standing(state, job.reason, slurm.in_vain(job.reason) if state != "running" else "")


def _over(state: slurm.State, newest: ShardPath | None, code: int | None) -> Standing:
    """Return how a job ended that leaves points without a row."""
    env = _env(newest)
    if env.get("state") == "refused":
        return Standing(_MEANING[state.meaning], str(env.get("reason")))
    exit_code = f" ({code})" if code and state.name == "FAILED" else ""
    return Standing(_MEANING[state.meaning], f"{state.name}: {state.says}{exit_code}")


def _unlisted(known: Sent, newest: ShardPath | None, *, forgotten: bool) -> Standing:
    """Return what can be said of a chunk that neither the queue nor the accounts list."""
    env = _env(newest)
    if env.get("state") == "refused":
        return Standing("failed", str(env.get("reason")))
    if env.get("state") == "stopped":
        return Standing("stopped", f"{env.get('reason')}; submit again to continue".lstrip("; "))
    if forgotten or _quiet_for(known, newest) > GRACE:
        return Standing("lost", "nobody lists its job; submit again")
    return Standing("lost?", f"nobody lists its job; certain after {GRACE.seconds // 60} minutes")


def _quiet_for(known: Sent, newest: ShardPath | None) -> timedelta:
    """Return how long ago a chunk gave its last sign of life."""
    seen = known.submitted_at.timestamp()
    if newest is not None:
        with suppress(OSError):
            seen = max(seen, newest.overall.stat().st_mtime)
    return timedelta(seconds=datetime.now(timezone.utc).timestamp() - seen)


def _env(newest: ShardPath | None) -> dict[str, Any]:
    try:
        return dict(json.loads(newest.env.read_bytes())) if newest else {}
    except (OSError, ValueError):
        return {}
