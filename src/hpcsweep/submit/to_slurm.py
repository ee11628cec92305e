"""Sends a submission to Slurm without the nodes that failed, and stops attempts that are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep import slurm
from hpcsweep.store import attempt
from hpcsweep.submit import launchers, time_limit
from hpcsweep.tracking import bad_nodes, journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.rundir import RunDir, SubmissionDir
    from hpcsweep.tracking.journal import Answer


def learn(run: RunDir, answer: Answer) -> list[bad_nodes.BadNode]:
    """Record which nodes failed and which tasks are over, as Slurm says; return the nodes."""
    if not run.submissions_dir.is_dir():
        return []
    bad = bad_nodes.learn(run, answer)
    for submission in run.submissions():
        journal.record(submission, answer)
    return bad


def fence_off(run: RunDir, answer: Answer) -> None:
    """Stop attempts that Slurm gave up but that may still run, as on a node that lost contact.

    Their points are about to be sent again. The caller holds the run folder's lock.
    """
    for submission in [] if answer.silent else run.submissions():
        known = journal.sent(submission)
        given_up = known.task_of.keys() - known.over.keys() - answer.live(known)
        found = run.shards_of(submission.id) if given_up else []
        attempt.fence_off(shard for shard in found if shard.chunk in given_up)


def send(
    submission: SubmissionDir,
    profile: Profile,
    bad: Sequence[bad_nodes.BadNode],
    say: Callable[[str], None],
) -> list[str]:
    """Submit every chunk, without the nodes that failed unless no other node is left.

    Returns the ids of the arrays.

    Raises:
        PartlySubmitted: something stopped it after some chunks went in.
        SchedulerError: nothing went in.

    """
    name, told = submission.run.name, ", ".join(map(str, bad))
    profile = time_limit.applied(profile, submission.read_manifest())
    wary = bad_nodes.avoiding(profile, bad)
    try:
        ids = launchers.slurm(wary).send(submission, wary)
    except slurm.Rejected:
        if wary is profile or journal.sent(submission).arrays:
            raise
        ids = launchers.slurm(profile).send(submission, profile)
        say(f"{name}: only excluded nodes are left, so they are used again: {told}")
    else:
        if wary is not profile:
            say(f"{name}: excludes {told}; --allow-node NODE allows one again")
    return ids
