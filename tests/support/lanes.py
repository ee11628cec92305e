"""Who runs what when several processes share the suite (`pytest -n`).

A process takes one module after the other, so that a module's fixtures are made once. The tests on
a real Slurm are three lanes, each for one process with a cluster of its own: they mostly wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

# The modules of tests/on_slurm by lane: about the same time for each; what is not named is in the
# last one.
LANES = (
    ("disasters", "control_of_jobs", "scripts", "mistakes"),
    ("submitit", "launching", "badnodes"),
    ("outage", "status_of_jobs", "talking_to_slurm", "lost_answers", "discovering", "lab"),
)
# Modules that take long begin early, so that no process is alone with one in the end.
LONG = (
    "tests/on_slurm/test_disasters.py",
    "tests/on_slurm/",
    "tests/node/test_kill.py",
    "tests/measure/training/test_checkpoints.py",
    "tests/docs/test_seeds.py",
    "tests/measure/training/test_workload.py",
    "tests/node/test_verify.py",
    "tests/properties/",
    "tests/submit/",
    "tests/measure/",
    "tests/tracking/",
    "tests/conv/",
)


def rank(nodeid: str) -> int:
    """Return the place of a test's module in the order of beginning."""
    return next((n for n, path in enumerate(LONG) if nodeid.startswith(path)), len(LONG))


class Scheduler(LoadScopeScheduling):
    """Hands out modules in the order of the collection, and a lane of Slurm's tests as one."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        """Keep the order."""
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if not module.startswith("tests/on_slurm/"):
            return module
        name = module.rpartition("/test_")[2].removesuffix(".py")
        lane = next((n for n, names in enumerate(LANES, 1) if name in names), len(LANES))
        return f"Slurm {lane}"
