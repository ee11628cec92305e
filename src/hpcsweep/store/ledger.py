"""Finds the points that are measured, queued or running, which `submit` does not send again.

The shards hold the measured points, the journal of a submission what was started. The operating
system knows whether a local submission still runs, the caller's function whether one to a scheduler
does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcsweep import processes
from hpcsweep.errors import ResultsError
from hpcsweep.store import attempt, chunk_file
from hpcsweep.store.jobs_file import Damaged, Ended, Started
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import PointStatus, best

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpcsweep.store.folders import SubmissionDir, SweepDir
    from hpcsweep.store.manifest import Manifest

    LiveChunks = Callable[[SubmissionDir], set[int]]


@dataclass
class Ledger:
    """The points that are not sent again, by id."""

    status: dict[str, PointStatus] = field(default_factory=dict)  # of points with a row
    live: dict[str, str] = field(default_factory=dict)  # by point: the submission that measures it
    again: int = 0  # the run that new submissions belong to: `Manifest.again`

    def settled(self, again: Iterable[str] = ()) -> set[str]:
        """Return the ids that need no submission; statuses in `again` count as not measured."""
        wanted = set(again)
        done = {point_id for point_id, status in self.status.items() if status not in wanted}
        return done | self.live.keys()


def read_ledger(
    sweep_dir: SweepDir, queue: LiveChunks | None = None, *, profiled: bool = False
) -> Ledger:
    """Read the statuses of all shards, and the points of all live submissions.

    Profiled submissions have a ledger of their own, since they measure nothing. A live submission
    with an unreadable manifest counts in both ledgers. `ResultsError` where the points of a live
    submission cannot be read.
    """
    ledger = Ledger()
    for submission in sweep_dir.submissions():
        manifest = submission.manifest_or_none()
        if manifest and manifest.is_profiled is not profiled:
            continue
        live = _live_points(submission, manifest, queue)
        if live:
            rows = read_rows(sweep_dir.shards_of(submission.id))
            live -= {row["point_id"] for row in rows}
            ledger.live.update(dict.fromkeys(live, submission.id))
    # after the queue: a chunk that has ended since it was asked has its rows by now
    ledger.status = statuses(sweep_dir, profiled=profiled)
    return ledger


def statuses(sweep_dir: SweepDir, *, profiled: bool = False) -> dict[str, PointStatus]:
    """Return the status of every point with a row."""
    found = ((row["point_id"], row["status"]) for row in read_rows(sweep_dir.shards()))
    return best(row for row in found if (row[1] is PointStatus.PROFILED) is profiled)


def _live_points(
    submission: SubmissionDir, manifest: Manifest | None, queue: LiveChunks | None
) -> set[str]:
    """Return the points of a submission's live chunks, those with rows included."""
    chunks: set[int] | None = set()
    if not is_local(submission, manifest):
        chunks = queue(submission) if queue else set()
    elif local_is_live(submission):
        chunks = {*range(manifest.chunks)} if manifest else None  # all that its file has
    if chunks is not None and not chunks:
        return set()
    try:
        return _points_of(submission, chunks)
    except ResultsError as error:
        raise ResultsError(
            f"{error}\nwhich points {submission.id} measures is unknown, and they must not be "
            f"measured twice: wait until it ended, or {submission.sweep_dir.command('cancel')}"
        ) from error


def _points_of(submission: SubmissionDir, chunks: set[int] | None) -> set[str]:
    """Return the points of `chunks` (None: of all); `ResultsError` where one is missing."""
    by_chunk = dict(chunk_file.read_ids(submission.chunks))
    wanted = by_chunk.keys() if chunks is None else chunks
    missing = wanted - by_chunk.keys()
    if missing:
        raise ResultsError(f"{submission.chunks}: has no chunk {min(missing)}")
    points = set[str]()
    for index in wanted:
        points.update(by_chunk[index])
    return points


def note_start(submission: SubmissionDir) -> None:
    """Record that this process runs a submission; the caller holds the sweep folder's lock."""
    submission.append_job(Started(process=processes.identity(), at=time.time()))


def note_end(submission: SubmissionDir) -> None:
    """Record that the process that ran a submission has ended."""
    submission.append_job(Ended(ended=time.time()))


def is_local(submission: SubmissionDir, manifest: Manifest | None) -> bool:
    """Say whether the submitting machine measures a submission, given its manifest if readable."""
    return manifest.is_local if manifest else runner(submission) is not None


def local_is_live(submission: SubmissionDir) -> bool:
    """Say whether the process that runs a local submission is alive.

    A process on another host or in another container cannot be seen, nor one whose entry in the
    journal is damaged: both count as alive while their attempts beat.
    """
    who = runner(submission)
    entries = submission.read_jobs()
    # one process runs a local submission, once: who resumes sends another
    if any(isinstance(entry, Ended) for entry in entries):
        return False
    if who is None and not any(isinstance(entry, Damaged) for entry in entries):
        return False
    # its own entry in the process table is better evidence than any file
    if who and who.in_sight():
        return who.is_alive()
    signs = [submission.jobs, *submission.shards.glob("*.samples.csv")]
    return attempt.beats(submission.path, signs)


def fence_off_dead(sweep_dir: SweepDir) -> None:
    """Stop the attempts of dead local submissions (one may be suspended), under the lock."""
    for submission in sweep_dir.submissions():
        if runner(submission) and not local_is_live(submission):
            attempt.fence_off(sweep_dir.shards_of(submission.id))


def runner(submission: SubmissionDir) -> processes.Identity | None:
    """Return the process that runs or ran a local submission."""
    started = [entry for entry in submission.read_jobs() if isinstance(entry, Started)]
    return started[-1].process if started else None
