"""Cancels the queued and running jobs of submissions."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

from hpcsweep.cluster import logs, slurm
from hpcsweep.cluster.slurm import journal
from hpcsweep.errors import SchedulerError, UsageError
from hpcsweep.store import ledger, locks
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.store.jobs_file import Cancelled


def cancel(sweep_dir: SweepDir, names: Sequence[str]) -> Iterator[str]:
    """Cancel the queued and running jobs of submissions, by default of all.

    A chunk that runs finishes its current point if the time allows. In Slurm only live tasks are
    cancelled; the journal keeps which. `UsageError` for a name that nothing has, or for a part of a
    submission. `SchedulerError` where Slurm could not be asked, and nothing was recorded, or
    where some jobs cannot be seen from here, such as those of another cluster.
    """
    wanted = [] if names else sweep_dir.submissions()
    for name in names:
        submission, chunk = logs.named(sweep_dir, name)
        if chunk is not None:
            whole = sweep_dir.command("cancel", submission.id)
            raise UsageError(f"{submission.id} can be cancelled only as a whole: {whole}")
        wanted.append(submission)
    not_cancelled: list[str] = []
    messages = [*_cancel_here(wanted), *_cancel_in_slurm(wanted, not_cancelled)]
    yield from messages
    if not_cancelled:
        raise SchedulerError("\n".join(not_cancelled))
    if not messages:
        yield f"{sweep_dir.name}: nothing is queued or running"


def _cancel_here(wanted: Sequence[SubmissionDir]) -> Iterator[str]:
    for submission in wanted:
        runner = ledger.runner(submission) if ledger.local_is_live(submission) else None
        if runner and runner.is_alive():
            os.kill(runner.pid, signal.SIGTERM)
            yield f"{submission.id}: asked process {runner.pid} to finish; results are kept"
        elif runner:
            yield f"{submission.id}: runs on {runner.host}; cancel it there (process {runner.pid})"


def _cancel_in_slurm(wanted: Sequence[SubmissionDir], not_cancelled: list[str]) -> Iterator[str]:
    """Cancel the live tasks with one call, then record them.

    scancel gets only ids of jobs that are surely of this submission; `not_cancelled` collects
    messages about the others.
    """
    if any(journal.read_journal(submission).uncertain for submission in wanted):
        with locks.held(wanted[0].sweep_dir, "hpcsweep cancel"):
            yield from journal.settle(wanted)
    answer = journal.ask_slurm(wanted)
    own_chunks: dict[SubmissionDir, set[int]] = {}
    targets: list[str] = []
    for submission in wanted:
        sent = journal.read_journal(submission)
        others = dict[str, set[int]]()  # live chunks by why they are left alone
        own_chunks[submission] = set()
        for chunk in sent.open_chunks:
            verdict = journal.liveness(chunk, sent, answer)
            if not verdict.live:
                continue
            job = answer.tasks.get(sent.task_of[chunk])
            if sent.owns(job) if job else sent.is_mine(answer.client):
                own_chunks[submission].add(chunk)
            else:
                others.setdefault(verdict.why, set()).add(chunk)
        targets += sent.targets(own_chunks[submission])
        for why, chunks in others.items():
            which = f"{slurm.task_list(chunks)} (jobs {', '.join(sent.targets(chunks))})"
            remedy = "cancel them there, try again later, or as who sent them"
            not_cancelled.append(f"{submission.id}: did not cancel chunks {which}: {why}; {remedy}")
    slurm.cancel(targets)
    for submission, chunks in own_chunks.items():
        if chunks:
            text = slurm.task_list(chunks)
            submission.append_job(Cancelled(cancelled=text, at=journal.now()))
            yield (
                f"{submission.id}: cancelled chunks {text}; results are kept, a point that "
                "runs is finished if the site's KillWait allows, and submit sends the rest again"
            )
