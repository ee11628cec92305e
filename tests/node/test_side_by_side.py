"""The chunks of a job with several GPUs: which GPU and cores each has, and how the job ends."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep import environment
from hpcsweep.errors import EXIT_REQUEUE, Refused
from hpcsweep.node import side_by_side
from hpcsweep.node.side_by_side import SideBySide, cores, with_one_gpu

if TYPE_CHECKING:
    from pathlib import Path

UUIDS = "GPU-8f2c,GPU-17aa, GPU-0001"
SLICES = "MIG-4c1f,MIG-77e0"


@pytest.mark.parametrize(
    ("vendor", "variables", "expected"),
    [
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "5"}),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": UUIDS}, {"CUDA_VISIBLE_DEVICES": "GPU-17aa"}),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": SLICES}, {"CUDA_VISIBLE_DEVICES": "MIG-77e0"}),
        ("nvidia", {}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("amd", {}, {"ROCR_VISIBLE_DEVICES": "1"}),
        ("amd", {"ROCR_VISIBLE_DEVICES": "2,3"}, {"ROCR_VISIBLE_DEVICES": "3"}),
        ("amd", {"HIP_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "3"}),
        # inside of a container without the driver's file
        ("nvidia", {"ROCR_VISIBLE_DEVICES": "2,3"}, {"ROCR_VISIBLE_DEVICES": "3"}),
        # HIP would look for device 3 of the one that is left
        (
            "amd",
            {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3", "HOME": "/home/me"},
            {"ROCR_VISIBLE_DEVICES": "3", "HOME": "/home/me"},
        ),
    ],
)
def test_the_second_supervisor_has_the_second_gpu_that_slurm_gave(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    vendor: str,
    variables: dict[str, str],
    expected: dict[str, str],
):
    """By its number, UUID or slice, and by one variable alone."""
    monkeypatch.setattr(environment, "AMD_DRIVER", tmp_path / ("" if vendor == "amd" else "none"))
    assert with_one_gpu(variables, 1, 2) == expected


def test_a_job_with_fewer_gpus_than_its_profile_says_is_refused():
    """Two supervisors on one GPU would measure each other."""
    with pytest.raises(Refused, match=r"CUDA_VISIBLE_DEVICES=0,1, and .* `gpus_per_job` is 4"):
        with_one_gpu({"CUDA_VISIBLE_DEVICES": "0,1"}, 0, 4)


@given(st.sets(st.integers(0, 255), min_size=1), st.integers(1, 16))
def test_each_has_as_many_cores_and_none_has_two_owners(given_cores: set[int], shares: int):
    """Where there are enough; else every supervisor may use all."""
    found = cores(given_cores, shares)
    assert len(found) == shares
    assert {len(share) for share in found} == {len(given_cores) // shares or len(given_cores)}
    if len(given_cores) >= shares:
        every = [core for share in found for core in share]
        assert len(set(every)) == len(every)
        assert set(every) <= given_cores


def test_the_threads_of_a_core_stay_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Four cores with two threads each, numbered as on most machines."""
    monkeypatch.setattr(side_by_side, "_TOPOLOGY", str(tmp_path / "{}"))
    for core in range(4):
        for thread in (core, core + 4):
            (tmp_path / str(thread)).write_text(f"{core},{core + 4}\n")
    assert cores(range(8), 2) == [[0, 4, 1, 5], [2, 6, 3, 7]]


def _run(*programs: str) -> int:
    job = SideBySide(len(programs))
    every = os.sched_getaffinity(0)
    for place, program in enumerate(programs):
        job.start(place, [sys.executable, "-c", program], os.environ, every)
    return job.wait()


@pytest.mark.parametrize(
    ("programs", "code"),
    [
        (["", ""], 0),
        (["", "raise SystemExit(5)"], 5),
        (["raise SystemExit(5)", f"raise SystemExit({EXIT_REQUEUE})"], EXIT_REQUEUE),
        (["", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"], EXIT_REQUEUE),
    ],
)
def test_the_job_is_requeued_where_one_has_points_left_or_was_killed(
    programs: list[str], code: int
):
    """Otherwise it tells that one has failed."""
    assert _run(*programs) == code


def test_nothing_more_is_started_after_a_signal():
    """What was not started has its points left."""
    job = SideBySide(1)
    job.hand_on(signal.SIGTERM, None)
    job.start(0, [sys.executable, "-c", "raise SystemExit(9)"], os.environ, {0})
    assert job.wait() == EXIT_REQUEUE
