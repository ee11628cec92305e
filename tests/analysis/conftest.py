"""A collected sweep for the tests of reports and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectedsweep import collected

if TYPE_CHECKING:
    from hpcsweep.store.folders import SweepDir


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> SweepDir:
    """Return a sweep of 18 points: batch sizes, algorithms, threads."""
    return collected(tmp_path_factory.mktemp("run"))
