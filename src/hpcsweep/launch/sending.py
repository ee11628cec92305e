"""Sends a submission to Slurm by its profile's launcher, past the nodes that broke."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep import badnodes, queues, slurm
from hpcsweep.launch import sbatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcsweep.profile import Profile
    from hpcsweep.queues import Answer
    from hpcsweep.rundir import RunDir, SubmissionDir


def learn(run: RunDir, answer: Answer) -> list[badnodes.BadNode]:
    """Keep what Slurm said, which nodes broke and which tasks are over; return the nodes."""
    if not run.submissions_dir.is_dir():
        return []
    bad = badnodes.learn(run, answer)
    for submission in run.submissions():
        queues.record(submission, answer)
    return bad


def send(
    submission: SubmissionDir,
    profile: Profile,
    bad: Sequence[badnodes.BadNode],
    say: Callable[[str], None],
) -> list[str]:
    """Submit every chunk to other nodes than those that broke, unless that leaves none.

    Returns the ids of the arrays.

    Raises:
        PartlySubmitted: something stopped it after some chunks went in.
        SchedulerError: nothing went in.

    """
    name, told = submission.run.name, ", ".join(map(str, bad))
    wary = badnodes.avoiding(profile, bad)
    try:
        ids = _launch(submission, wary)
    except slurm.Rejected:
        if wary is profile or submission.read_jobs():
            raise
        ids = _launch(submission, profile)
        say(f"{name}: no node is left without those that broke, so they are used again: {told}")
    else:
        if wary is not profile:
            say(f"{name}: avoids {told}; --allow-node NODE uses one again")
    return ids


def _launch(submission: SubmissionDir, profile: Profile) -> list[str]:
    if profile.launcher == "submitit":
        from hpcsweep.launch import via_submitit  # noqa: PLC0415 - 0.2 s, only for who wants it

        return via_submitit.launch(submission, profile)
    return sbatch.launch(submission, profile)
