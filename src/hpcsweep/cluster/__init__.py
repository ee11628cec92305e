"""The one door to where chunks run: the launchers, one module per way to start them.

`catalog.LAUNCHERS` is the table of them. Each module satisfies one of the two protocols here, and
runs `hpcsweep.node.supervisor` with the arguments SUBMISSION CHUNK for every chunk, so rows,
journal and resume are the same for all. A module is imported when a profile names it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from hpcsweep.catalog import LAUNCHERS

if TYPE_CHECKING:
    from hpcsweep.cluster.local.supervisors import Counts, LaunchResult
    from hpcsweep.cluster.slurm.job_script import Array
    from hpcsweep.cluster.slurm.sbatch import Preview
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.folders import SubmissionDir


class RunsHere(Protocol):
    """A launcher whose chunks run on this machine."""

    def run(self, submission: SubmissionDir, profile: Profile, progress: Counts) -> LaunchResult:
        """Run every chunk to its end; tell `progress` of each new row.

        At the first Ctrl-C, finish the points that run within `kill_wait`; tell that, too.
        """


class SendsToSlurm(Protocol):
    """A launcher whose chunks wait in Slurm's queue."""

    def send(self, submission: SubmissionDir, profile: Profile) -> list[str]:
        """Submit every chunk, and return the ids of the arrays.

        Raises:
            PartlySubmitted: something stopped it after some chunks went in.
            SchedulerError: nothing went in.
        """

    def preview(self, submission: SubmissionDir, profile: Profile, array: Array) -> Preview:
        """Return what `send` would hand to sbatch for the first array."""


def launcher_here(profile: Profile) -> RunsHere:
    """Return the launcher of a profile whose chunks run on this machine."""
    module = LAUNCHERS[profile.launcher].module
    return cast("RunsHere", importlib.import_module(f"{__package__}.{module}"))


def launcher_to_slurm(profile: Profile) -> SendsToSlurm:
    """Return the launcher of a profile whose chunks go to Slurm."""
    module = LAUNCHERS[profile.launcher].module
    return cast("SendsToSlurm", importlib.import_module(f"{__package__}.{module}"))
