"""The pretend GPU, to whose queue a test adds work that takes the host and the device a given time.

Both clocks are arithmetic, so every time is exact. Events, delays and waiting are torch's own.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
import torch

import pretendgpu
from hpcsweep.measure.timing import clocks
from hpcsweep.measure.timing.clocks import Cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def variables(queue_limit: int = 10**9, event_ms: float = 0.0, mhz: float = 2000) -> dict[str, str]:
    """Return the variables of a GPU whose calls take the host no time.

    `queue_limit` is how many pieces of work may wait; a host that is further ahead than that
    blocks. `event_ms` is what the device needs for an event, `mhz` its clock.
    """
    told: Mapping[str, float] = {
        "PRETEND_HOST_US": 0,
        "PRETEND_QUEUE": queue_limit,
        "PRETEND_EVENT_US": 1000 * event_ms,
        "PRETEND_CLOCK": mhz,
    }
    return {name: str(value) for name, value in told.items()}


class SteadyGpu(Cuda):
    """The operations of a device clock, with a host whose time is that of the pretend GPU."""

    def __init__(self) -> None:
        """Find the library."""
        self._runtime = ctypes.CDLL("libpretend_cudart.so")
        self._runtime.pretend_host_ms.restype = ctypes.c_double
        self._runtime.pretend_host_works.argtypes = (ctypes.c_double,)
        kinds = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_double, *(ctypes.c_void_p,) * 2)
        self._runtime.pretend_run.argtypes = (*kinds, ctypes.c_size_t)
        torch.cuda.synchronize()

    def host_now(self) -> float:
        """Return the host's time in milliseconds."""
        return float(self._runtime.pretend_host_ms())

    def host_works(self, ms: float) -> None:
        """Let the host work for a time."""
        self._runtime.pretend_host_works(ms)

    def issue(self, host_ms: float, device_ms: float) -> None:
        """Let the host work for a time, and then queue a kernel that takes the device another."""
        self.host_works(host_ms)
        stream = torch.cuda.current_stream().cuda_stream
        self._runtime.pretend_run(b"steady_kernel", stream, device_ms, None, None, 0)


@pytest.fixture
def steady_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SteadyGpu]]:
    """Give a function that makes the pretend GPU as steady as told (see `variables`)."""
    if not pretendgpu.is_pretended():
        pytest.skip("needs the pretend GPU: a real one takes its own time")

    def make(**how: Any) -> SteadyGpu:
        clocks.cycles_per_ms.cache_clear()
        for name, value in variables(**how).items():
            monkeypatch.setenv(name, value)
        return SteadyGpu()

    yield make
    clocks.cycles_per_ms.cache_clear()
