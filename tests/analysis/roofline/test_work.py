"""Roofs: the least time of a piece of work, and the peaks of devices."""

from __future__ import annotations

import pytest

from hpcsweep.analysis.roofline.work import Roofs, Work, roofs_of
from hpcsweep.catalog.gpus import DEVICES, GPUS
from hpcsweep.errors import UsageError


def test_the_roof_is_the_lower_of_memory_and_compute():
    """A piece's share is the least time that it can take over the time it took."""
    roofs = Roofs(1e12, "x", {"fp32": 1e13})
    light = Work("k", "0", {"fp32": 1e9}, 1e9, 2e-3)
    assert (roofs.bound(light), roofs.share(light)) == ("memory", pytest.approx(0.5))
    heavy = Work("k", "0", {"fp32": 1e11}, 1e9, 4e-2)
    assert (roofs.bound(heavy), roofs.share(heavy)) == ("compute", pytest.approx(0.25))


def test_units_that_work_side_by_side_are_not_added():
    """Tensor cores and FP32 pipes have peaks of their own; the slower one bounds."""
    roofs = Roofs(1e12, "x", {"fp32": 1e13, "tf32 tensor": 1e14})
    mixed = Work("k", "0", {"fp32": 1e10, "tf32 tensor": 1e11}, 0, 1e-3)
    assert roofs.share(mixed) == pytest.approx(1.0)


@pytest.mark.parametrize("gpu", DEVICES, ids=lambda gpu: gpu.name)
def test_every_device_of_the_table_has_its_dense_roofs(gpu):
    """Units without a figure have no roof; MI250 is one die."""
    roofs = roofs_of(gpu)
    assert roofs.peak("fp32") == gpu.fp32_tflops * 1e12
    assert roofs.peak("float32") == (gpu.fp32_matrix_tflops or gpu.fp32_tflops) * 1e12
    assert roofs.bandwidth == gpu.bandwidth_gbs * 1e9
    if gpu.tf32_tflops is None:
        with pytest.raises(UsageError, match="give --peak-compute"):
            roofs.peak("tf32 tensor")


def test_mi250_is_one_of_two_dies():
    """A module's peak would halve every share."""
    assert roofs_of(GPUS["mi250"]).bandwidth == 1638e9
