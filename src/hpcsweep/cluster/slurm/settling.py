"""Writes into journals what Slurm says: arrays whose answer was lost, and how tasks ended.

The callers hold the lock of the sweep's folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from hpcsweep import files
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import liveness
from hpcsweep.cluster.slurm.journal import not_sent, now, read_journal, went_in
from hpcsweep.cluster.slurm.liveness import SlurmAnswer
from hpcsweep.store import attempt, ledger
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.store.jobs_file import LOST, Over

_NOWHERE: Final = slurm.Here()


def settle(submissions: Iterable[SubmissionDir]) -> Iterator[str]:
    """Look in the queue for arrays for which sbatch's answer was lost; yield messages.

    An array is recognised by its working folder, which is its submission's. The caller holds the
    run folder's lock, so no other process is waiting for sbatch. Where Slurm cannot be asked, or
    would not list the array here, nothing changes.
    """
    unclear = [journal for journal in map(read_journal, submissions) if journal.uncertain]
    here = slurm.this_cluster() if unclear else _NOWHERE
    unclear = [journal for journal in unclear if not journal.is_others(here)]
    listed = slurm.queue() if unclear else []
    if isinstance(listed, slurm.CouldNotAsk):
        return
    for journal in unclear:
        submission = journal.submission
        recorded = {slurm.parse_id(array).job for array in journal.arrays}
        own = {job.id.job or 0 for job in listed if submission.is_at(job.folder)}
        jobs = own - recorded
        chunks = len(journal.uncertain)
        is_known = chunks == len(journal.sending)  # else a damaged line may have said which
        first = journal.sending.start if is_known else 0
        what = f"{submission.id}: sbatch's answer was lost; {chunks} chunks"
        if not jobs:
            not_sent(submission, first)
            yield f"{what} did not go in"
        elif is_known:
            went_in(submission, first, chunks, str(max(jobs)), here)
            yield f"{what} went in as {max(jobs)}"
        else:
            yield f"{what} count as queued while {sorted(jobs)} are in the queue"


def record_ends(submission: SubmissionDir, answer: SlurmAnswer) -> None:
    """Write into the journal how tasks ended, so that Slurm is not asked about them again.

    Tasks that squeue still lists are left out, since a person may requeue them. The caller holds
    the sweep folder's lock.
    """
    journal = read_journal(submission)
    ends = dict[str, list[int]]()
    for chunk in journal.open_chunks:
        verdict = liveness.liveness(chunk, journal, answer)
        job = verdict.job
        if verdict.live or verdict.elsewhere or (job and job.source == "squeue"):
            continue
        if job or chunk not in journal.cancelled_at:
            ends.setdefault(job.state.name if job else LOST, []).append(chunk)
    if ends:
        lists = {name: slurm.task_list(chunks) for name, chunks in sorted(ends.items())}
        submission.append_job(Over(over=lists, at=now()))


def fence_off(sweep_dir: SweepDir, answer: SlurmAnswer) -> None:
    """Stop attempts that Slurm gave up but that may still run, as on a node that lost contact.

    Those of chunks that the journal does not know are among them: they went in all the same. Their
    points are about to be sent again. The caller holds the sweep folder's lock.
    """
    for submission in sweep_dir.submissions():
        if not ledger.is_local(submission, submission.manifest_or_none()):
            sent = read_journal(submission)
            kept = sent.over.keys() | liveness.live_chunks(answer, sent)
            if sent.open_chunks or sent.uncertain:
                files.see_anew(submission.shards)
            shards = sweep_dir.shards_of(submission.id)
            attempt.fence_off(shard for shard in shards if shard.chunk not in kept)
