"""What `submit` and `cancel` ask and order of the place where chunks run.

`submit` asks Slurm what became of what was sent and what it would take, and sends: without nodes
that failed, while attempts that are lost are stopped. It holds the lock of the sweep's folder then.
`cancel` cancels what is queued or running, also on this machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcsweep import files, messages
from hpcsweep.cluster import doctor, launcher_to_slurm, logs, slurm
from hpcsweep.cluster.slurm import (
    CouldNotAsk,
    bad_nodes,
    journal,
    profile_checks,
    profile_wants,
    then_job,
)
from hpcsweep.cluster.slurm.bad_nodes import BadNode
from hpcsweep.cluster.slurm.journal import Journal, SlurmAnswer
from hpcsweep.cluster.slurm.site import Cluster
from hpcsweep.errors import Refused, SchedulerError, UsageError
from hpcsweep.spec.profile import Profile
from hpcsweep.store import attempt, ledger, locks
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.store.jobs_file import LOST, Cancelled, Over


def ask_queue(sweep_dir: SweepDir) -> SlurmAnswer:
    """Ask what became of what was sent before, also where sbatch's answer was lost."""
    for line in settle(sweep_dir.submissions()):
        messages.note(line)
    answer = journal.ask_slurm(sweep_dir.submissions())
    if answer.mute:
        missing = "; ".join(str(why) for why in answer.unanswered)
        consequence = "every chunk that was sent and lacks rows counts as queued or running"
        messages.warning(f"{sweep_dir.name}: {missing}; {consequence}")
    return answer


def settle(submissions: Sequence[SubmissionDir]) -> Iterator[str]:
    """Look in the queue for arrays for which sbatch's answer was lost; yield messages.

    An array is recognised by its working folder, which is its submission's. The caller holds the
    sweep folder's lock, so no other process is waiting for sbatch. Where Slurm cannot be asked, or
    would not list the array here, nothing changes.
    """
    journals = [journal.read_journal(submission) for submission in submissions]
    unclear = [sent for sent in journals if _is_unclear(sent)]
    if not unclear:
        return
    client = slurm.this_client()
    unclear = [sent for sent in unclear if not sent.is_others(client)]
    listed = slurm.queue() if unclear else []
    if isinstance(listed, CouldNotAsk):
        return
    for sent in unclear:
        if not sent.uncertain:
            yield from then_job.settle(sent, listed)
            continue
        submission = sent.submission
        recorded = {slurm.parse_id(array).job for array in sent.arrays}
        if sent.then:
            recorded.add(slurm.parse_id(sent.then.job).job)
        own = {job.id.job or 0 for job in listed if submission.is_at(job.folder)}
        jobs = own - recorded
        chunks = len(sent.uncertain)
        is_known = chunks == len(sent.sending)  # else a damaged line may have said which
        what = f"{submission.id}: sbatch's answer was lost; {chunks} chunks"
        if not jobs:
            journal.note_not_sent(submission, sent.sending.start if is_known else 0)
            yield f"{what} did not go in"
        elif is_known:
            journal.note_array(submission, sent.sending, sent.per_task, str(max(jobs)), client)
            yield f"{what} went in as {max(jobs)}"
        else:
            yield f"{what} count as queued while {sorted(jobs)} are in the queue"


def _is_unclear(sent: Journal) -> bool:
    """Say whether sbatch's answer about an array, or about the job after them, was lost."""
    return bool(sent.uncertain) or then_job.lost(sent)


def fence_off_lost_attempts(sweep_dir: SweepDir, answer: SlurmAnswer) -> None:
    """Stop attempts that may still write rows of points that are about to be sent again.

    Slurm gave them up, but they may still run, as on a node that lost contact. Those of chunks that
    the journal does not know are among them: they went in all the same.
    """
    ledger.fence_off_dead(sweep_dir)
    for submission in sweep_dir.submissions():
        if ledger.is_local(submission, submission.manifest_or_none()):
            continue
        sent = journal.read_journal(submission)
        kept = sent.over.keys() | journal.live_chunks(answer, sent)
        if sent.open_chunks or sent.uncertain:
            files.see_anew(submission.shards)
        shards = sweep_dir.shards_of(submission.id)
        attempt.fence_off(shard for shard in shards if shard.chunk not in kept)


