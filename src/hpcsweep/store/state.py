"""The states of points, chunks and attempts, and the rank that decides between rows of a point.

Files hold these words, so a released word never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcsweep.text import Word

if TYPE_CHECKING:
    from collections.abc import Iterable


# fmt: off
class PointStatus(Word):
    """How a point ended: the column `status`."""

    OK = "ok", "measured"
    OOM = "oom", "ran out of memory; `mem_peak_bytes` and `mem_limit_bytes` say how far it came"
    UNSUPPORTED = ("unsupported",
        "this machine, library or network cannot do it; `status_reason` says why")
    TIMEOUT = "timeout", "took longer than the per-point limit"
    CRASHED = ("crashed",
        "the worker died, or its reply was none; `status_reason` has the signal and last words")
    ERROR = ("error",
        "an exception; its type and message in `status_reason`, the traceback in the log")
    SKIPPED = ("skipped",
        "not tried, since a smaller point ran out of memory (only with --skip-dominated)")
    PROFILED = ("profiled",
        "ran under a profiler, whose report lies beside the shard; the row holds no times")


FAILED: Final = frozenset({PointStatus.ERROR, PointStatus.CRASHED, PointStatus.TIMEOUT})


class ChunkState(Word):
    """The state of a submitted chunk."""

    PENDING = "pending", "waits in the queue; Slurm's reason is shown"
    RUNNING = "running", "has a node"
    SUSPENDED = ("suspended",
        "keeps its node and stands still, for another job or by a person's word")
    REQUEUED = "requeued", "was interrupted and waits to go on with the points that are left"
    HELD = "held", "is on hold, by a person or by Slurm; `scontrol release` lets it go"
    UNKNOWN = ("unknown",
        "squeue could not be asked, or said a word that this version does not know")
    DONE = "done", "every point has a row"
    FAILED = "failed", "the job ended badly, or a worker refused the machine"
    INFRASTRUCTURE = "infrastructure", "the cluster broke it; submit sends its points again"
    TIMEOUT = "timeout", "the job's time was up"
    CANCELLED = "cancelled", "by a person"
    STOPPED = "stopped", "was told to stop before its last point"
    MAYBE_LOST = "lost?", "Slurm does not list its job, which may live: submit leaves it alone"
    LOST = ("lost",
        "Slurm does not list its job, which cannot run any more: cancelled in the queue, or lost")
    UNSENT = "unsent", "never went in: a limit on submitted jobs was reached"

    @property
    def live(self) -> bool:
        """Whether the chunk may still write rows."""
        return self in _LIVE


_LIVE: Final = frozenset({
    ChunkState.PENDING, ChunkState.RUNNING, ChunkState.SUSPENDED, ChunkState.REQUEUED,
    ChunkState.HELD, ChunkState.UNKNOWN, ChunkState.MAYBE_LOST,
})
# fmt: on


class AttemptState(Word):
    """The state of an attempt, which its supervisor writes into `env.json`."""

    RUNNING = "running", "measures, or was killed while it did"
    DONE = "done", "left no point"
    STOPPED = "stopped", "was told to stop, or its time was up"
    REFUSED = "refused", "the worker did not accept the machine, or could not write"


def reached_limit(seconds: float) -> str:
    """Return why a point is a `timeout` by its own limit, not by its job's."""
    return f"no result within {seconds:g} s"


def rank(status: PointStatus) -> int:
    """Return the rank of a row's status: of two rows of a point, the higher rank counts.

    With equal ranks the later row counts: by `SweepDir.ages`, and within a submission by attempt.
    """
    # a time is worth more than a failure, and a profile, which has no time, less than either
    return {PointStatus.OK: 2, PointStatus.PROFILED: 0}.get(status, 1)


def best(rows: Iterable[tuple[str, PointStatus]]) -> dict[str, PointStatus]:
    """Return the status of each point, given the ids and statuses of its rows, oldest first."""
    rows = list(rows)
    statuses = dict(rows)
    if len(statuses) < len(rows):  # of several rows of a point, the one sorted last stays
        statuses |= dict(sorted(rows, key=lambda row: rank(row[1])))
    return statuses
