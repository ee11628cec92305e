"""Measures the roofs of this machine's processor, for which no table has figures.

They are what this machine reaches, not what its datasheet says: the fastest of several products of
large float32 matrices, and of several copies of an array that no cache holds.
"""

import time
from collections.abc import Callable
from typing import Final

import torch

_SIDE: Final = 2048
_COPIED: Final = 1 << 28  # bytes
_SECONDS: Final = 1.0  # for each of the two


def measured() -> tuple[float, float]:
    """Return TFLOP/s and GB/s of the processor, with the threads that torch uses."""
    left, right = torch.rand(_SIDE, _SIDE), torch.rand(_SIDE, _SIDE)
    product = torch.empty(_SIDE, _SIDE)
    source = torch.zeros(_COPIED // 4)
    target = torch.zeros(_COPIED // 4)
    compute = 2 * _SIDE**3 / _fastest(lambda: torch.mm(left, right, out=product))
    copied = 2 * _COPIED / _fastest(lambda: target.copy_(source))  # read and written
    return float(f"{compute / 1e12:.4g}"), float(f"{copied / 1e9:.4g}")


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several calls, after one to warm up."""
    work()
    best, until = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