def learn(sweep_dir: SweepDir, answer: SlurmAnswer) -> Sequence[BadNode]:
    """Record which tasks are over, as Slurm says, and which nodes failed; return these."""
    if not sweep_dir.submissions_dir.is_dir():
        return ()
    failed = bad_nodes.learn(sweep_dir, answer)
    for submission in sweep_dir.submissions():
        record_ends(submission, answer)
    return failed


def record_ends(submission: SubmissionDir, answer: SlurmAnswer) -> None:
    """Write into the journal how tasks ended, so that Slurm is not asked about them again.

    Tasks that squeue still lists are left out, since a person may requeue them.
    """
    sent = journal.read_journal(submission)
    ends = dict[str, list[int]]()
    for chunk in sent.open_chunks:
        verdict = journal.liveness(chunk, sent, answer)
        job = verdict.job
        if verdict.live or verdict.elsewhere or (job and job.source == "squeue"):
            continue
        if job or chunk not in sent.cancelled_at:
            ends.setdefault(job.state.name if job else LOST, []).append(chunk)
    then_job.note_end(sent, answer)
    if ends:
        lists = {name: slurm.task_list(chunks) for name, chunks in sorted(ends.items())}
        submission.append_job(Over(over=lists, at=journal.now()))


def check(profile: Profile, folder: Path, cluster: Cluster | CouldNotAsk | None = None) -> None:
    """Ask the cluster once, warn, and refuse a profile that cannot work.

    `cluster` is its earlier answer, if there is one. A cluster that does not answer is a warning,
    and sbatch decides.

    Raises:
        Refused: no job would ever run, or none would leave a log in `folder`.
    """
    if not slurm.available():
        return  # the call of sbatch will say that it is missing
    findings = profile_checks.look(profile, cluster)
    findings += [
        *doctor.paths(profile, in_job=False),
        *doctor.logs(profile_wants.options_of(profile), folder),
    ]
    for finding in findings:
        if finding.level == "warn":
            messages.warning(finding.words, finding.do)
    wrong = [finding.complaint() for finding in findings if finding.level == "fail"]
    if wrong:
        last = "nothing was submitted; --no-doctor submits anyway"
        raise Refused("\n".join([*wrong, last]))


def send(submission: SubmissionDir, profile: Profile, bad: Sequence[BadNode]) -> list[str]:
    """Submit every chunk, without nodes that failed unless no other is left; return the arrays."""
    name = submission.sweep_dir.name
    pinned = submission.read_manifest().nodes
    bad = [node for node in bad if node.name not in pinned]  # `retry` goes back to it
    avoided = ", ".join(str(node) for node in bad)
    wary = bad_nodes.avoiding(profile, bad)
    try:
        ids = launcher_to_slurm(wary).send(submission, wary)
    except slurm.Rejected:
        if wary is profile or journal.read_journal(submission).arrays:
            raise
        ids = launcher_to_slurm(profile).send(submission, profile)
        why = "only excluded nodes are left, or the cluster no longer has one of them"
        messages.warning(f"{name}: {why}, so they are used again: {avoided}")
    else:
        if wary is not profile:
            messages.note(f"{name}: excludes {avoided}, for a day")
    return ids


def went_in(submission: SubmissionDir) -> bool:
    """Say whether Slurm took a part of a submission, or may have taken it."""
    known = journal.read_journal(submission)
    return bool(known.arrays or known.uncertain)


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
    if any(_is_unclear(journal.read_journal(submission)) for submission in wanted):
        with locks.held(wanted[0].sweep_dir, "hpcsweep cancel"):
            yield from settle(wanted)
    journals = [journal.read_journal(submission) for submission in wanted]
    answer = journal.ask_journals(journals)
    own_chunks: dict[SubmissionDir, set[int]] = {}
    after = [*then_job.live_here(journals, answer)]
    # first, because the end of the others starts them
    targets = [sent.open_then for sent in after]
    for sent in journals:
        submission = sent.submission
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
    for sent in after:
        then_job.note_cancelled(sent)
        yield f"{sent.submission.id}: cancelled job {sent.open_then}, which was to run `then`"
    for submission, chunks in own_chunks.items():
        if chunks:
            text = slurm.task_list(chunks)
            submission.append_job(Cancelled(cancelled=text, at=journal.now()))
            yield (
                f"{submission.id}: cancelled chunks {text}; results are kept, a point that "
                "runs is finished if the site's KillWait allows, and submit sends the rest again"
            )
