"""Who runs what when several processes share the suite (`pytest -n`).

A process takes one module after the other, so that a module's fixtures are made once. The tests on
a real Slurm are three lanes, each for one process with a cluster of its own: they mostly wait.
These processes import no other tests, and the others none of Slurm's, which saves torch thrice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# The modules of tests/on_slurm by lane: about the same time for each; what is not named is in the
# last one, such as time_limit.
LANES = (
    ("disasters", "control_of_jobs", "scripts", "mistakes"),
    ("submitit", "launching", "badnodes", "talking_to_slurm", "lab"),
    ("outage", "lost_answers", "discovering", "init", "until_error", "status_of_jobs"),
)
# Modules that take long begin early, so that no process is alone with one in the end.
LONG = (
    "tests/on_slurm/test_disasters.py",
    "tests/on_slurm/",
    "tests/node/test_kill.py",
    "tests/measure/workloads/training/test_checkpoints.py",
    "tests/docs/test_seeds.py",
    "tests/measure/workloads/training/test_workload.py",
    "tests/cli/test_verify.py",
    "tests/properties/",
    "tests/submit/",
    "tests/measure/",
    "tests/cluster/",
    "tests/conv/",
)
SLURM, OTHERS = "slurm", "others"


def rank(nodeid: str) -> int:
    """Return the place of a test's module in the order of beginning."""
    return next((n for n, path in enumerate(LONG) if nodeid.startswith(path)), len(LONG))


def share(config: pytest.Config, worker: str) -> str | None:
    """Return which tests a process collects; None stands for all.

    The suite as a whole is shared so; named tests, few processes and a process that replaces one
    that died are not.
    """
    number, processes = int(worker.removeprefix("gw")), int(config.getoption("numprocesses") or 0)
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    chosen = any(map(config.getoption, ("keyword", "markexpr", "lf")))
    if not whole or chosen or processes <= len(LANES) or number >= processes:
        return None
    return SLURM if number < len(LANES) else OTHERS


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Say whether this process leaves a folder or module of tests to the other processes."""
    mine = getattr(config, "workerinput", {}).get("share")
    folder = config.rootpath / "tests" / "on_slurm"
    if mine == OTHERS:
        return path == folder
    return mine == SLURM and not (path.is_relative_to(folder) or folder.is_relative_to(path))
