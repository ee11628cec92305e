"""Who runs what when several processes share the suite (`pytest -n`).

A process takes one module after the other, so that a module's fixtures are made once. The tests on
a real Slurm are three lanes, each for one process with a cluster of its own: they mostly wait.
These processes import no other tests, and the others none of Slurm's, which saves torch thrice.

The tests marked `gpu` are a fourth lane where there is no GPU: its process has the pretend one from
its start (tests/support/pretendgpu.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import pretendgpu

if TYPE_CHECKING:
    from pathlib import Path

# The modules of tests/on_slurm by lane: about the same time for each; what is not named is in the
# last one, such as time_limit.
LANES = (
    ("disasters", "control_of_jobs", "scripts", "mistakes", "options"),
    (
        *("submitit", "launching", "badnodes", "talking_to_slurm", "lab"),
        *("every_gpu_of_a_node", "slow_answers", "wckeys"),
    ),
    (
        *("outage", "lost_answers", "discovering", "init", "until_error", "status_of_jobs"),
        *("each_node", "then", "job_time"),
    ),
)
# Modules that take long begin early, so that no process is alone with one in the end.
LONG = (
    "tests/on_slurm/test_disasters.py",
    "tests/on_slurm/",
    "tests/node/test_kill.py",
    "tests/measure/workloads/test_checkpoints.py",
    "tests/docs/test_seeds.py",
    "tests/measure/workloads/test_training.py",
    "tests/cli/test_verify.py",
    "tests/properties/",
    "tests/submit/",
    "tests/measure/",
    "tests/cluster/",
    "tests/conv/",
)
SLURM, GPU, OTHERS = "slurm", "gpu", "others"
GPU_PROCESS = len(LANES)  # the number of the process that has the pretend GPU
GPU_MARK = "mark.gpu"  # in the text of each module that has such a test


def rank(nodeid: str) -> int:
    """Return the place of a test's module in the order of beginning."""
    return next((n for n, path in enumerate(LONG) if nodeid.startswith(path)), len(LONG))


def share(config: pytest.Config, worker: str) -> str | None:
    """Return which tests a process collects; None stands for all.

    The suite as a whole is shared so; named tests, few processes and a process that replaces one
    that died are not.
    """
    number, processes = int(worker.removeprefix("gw")), int(config.getoption("numprocesses") or 0)
    if not is_shared(config) or number >= processes:
        return None
    if number == GPU_PROCESS and has_gpu_lane():
        return GPU
    return SLURM if number < len(LANES) else OTHERS


def is_shared(config: pytest.Config) -> bool:
    """Say whether the whole suite runs, in enough processes for the lanes and all others."""
    processes = int(config.getoption("numprocesses") or 0)
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    chosen = any(map(config.getoption, ("keyword", "markexpr", "lf")))
    return whole and not chosen and processes > len(LANES) + 1


def has_gpu_lane() -> bool:
    """Say whether the tests of a GPU get a pretend one."""
    return not pretendgpu.is_real_one_here() and not pretendgpu.missing()


def is_of_other_lane(item: pytest.Item, mine: str | None) -> bool:
    """Say whether a test that a process found is for the lane of another process."""
    if mine is None or not has_gpu_lane():
        return False
    return (item.get_closest_marker("gpu") is None) == (mine == GPU)


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Say whether this process leaves a folder or module of tests to the other processes."""
    mine = getattr(config, "workerinput", {}).get("share")
    folder = config.rootpath / "tests" / "on_slurm"
    if mine == OTHERS:
        return path == folder
    if mine == GPU:
        return path == folder or (path.suffix == ".py" and GPU_MARK not in path.read_text())
    return mine == SLURM and not (path.is_relative_to(folder) or folder.is_relative_to(path))
