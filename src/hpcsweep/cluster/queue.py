"""Slurm's queue as `submit` uses it: what became of what was sent, what it would take, sending.

A submission goes without the nodes that failed, and attempts that are lost are stopped. The callers
hold the lock of the sweep's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcsweep import messages
from hpcsweep.cluster import doctor, launchers, slurm
from hpcsweep.cluster.slurm import (
    CouldNotAsk,
    bad_nodes,
    job_request,
    journal,
    profile_checks,
)
from hpcsweep.cluster.slurm.bad_nodes import BadNode
from hpcsweep.cluster.slurm.journal import SlurmAnswer
from hpcsweep.cluster.slurm.site import Cluster
from hpcsweep.errors import Refused
from hpcsweep.spec.profile import Profile
from hpcsweep.store import ledger
from hpcsweep.store.folders import SubmissionDir, SweepDir


def ask_queue(sweep_dir: SweepDir) -> SlurmAnswer:
    """Ask what became of what was sent before, also where sbatch's answer was lost."""
    for line in journal.settle(sweep_dir.submissions()):
        messages.note(line)
    answer = journal.ask_slurm(sweep_dir.submissions())
    if answer.mute:
        missing = "; ".join(str(why) for why in answer.unanswered)
        consequence = "every chunk that was sent and lacks rows counts as queued or running"
        messages.warning(f"{sweep_dir.name}: {missing}; {consequence}")
    return answer


def fence_off_lost_attempts(sweep_dir: SweepDir, answer: SlurmAnswer) -> None:
    """Stop attempts that may still write rows of points that are about to be sent again."""
    ledger.fence_off_dead(sweep_dir)
    journal.fence_off(sweep_dir, answer)


def learn(sweep_dir: SweepDir, answer: SlurmAnswer) -> Sequence[BadNode]:
    """Record which tasks are over, as Slurm says, and which nodes failed; return these."""
    if not sweep_dir.submissions_dir.is_dir():
        return ()
    failed = bad_nodes.learn(sweep_dir, answer)
    for submission in sweep_dir.submissions():
        journal.record_ends(submission, answer)
    return failed


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
        *doctor.logs(job_request.options_of(profile), folder),
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
    avoided = ", ".join(str(node) for node in bad)
    wary = bad_nodes.avoiding(profile, bad)
    try:
        ids = launchers.launcher_to_slurm(wary).send(submission, wary)
    except slurm.Rejected:
        if wary is profile or journal.read_journal(submission).arrays:
            raise
        ids = launchers.launcher_to_slurm(profile).send(submission, profile)
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
