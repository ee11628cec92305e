"""Whether the host kept the GPU busy."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog import INFERENCE
from hpcsweep.catalog.record import Cells, CheckRecord, Flag, cell


class HostCells(Cells):
    """How long the host takes to issue a pass."""

    host_ms: float | None = cell("median time of the host to issue one pass", clocked=True)
    launch_bound: bool | None = cell(
        "the host needs longer to issue a pass than the device to run it, or let it wait (a flag)",
        clocked=True,
    )
    sm_clock_pass_mhz: float | None = cell(
        "SM clock before each pass, by the cycles of the delay; median"
    )


# A doubt: such a time says nothing of the device, or of an algorithm on it.
LAUNCH_BOUND: Final = Flag(
    "launch_bound",
    "the host could not keep the GPU busy, so the time is that of the host",
    doubt=True,
    lasting=True,
)
RECORD: Final = CheckRecord(
    finds="times that are those of Python, not of the GPU",
    costs="two passes with some events, on a GPU",
    overall=HostCells,
    flags=(LAUNCH_BOUND,),
    workloads=(INFERENCE.name,),
)
