"""Before anything enters the queue: says why a job of this profile would never run."""

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
    """Ask the cluster once, say what is doubtful, and refuse what cannot work.

    `cluster` is what it said before, if it was asked already. One that does not answer is told in
    one line; sbatch has the last word.

    Raises:
        Refused: no job would ever run, or none would leave a log.

    """
    if not slurm.available():
        return  # sbatch is missed, and named, where it is called
    found = checks.examine(profile, cluster or slurm.describe())
    found += folders.logs(request.of(profile), submission)
    for finding in found:
        if finding.level == "warn":
            say(f"warning: {finding.complaint()}")
    wrong = [finding.complaint() for finding in found if finding.level == "fail"]
    if wrong:
        last = "nothing was submitted; --no-check submits all the same"
        raise Refused("\n".join([*wrong, last]))
