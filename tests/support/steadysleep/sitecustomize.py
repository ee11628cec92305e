"""Read by every Python that finds this folder on its path: points that sleep take a steady time.

Their clock goes on by what they sleep, at once, and by some microseconds, which no prediction knows
but which are the same in every run, whatever else the machine does.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from hpcsweep.measure.workloads import noop

_NOISE_NS = (0, 70_000, 20_000, 110_000, 40_000)
_sleeps: list[float] = []  # seconds
_now_ns = 0


def _sleep(seconds: float) -> None:
    global _now_ns  # noqa: PLW0603 - the clock of this process
    _now_ns += round(seconds * 1e9) + _NOISE_NS[len(_sleeps) % len(_NOISE_NS)]
    _sleeps.append(seconds)


_clock: Any = SimpleNamespace(**vars(time))
_clock.sleep = _sleep
_clock.perf_counter_ns = lambda: _now_ns
vars(noop)["time"] = _clock
