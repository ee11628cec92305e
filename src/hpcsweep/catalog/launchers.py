"""The launchers: the ways to start chunks that a profile's key `launcher` can name.

A new launcher is one file in `submit/launchers/` and one line in `LAUNCHERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hpcsweep.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """What other parts of the program need to know of a launcher."""

    module: str  # in `submit/launchers/`; its functions are those of a protocol there
    template: str = ""  # of what it hands to sbatch, in `jobs/templates/`
    in_slurm: bool = False  # sends chunks to Slurm's queue; otherwise they run on this machine
    runs_profilers: bool = False  # its jobs take the profile's `wrapper`
    needs_time: bool = False  # the profile must have a time limit
    extra: str = ""  # of pip, that has what it needs


LAUNCHERS: Final[Mapping[str, Launcher]] = {
    "sbatch": Launcher(
        module="sbatch", template="job.sbatch.j2", in_slurm=True, runs_profilers=True
    ),
    "submitit": Launcher(
        module="via_submitit",
        template="setup.sh.j2",
        in_slurm=True,
        needs_time=True,
        extra="submitit",
    ),
    "local": Launcher(module="local"),
}
