"""Benches in these tests find a machine on which nobody else computes; GPUs that are steady."""

from __future__ import annotations

import pytest

from quiet import quiet_machine
from steadygpu import steady_gpu

__all__ = ["quiet_machine", "steady_gpu"]


@pytest.fixture
def nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pretend GPU compute nothing, where the test is of times: it would on the host."""
    monkeypatch.setenv("PRETEND_COMPUTE", "0")
