"""Prepares the cache before a pass: `hot`, `cold` or `rotated`.

hot      the cache as the previous pass left it: the best case, and that of most published numbers
cold     a buffer as large as the last-level cache is rewritten before each pass
rotated  each pass gets another input, and all inputs together are larger than the cache

Caches drop data in about the order of their last use. So an input is cold if more data than the
cache holds were used since its last use; the space between inputs does not count. Weights are used
in each pass: they are cold after a flush, or if a pass itself is larger than the cache.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch

# where nobody tells: more than most caches; too much only costs time
_UNKNOWN_BYTES: Final = 64 << 20
# each is a tensor, and takes memory however few numbers it has
_MOST_INPUTS: Final = 1 << 16
# inputs with distinct numbers, to save the time of drawing; the others are copies, which lie
# elsewhere, so they are distinct for a cache
DRAWN: Final = 256
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def preparation(state: str, device: torch.device) -> Callable[[], object]:
    """Return a function to call before each pass."""
    if state != "cold":
        return lambda: None
    buffer = torch.zeros(cache_bytes(device), dtype=torch.int8, device=device)
    # on a GPU a memset is enough; a CPU may write zeros without reading, so it must read, too
    return buffer.zero_ if device.type == "cuda" else lambda: buffer.add_(1)


def input_count(state: str, device: torch.device, bytes_of_one: int) -> int:
    """Return how many inputs the passes use in turn."""
    if state != "rotated":
        return 1
    return min(_MOST_INPUTS, math.ceil(cache_bytes(device) / bytes_of_one) + 1)


def outgrown(device: torch.device, bytes_in_turn: int) -> bool:
    """Say whether data that are used in turn are larger than the cache."""
    return bytes_in_turn > cache_bytes(device)


def inputs_in_turn(draw: Callable[[int], list[torch.Tensor]], count: int) -> list[torch.Tensor]:
    """Return `count` inputs in distinct memory; only the first 256 are drawn, which saves time."""
    drawn = draw(min(count, DRAWN))
    return drawn + [drawn[n % DRAWN].clone() for n in range(len(drawn), count)]


def cache_bytes(device: torch.device) -> int:
    """Return the size of the last-level cache: a GPU's L2, a host's L2 and L3 together."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return int(getattr(properties, "L2_cache_size", 0)) or _UNKNOWN_BYTES
    return host_cache_bytes() or _UNKNOWN_BYTES


@lru_cache(maxsize=1)
def host_cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the L2 and L3 bytes of the allowed CPUs; 0 if unknown."""
    sizes: dict[tuple[str, str], int] = {}
    for cpu in _allowed_cpus():
        for folder in root.glob(f"cpu{cpu}/cache/index*"):
            try:
                level = (folder / "level").read_text().strip()
                shared = (folder / "shared_cpu_list").read_text().strip()
                size = (folder / "size").read_text().strip()
            except OSError:
                continue
            if int(level) > 1:
                unit = _UNITS.get(size[-1:])
                sizes[level, shared] = int(size[:-1]) * unit if unit else int(size or 0)
    return sum(sizes.values())


def _allowed_cpus() -> Iterable[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)
