"""Sends a submission to Slurm by its job script; the first chunk of an array is its argument.

`--export=ALL,NAME=VALUE` would make every node run a login shell before each task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep import files, slurm
from hpcsweep.submit import script
from hpcsweep.submit.launchers import Preview, arrays

if TYPE_CHECKING:
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.rundir import SubmissionDir


def write(submission: SubmissionDir, profile: Profile) -> None:
    """Write the job script of a submission; it holds the values of the profile's variables."""
    with files.replacing(submission.script, private=True) as file:
        file.write(script.encoded(script.render(profile, submission)))


def send(submission: SubmissionDir, profile: Profile) -> list[str]:
    """Submit every chunk; return the ids of the arrays."""
    write(submission, profile)

    def submit_one(first: int, tasks: int) -> str:
        chosen = _options(submission, profile, tasks)
        script_file = submission.script.absolute()
        return str(slurm.submit(script_file, options=chosen, arguments=[str(first)]))

    return arrays.send(submission, submit_one)


def preview(submission: SubmissionDir, profile: Profile, tasks: int) -> Preview:
    """Return the job script, and the call of sbatch for the first array."""
    return Preview(
        script=script.render(profile, submission),
        file=submission.script.name,
        options=_options(submission, profile, tasks),
        arguments=["0"],
    )


def _options(submission: SubmissionDir, profile: Profile, tasks: int) -> list[str]:
    """Return sbatch's options for one array: its folder and its range."""
    throttle = f"%{profile.array_throttle}" if profile.array_throttle else ""
    return [
        f"--chdir={submission.path.absolute()}",
        "--requeue",
        f"--array=0-{tasks - 1}{throttle}",
    ]
