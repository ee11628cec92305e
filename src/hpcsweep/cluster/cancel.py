"""Cancels the queued and running jobs of submissions."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from functools import partial

from hpcsweep.cluster import named_jobs, slurm
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
    for submission, chunk in map(partial(named_jobs.resolve, sweep_dir), names):
        if chunk is not None:
            whole = sweep_dir.command("cancel", submission.id)
            raise UsageError(f"{submission.id} can be cancelled only as a whole: {whole}")
        wanted.append(submission)
    left: list[str] = []
    messages = [*_cancel_here(wanted), *_cancel_in_slurm(wanted, left)]
    yield from messages
    if left:
        raise SchedulerError("\n".join(left))
    if not messages:
        yield f"{sweep_dir.name}: nothing is queued or running"


def _cancel_here(wanted: Sequence[SubmissionDir]) -> Iterator[str]:
    for submission in filter(ledger.local_is_live, wanted):
        who = ledger.runner(submission)
        if who and who.is_alive():
            os.kill(who.pid, signal.SIGTERM)
            yield f"{submission.id}: asked process {who.pid} to finish; results are kept"
        elif who:
            yield f"{submission.id}: runs on {who.host}; cancel it there (process {who.pid})"


def _cancel_in_slurm(wanted: Sequence[SubmissionDir], left: list[str]) -> Iterator[str]:
    """Cancel the live tasks with one call, then record them.

    scancel gets only ids of jobs that are surely of this submission; `left` collects messages about
    the others.
    """
    if any(sent.uncertain for sent in map(journal.read_journal, wanted)):
        with locks.held(wanted[0].sweep_dir, "hpcsweep cancel"):
            yield from journal.settle(wanted)
    answer = journal.ask_slurm(wanted)
    hit: dict[SubmissionDir, set[int]] = {}
    targets: list[str] = []
    for submission in wanted:
        sent = journal.read_journal(submission)
        others = dict[str, set[int]]()
        hit[submission] = set()
        for chunk in sent.open_chunks:
            verdict = journal.liveness(chunk, sent, answer)
            if not verdict.live:
                continue
            job = answer.tasks.get(sent.task_of[chunk])
            if sent.owns(job) if job else sent.is_mine(answer.client):
                hit[submission].add(chunk)
            else:
                others.setdefault(verdict.why, set()).add(chunk)
        targets += sent.targets(hit[submission])
        for why, numbers in others.items():
            text = f"{slurm.task_list(numbers)} (jobs {', '.join(sent.targets(numbers))})"
            then = "cancel them there, try again later, or as who sent them"
            left.append(f"{submission.id}: did not cancel chunks {text}: {why}; {then}")
    slurm.cancel(targets)
    for submission, chunks in hit.items():
        if chunks:
            text = slurm.task_list(chunks)
            submission.append_job(Cancelled(cancelled=text, at=journal.now()))
            yield (
                f"{submission.id}: cancelled chunks {text}; results are kept, a point that "
                "runs is finished if the site's KillWait allows, and submit sends the rest again"
            )
