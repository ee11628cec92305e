"""What several tests of commands begin with."""

from __future__ import annotations

import pytest

from layeredsweep import REPEATED, layered
from localruns import Desk


@pytest.fixture(scope="module")
def layered_desk(tmp_path_factory) -> Desk:
    """Return the folder of a collected sweep with layers, `demo`."""
    folder = tmp_path_factory.mktemp("layered")
    layered(folder, REPEATED)
    return Desk(folder)
