"""Sends a submission to Slurm by its job script, as job arrays; `send_arrays` is for submitit, too.

The first chunk of an array is the script's argument. The journal notes each array before sbatch is
asked, and then the answer, so that an array whose answer was lost can be found again. At a limit on
submitted jobs, smaller arrays are tried. The next `hpcsweep submit` sends the chunks that did not
go in.

`--export=ALL,NAME=VALUE` would make every node run a login shell before each task.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from hpcsweep import files
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import job_script, journal
from hpcsweep.cluster.slurm.sbatch import Preview
from hpcsweep.errors import HpcsweepError, PartlySubmitted, SchedulerError, UsageError
from hpcsweep.spec.profile import Profile
from hpcsweep.store.folders import SubmissionDir

SubmitOne = Callable[[int, int], str]  # first chunk, number of tasks: id of the array
_MAX_ARRAY_SIZE: Final = 1001  # Slurm's default, where it cannot be asked


def write(submission: SubmissionDir, profile: Profile) -> None:
    """Write the job script of a submission; it holds the values of the profile's variables."""
    with files.replacing(submission.script, most=0o600) as file:
        file.write(job_script.encoded(job_script.render(profile, submission)))


def send(submission: SubmissionDir, profile: Profile) -> list[str]:
    """Submit every chunk; return the ids of the arrays."""
    write(submission, profile)

    def submit_one(first: int, tasks: int) -> str:
        chosen = _options(submission, profile, tasks)
        script_file = submission.script.absolute()
        return str(slurm.submit(script_file, options=chosen, arguments=[str(first)]))

    return send_arrays(submission, submit_one)


def preview(submission: SubmissionDir, profile: Profile, tasks: int) -> Preview:
    """Return the job script, and the call of sbatch for the first array."""
    return Preview(
        script=job_script.render(profile, submission),
        file=submission.script.name,
        options=_options(submission, profile, tasks),
        arguments=["0"],
    )


def _options(submission: SubmissionDir, profile: Profile, tasks: int) -> list[str]:
    throttle = f"%{profile.array_throttle}" if profile.array_throttle else ""
    array = f"--array=0-{tasks - 1}{throttle}"
    return [f"--chdir={submission.path.absolute()}", "--requeue", array]


def send_arrays(submission: SubmissionDir, submit_one: SubmitOne) -> list[str]:
    """Submit every chunk as `SendsToSlurm.send` does; `submit_one` sends one array."""
    total = submission.read_manifest().chunks
    named = os.environ.get("SLURM_CLUSTERS", "")
    if "," in named or named == "all":
        raise UsageError(f"SLURM_CLUSTERS={named}: name one cluster, where jobs can be found")
    answer = slurm.config()
    here = slurm.this_cluster(answer)
    sent = 0
    size = max_size(answer)
    ids: list[str] = []
    while sent < total:
        size = min(size, total - sent)
        journal.sending(submission, sent, size, here)
        try:
            job = submit_one(sent, size)
        except HpcsweepError as error:
            if not (isinstance(error, SchedulerError) and error.maybe_accepted):
                journal.not_sent(submission, sent)
            at_limit = isinstance(error, slurm.LimitReached) and error.limit != "MaxJobCount"
            if at_limit and size > 1:  # sbatch is slow to tell MaxJobCount
                size //= 2  # the limit may leave room for some: few tries find how many
                continue
            if not sent:
                raise
            raise PartlySubmitted(f"{sent} of {total} chunks went in; {error}") from error
        journal.went_in(submission, sent, size, job, here)
        ids.append(job)
        sent += size
    return ids


def max_size(answer: dict[str, str] | slurm.CouldNotAsk) -> int:
    """Return how many tasks one array may have: MaxArraySize in `config` limits the index."""
    found = None if isinstance(answer, slurm.CouldNotAsk) else answer.get("MaxArraySize")
    return max(1, slurm.number(found) or _MAX_ARRAY_SIZE)
