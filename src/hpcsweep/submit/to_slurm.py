"""What `submit` does with Slurm: asks it, and sends to it, as `submit.steps` calls for it.

A submission goes without the nodes that failed, and attempts that are lost are stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsweep import messages
from hpcsweep.cluster import doctor, launchers, slurm
from hpcsweep.cluster.slurm import (
    bad_nodes,
    job_request,
    journal,
    liveness,
    profile_checks,
    settling,
    site,
    slurm_answer,
)
from hpcsweep.cluster.slurm.site import Cluster
from hpcsweep.cluster.slurm.slurm_answer import SlurmAnswer
from hpcsweep.errors import Refused
from hpcsweep.spec.profile import Profile
from hpcsweep.spec.space import Sweep
from hpcsweep.store import folders, ledger, locks
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.submit import cost, prepare, time_limit
from hpcsweep.submit.prepare import LOCKED_BY, Submit
from hpcsweep.submit.request import Request
from hpcsweep.text import count

if TYPE_CHECKING:
    from hpcsweep.store.ledger import LiveChunks


def find_lost_arrays(job: Submit) -> None:
    """Find out whether arrays are in the queue for which sbatch's answer was lost."""
    for line in settling.settle(job.sweep_dir.submissions()):
        messages.note(line)


def ask_slurm(job: Submit) -> None:
    """Ask what became of what was sent before."""
    job.answer = slurm_answer.ask_slurm(job.sweep_dir.submissions())
    if job.answer.mute:
        missing = "; ".join(map(str, job.answer.unanswered))
        consequence = "every chunk that was sent and lacks rows counts as queued or running"
        messages.warning(f"{job.sweep_dir.name}: {missing}; {consequence}")
    for line in left_alone(job.sweep_dir, job.answer):
        messages.note(line)


def left_alone(sweep_dir: SweepDir, answer: SlurmAnswer) -> Iterator[str]:
    """Say which points are not sent since their jobs may live, though this Slurm shows none."""
    for sent in map(journal.read_journal, sweep_dir.submissions()):
        unseen: dict[str, list[int]] = {}
        for chunk in sorted(sent.open_chunks):
            verdict = liveness.liveness(chunk, sent, answer)
            if verdict.live and verdict.until:
                until = "" if verdict.elsewhere else f", until {verdict.until}"
                unseen.setdefault(verdict.why + until, []).append(chunk)
        lost = liveness.liveness_of_unanswered(sent, answer) if sent.unsure else None
        if lost and lost.until and lost.live:
            unseen[f"{lost.why}; ask there"] = [*sent.unsure]
        for why, chunks in unseen.items():
            points = count(len(ledger.missing_in(sent.submission, chunks)), "point")
            where = f"{sent.submission.id}:{slurm.task_list(chunks)}"
            name = sweep_dir.name
            yield f"{name}: leaves {points} of {where} alone, which may be measured: {why}"


def fence_off_lost_attempts(job: Submit) -> None:
    """Stop attempts that may still write rows of points that are about to be sent again."""
    ledger.fence_off_dead(job.sweep_dir)
    if job.answer:
        settling.fence_off(job.sweep_dir, job.answer)


def live_chunks(job: Submit) -> LiveChunks | None:
    """Return what tells the live chunks of a submission; None before Slurm was asked."""
    return partial(liveness.live_chunks_of, job.answer) if job.answer else None


def learn_from_slurm(job: Submit) -> None:
    """Record which nodes failed and which tasks are over, as Slurm says."""
    if job.answer and job.sweep_dir.submissions_dir.is_dir():
        job.bad_nodes = bad_nodes.learn(job.sweep_dir, job.answer)
        for submission in job.sweep_dir.submissions():
            settling.record_ends(submission, job.answer)


def check_and_send(job: Submit) -> None:
    """Send the chunks, if the profile fits the cluster."""
    try:
        prepare.tell_templates(job.submission)
        if job.request.options.doctor:
            precheck(job.request.profile, job.submission.path)
        ids = send(job.submission, job.request.profile, job.bad_nodes)
    except BaseException:
        known = journal.read_journal(job.submission)
        if not known.arrays and not known.uncertain:  # nothing went in
            prepare.discard(job.submission)
            prepare.save_sweep(job.sweep_dir, job.sweep_before)
        raise
    messages.progress(job.headline)
    if job.ready.time_limit:
        asked_for = f"jobs ask for {job.ready.time_limit} instead of {job.request.profile.time}"
        messages.progress(f"{asked_for}: points {job.ready.basis}")
    sent = f"{count(job.ready.chunks, 'chunk')} queued as {', '.join(ids)}"
    messages.progress(f"{sent}; you can log out")


def check_ahead(results: Path, requests: Sequence[Request]) -> None:
    """Check the profiles of several requests; `Refused` for one that has something to send."""
    unchecked = [each for each in requests if each.options.doctor and each.profile.in_slurm]
    cluster = site.describe() if unchecked and slurm.available() else None
    for each in unchecked:
        try:
            precheck(each.profile, results / each.sweep.name, cluster)
        except Refused:  # noqa: PERF203 - a few profiles
            if cost.cost_of(results, each).chunks:
                raise


def allow_nodes(results: Path, sweep: Sweep, names: Sequence[str]) -> None:
    """Let a sweep use excluded nodes again; `UsageError` names those that it excludes."""
    sweep_dir = folders.SweepDir(results / sweep.name)
    with locks.held(sweep_dir, LOCKED_BY):
        bad_nodes.allow(sweep_dir, names, slurm_answer.ask_slurm(sweep_dir.submissions()))


def send(
    submission: SubmissionDir, profile: Profile, bad: Sequence[bad_nodes.BadNode]
) -> list[str]:
    """Submit every chunk, without nodes that failed unless no other is left; return the arrays."""
    name = submission.sweep_dir.name
    avoided = ", ".join(map(str, bad))
    profile = time_limit.applied(profile, submission.read_manifest())
    wary = bad_nodes.avoiding(profile, bad)
    try:
        ids = launchers.launcher_to_slurm(wary).send(submission, wary)
    except slurm.Rejected:
        if wary is profile or journal.read_journal(submission).arrays:
            raise
        ids = launchers.launcher_to_slurm(profile).send(submission, profile)
        messages.warning(f"{name}: only excluded nodes are left, so they are used again: {avoided}")
    else:
        if wary is not profile:
            messages.note(f"{name}: excludes {avoided}", "--allow-node NODE allows one again")
    return ids


def precheck(profile: Profile, submission: Path, cluster: Cluster | None = None) -> None:
    """Ask the cluster once, print warnings, and refuse a profile that cannot work.

    `cluster` is its earlier answer, if there is one. A cluster that does not answer is a warning,
    and sbatch decides.

    Raises:
        Refused: no job would ever run, or none would leave a log.
    """
    if not slurm.available():
        return  # the call of sbatch will say that it is missing
    findings = profile_checks.examine(profile, cluster or site.describe())
    findings += doctor.logs(job_request.options_of(profile), submission)
    for finding in findings:
        if finding.level == "warn":
            messages.warning(finding.words, finding.do)
    wrong = [finding.complaint() for finding in findings if finding.level == "fail"]
    if wrong:
        last = "nothing was submitted; --no-doctor submits anyway"
        raise Refused("\n".join([*wrong, last]))
