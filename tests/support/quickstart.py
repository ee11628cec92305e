"""The tables of the quickstart sweep, as they were measured on a busy machine with two cores.

So most points are `very_noisy`, and one ended in a timeout.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from hpcsweep.store.rundir import RunDir
from paths import TESTS

if TYPE_CHECKING:
    from pathlib import Path


def collected(path: Path) -> RunDir:
    """Return a copy of the collected sweep."""
    run = RunDir(path / "results" / "quickstart")
    shutil.copytree(TESTS / "fixtures" / "quickstart", run.path)
    run.submissions_dir.mkdir()
    return run
