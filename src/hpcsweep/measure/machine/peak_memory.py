"""Measures the peak memory of a point, and the memory limit.

On a GPU torch's allocator counts. On a CPU the kernel keeps a high-water mark of the process's
resident memory, which includes the interpreter and torch. If the mark can be reset (Linux,
/proc/self/clear_refs) it is the point's own, else that of the whole process so far; `mem_source`
names the source. Before, the C library gives back what a larger point used and freed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

from hpcsweep.catalog.checks.memory import MemoryCells

_CLEAR_HIGH_WATER = "5"


class MemoryWatch:
    """Watches the memory of one point: here the resident memory of this process."""

    source = "max_rss"

    def reset(self) -> None:
        """Begin a point: reset the kernel's high-water mark, where that is allowed."""
        gc.collect()  # what the point before left in reference cycles, such as its images
        with suppress(AttributeError):  # the C library is not glibc
            ctypes.CDLL(None).malloc_trim(0)
        try:
            Path("/proc/self/clear_refs").write_text(_CLEAR_HIGH_WATER, encoding="ascii")
        except OSError:
            self.source = "max_rss"
        else:
            self.source = "vm_hwm"

    def drop_reserve(self) -> None:
        """Give back what an allocator keeps for later, and forget its refusals."""

    def peak(self) -> int | None:
        """Return the most bytes in use since `reset`."""
        if self.source == "vm_hwm":
            status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
            match = re.search(r"VmHWM:\s+(\d+) kB", status)
            if match:
                return int(match[1]) << 10
        unit = 1 if sys.platform == "darwin" else 1 << 10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def limit(self) -> int | None:
        """Return the least limit, in bytes, of memory, control group and address space."""
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        address_space = soft if soft != resource.RLIM_INFINITY else None
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(x for x in (physical, control_group_limit(), address_space) if x)

    def now(self) -> int | None:
        """Return the bytes in use; None if unknown (not on Linux)."""
        try:
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        except OSError:
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def allocator_cells(self) -> MemoryCells:
        """Return the cells on the allocator since `reset`; none for the C library's."""
        return MemoryCells()


class _CudaMemory(MemoryWatch):
    """Watches the GPU's memory by torch's caching allocator."""

    source = "cuda_allocator"

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def drop_reserve(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_accumulated_memory_stats()

    def peak(self) -> int | None:
        return int(torch.cuda.max_memory_allocated())

    def limit(self) -> int | None:
        return int(torch.cuda.mem_get_info()[1])

    def now(self) -> int | None:
        return int(torch.cuda.memory_allocated())

    def allocator_cells(self) -> MemoryCells:
        """Return the most that torch reserved, and which share of it was never in use at once."""
        statistics = torch.cuda.memory_stats()
        used = statistics["allocated_bytes.all.peak"]
        held = statistics["reserved_bytes.all.peak"]
        return MemoryCells(
            mem_reserved_bytes=held,
            mem_fragmentation_pct=100 * (1 - used / held) if held else None,
        )


def watch(device: torch.device) -> MemoryWatch:
    """Return the watch for points on a device."""
    return _CudaMemory() if device.type == "cuda" else MemoryWatch()


def cells(memory: MemoryWatch) -> MemoryCells:
    """Return the cells on the peak, the limit, their source, and the allocator."""
    peak = MemoryCells(
        mem_peak_bytes=memory.peak(), mem_limit_bytes=memory.limit(), mem_source=memory.source
    )
    return peak | memory.allocator_cells()


def control_group_limit() -> int | None:
    """Return the lowest memory limit of this process's control groups, of version 1 or 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup") / ("memory" if "memory" in controllers else "")
        name = "memory.limit_in_bytes" if "memory" in controllers else "memory.max"
        folder = root / path.strip("/")
        limits += [limit_in(step / name) for step in (folder, *folder.parents)]
    return min((x for x in limits if x), default=None)


def limit_in(path: Path) -> int | None:
    """Return the limit in a file of a control group; None if it has none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    value = int(text) if text.isdigit() else 0
    return value if 0 < value < 1 << 60 else None  # version 1 says "no limit" with a huge number
