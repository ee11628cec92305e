"""What is already measured, and what is on its way: the two things that are not sent again.

The truth is in the shards. A submission's journal (`jobs.jsonl`) says what was started; whether
that still lives is asked of the operating system for local submissions, and of a function that
the caller hands in for those in a scheduler's queue.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcsweep import processes
from hpcsweep.store import chunk_file, shards
from hpcsweep.store.jobs_file import Ended, Started
from hpcsweep.store.state import PointStatus, best

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpcsweep.store.manifest import Manifest
    from hpcsweep.store.rundir import RunDir, SubmissionDir

    LiveChunks = Callable[[SubmissionDir], set[int]]

_FOREIGN_SECONDS = 600.0


@dataclass
class Ledger:
    """Final statuses by point id, and the submission that will measure a live point."""

    status: dict[str, PointStatus] = field(default_factory=dict)
    live: dict[str, str] = field(default_factory=dict)

    def settled(self, again: Iterable[str] = ()) -> set[str]:
        """Return the ids that need no submission; statuses in `again` count as not measured."""
        wanted = set(again)
        done = {point_id for point_id, status in self.status.items() if status not in wanted}
        return done | self.live.keys()


def read(run: RunDir, queue: LiveChunks | None = None, *, profiled: bool = False) -> Ledger:
    """Read every shard's statuses, and every live submission's points.

    Runs under a profiler measure nothing, so they have a ledger of their own.
    """
    ledger = Ledger()
    for submission in run.submissions():
        manifest = submission.read_manifest()
        if manifest.is_profiled is not profiled:
            continue
        live = _live_chunks(submission, manifest, queue)
        if live:
            done = _done_in(submission)
            for index, ids in chunk_file.read_ids(submission.chunks):
                if index in live:
                    unfinished = set(ids) - done
                    ledger.live.update(dict.fromkeys(unfinished, submission.id))
    # Last: what ended while the queue was asked has its rows by now.
    ledger.status = statuses(run, profiled=profiled)
    return ledger


def statuses(run: RunDir, *, profiled: bool = False) -> dict[str, PointStatus]:
    """Return the status of every point with a row."""
    keys = (key for shard in run.shards() for key in shards.read_keys(shard.overall))
    return best(key for key in keys if (key.status is PointStatus.PROFILED) is profiled)


def _live_chunks(
    submission: SubmissionDir, manifest: Manifest, queue: LiveChunks | None
) -> set[int]:
    """Return the chunks of a submission that may still write rows."""
    if manifest.is_local:
        return set(range(manifest.chunks)) if local_is_live(submission) else set()
    return queue(submission) if queue else set()


def note_start(submission: SubmissionDir) -> None:
    """Record that this process runs a submission, so that its points are not sent again.

    The caller holds the run folder's lock.
    """
    submission.append_job(Started(process=processes.identity(), at=time.time()))


def note_end(submission: SubmissionDir) -> None:
    """Record that the process that ran a submission is done with it."""
    submission.append_job(Ended(ended=time.time()))


def local_is_live(submission: SubmissionDir) -> bool:
    """Say whether the process that runs a local submission is alive.

    One on another host cannot be asked: it counts as alive while its shards change.
    """
    who = runner(submission)
    if who is None or any(isinstance(entry, Ended) for entry in submission.read_jobs()):
        return False
    if who.on_this_host():
        return who.is_alive()
    return who.host != processes.identity().host and _changed_lately(submission)


def runner(submission: SubmissionDir) -> processes.Identity | None:
    """Return the process that runs or ran a local submission."""
    started = [entry for entry in submission.read_jobs() if isinstance(entry, Started)]
    return started[-1].process if started else None


def _changed_lately(submission: SubmissionDir) -> bool:
    times = [path.stat().st_mtime for path in submission.shards.glob("*.overall.csv")]
    return bool(times) and time.time() - max(times) < _FOREIGN_SECONDS


def _done_in(submission: SubmissionDir) -> set[str]:
    """Return the points that have a row; a listing per chunk would be quadratic."""
    return {
        key.point_id
        for shard in submission.run.shards_of(submission.id)
        for key in shards.read_keys(shard.overall)
    }
