"""An export and a sweep to draw rooflines of."""

from __future__ import annotations

import pytest

import ncufiles
import resultsfolder
from hpcsweep.store.collect import collector


@pytest.fixture
def step(tmp_path):
    """Return an export of 98 launches of 34 kernels."""
    return ncufiles.write_wide(tmp_path / "step.csv", ncufiles.step())


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """Return a collected sweep of 8 points on the CPU: 2 GFLOP and 1 MB in 2 ms each."""
    folder = resultsfolder.make(tmp_path_factory.mktemp("swept"))
    folder.submit("20260101-000000-aaaaaa")
    folder.measure(
        folder.shard("20260101-000000-aaaaaa"),
        median_ms=2.0, flops=2_000_000_000, bytes_min=1_000_000, peak_source="A100 SXM4 80GB",
    )  # fmt: skip
    collector.collect(folder.sweep_dir)
    return folder.sweep_dir
