"""Benches in these tests find a machine on which nobody else computes."""

from __future__ import annotations

import pytest

from quiet import quiet_machine

__all__ = ["quiet_machine"]


@pytest.fixture
def nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pretend GPU compute nothing, where the test is of times: it would on the host."""
    monkeypatch.setenv("PRETEND_COMPUTE", "0")
