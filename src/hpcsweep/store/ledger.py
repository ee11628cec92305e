"""Which points are measured already, and which are queued or running: neither is sent again.

The shards say what is measured, the journal of a submission what was started. Whether that still
runs is asked of the operating system for local submissions, and of a function that the caller gives
for submissions to a scheduler.
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
    """The points that are not sent again, by id."""

    status: dict[str, PointStatus] = field(default_factory=dict)  # of points with a row
    live: dict[str, str] = field(default_factory=dict)  # the submission that will measure it

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
            # one listing for all chunks: one listing per chunk would be quadratic
            done = {key.point_id for key in shards.keys_of(run.shards_of(submission.id))}
            for index, ids in chunk_file.read_ids(submission.chunks):
                if index in live:
                    unfinished = set(ids) - done
                    ledger.live.update(dict.fromkeys(unfinished, submission.id))
    # Last: what ended while the queue was asked has its rows by now.
    ledger.status = statuses(run, profiled=profiled)
    return ledger


def statuses(run: RunDir, *, profiled: bool = False) -> dict[str, PointStatus]:
    """Return the status of every point with a row."""
    keys = shards.keys_of(run.shards())
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
