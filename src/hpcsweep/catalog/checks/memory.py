"""How much memory a point needs."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.record import Cells, CheckRecord, cell


class MemoryCells(Cells):
    """The peak and the limit; in training also what torch's allocator reserved."""

    mem_peak_bytes: int | None = cell("highest memory use during the point")
    mem_limit_bytes: int | None = cell("memory that the device has")
    mem_source: str | None = cell(
        "where the memory figures come from: cuda_allocator, vm_hwm or max_rss"
    )
    mem_reserved_bytes: int | None = cell(
        "training: most GPU memory that torch's allocator reserved"
    )
    mem_fragmentation_pct: float | None = cell("training: share of that never in use at once")


RECORD: Final = CheckRecord(
    finds="the size at which a point no longer fits",
    costs="reads counters; no pass",
    overall=MemoryCells,
)
