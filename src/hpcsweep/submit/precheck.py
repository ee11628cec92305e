"""Checks a profile before a job enters the queue, and refuses one whose jobs would never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep import slurm
from hpcsweep.errors import Refused
from hpcsweep.preflight import checks, folders, request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcsweep.slurm import Cluster
    from hpcsweep.spec.profile import Profile


def check(
    profile: Profile, submission: Path, say: Callable[[str], None], cluster: Cluster | None = None
) -> None:
    """Ask the cluster once, print warnings, and refuse a profile that cannot work.

    `cluster` is its earlier answer, if there is one. A cluster that does not answer is a warning,
    and sbatch decides.

    Raises:
        Refused: no job would ever run, or none would leave a log.
    """
    if not slurm.available():
        return  # the call of sbatch will say that it is missing
    found = checks.examine(profile, cluster or slurm.describe())
    found += folders.logs(request.of(profile), submission)
    for finding in found:
        if finding.level == "warn":
            say(f"warning: {finding.complaint()}")
    wrong = [finding.complaint() for finding in found if finding.level == "fail"]
    if wrong:
        last = "nothing was submitted; --no-check submits anyway"
        raise Refused("\n".join([*wrong, last]))
