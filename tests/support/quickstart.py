"""The tables of the quickstart sweep, as they were measured on a busy machine with two cores.

So most points are `very_noisy`, and one ended in a timeout.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from hpcsweep.store.folders import SweepDir
from paths import TESTS

if TYPE_CHECKING:
    from pathlib import Path


def collected(path: Path) -> SweepDir:
    """Return a copy of the collected sweep."""
    run = SweepDir(path / "results" / "quickstart")
    shutil.copytree(TESTS / "fixtures" / "quickstart", run.path)
    run.submissions_dir.mkdir()
    return run
