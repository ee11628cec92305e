"""Sends a submission to Slurm through its job script, whose argument is an array's first chunk.

Not through `--export=ALL,NAME=VALUE`: that makes every node run a login shell before each task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep import files, slurm
from hpcsweep.submit import script
from hpcsweep.submit.launchers import arrays

if TYPE_CHECKING:
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.rundir import SubmissionDir


def write(submission: SubmissionDir, profile: Profile) -> None:
    """Write the job script of a submission."""
    with files.replacing(submission.script) as file:
        file.write(script.encoded(script.render(profile, submission)))


def launch(submission: SubmissionDir, profile: Profile) -> list[str]:
    """Submit every chunk; return the ids of the arrays.

    Raises:
        PartlySubmitted: something stopped it after some chunks went in.
        SchedulerError: nothing went in.

    """
    write(submission, profile)

    def submit_one(first: int, tasks: int) -> str:
        chosen = options(submission, profile, tasks)
        script_file = submission.script.absolute()
        return str(slurm.submit(script_file, options=chosen, arguments=[str(first)]))

    return arrays.send(submission, submit_one)


def options(submission: SubmissionDir, profile: Profile, tasks: int) -> list[str]:
    """Return sbatch's options for one array: its folder and its range."""
    throttle = f"%{profile.array_throttle}" if profile.array_throttle else ""
    return [
        f"--chdir={submission.path.absolute()}",
        "--requeue",
        f"--array=0-{tasks - 1}{throttle}",
    ]
