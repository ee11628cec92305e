"""A machine on which nobody else computes: what tests share a CPU for is no finding of theirs."""

from __future__ import annotations

import pytest

from hpcsweep.measure.machine.control import Control


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benches of this process measure the control, and find it undisturbed."""
    row = Control.row
    monkeypatch.setattr(Control, "row", lambda self: (row(self)[0], []))
