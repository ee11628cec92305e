"""Benches in these tests find a machine on which nobody else computes; GPUs that are steady."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pretendgpu
import steadygpu
from hpcsweep.measure.timing import clocks
from quiet import quiet_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["quiet_machine"]


@pytest.fixture
def nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pretend GPU compute nothing, where the test is of times: it would on the host."""
    monkeypatch.setenv("PRETEND_COMPUTE", "0")


@pytest.fixture
def steady_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., steadygpu.SteadyGpu]]:
    """Give a function that makes the pretend GPU as steady as told (see `steadygpu.variables`)."""
    if not pretendgpu.is_pretended():
        pytest.skip("needs the pretend GPU: a real one takes its own time")

    def make(**how: Any) -> steadygpu.SteadyGpu:
        clocks.cycles_per_ms.cache_clear()
        for name, value in steadygpu.variables(**how).items():
            monkeypatch.setenv(name, value)
        return steadygpu.SteadyGpu()

    yield make
    clocks.cycles_per_ms.cache_clear()
