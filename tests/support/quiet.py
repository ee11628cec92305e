"""A machine on which nobody else computes: what tests share a CPU for is no finding of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from hpcsweep.measure.checks.control import ControlCheck

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quiet_machine() -> Iterator[None]:
    """Let benches of this process measure the control, and find it undisturbed."""
    measured = ControlCheck.measured
    with mock.patch.object(ControlCheck, "measured", lambda self: (measured(self)[0], {})):
        yield
