"""A collected sweep for the tests of reports and plots, and an export to draw rooflines of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import ncufiles
from collectedsweep import collected

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.store.folders import SweepDir


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> SweepDir:
    """Return a sweep of 18 points: batch sizes, algorithms, threads."""
    return collected(tmp_path_factory.mktemp("run"))


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return an export of 98 launches of 34 kernels."""
    return ncufiles.write_wide(tmp_path / "step.csv", ncufiles.step())
