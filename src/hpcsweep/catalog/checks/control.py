"""Whether the machine, and the settings of the process, were the same as before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpcsweep.catalog.record import CheckRecord, Flag, cell


@dataclass(frozen=True, kw_only=True)
class ControlCells:
    """A fixed piece of work after the point, and what the kernel says of waiting threads."""

    threads: int | None = cell("CPU threads that an operator used")
    control_ms: float | None = cell(
        "a fixed convolution on the device after the point; median of 7"
    )
    control_host_ms: float | None = cell("a fixed loop on the host after the point; median of 7")
    control_shift_pct: float | None = cell(
        "control over the median of those before, in this attempt; minus 1"
    )
    switches_per_s: float | None = cell(
        "how often the kernel took a CPU from the worker, per second; most cost no time"
    )
    waited_pct: float | None = cell(
        "share of the time, or of the control's loop, in which threads waited for a CPU"
    )
    stolen_pct: float | None = cell("share of the time that the hypervisor took from a CPU")
    switches_turned: str | None = cell(
        "switches of torch that the network turned when it was built, or in a pass, and to what"
    )
    cpu_util_pct: float | None = cell(
        "utilisation of the CPUs that the worker may use, its data loaders and neighbours included"
    )


CONTENDED: Final = Flag(
    "contended",
    "threads waited for a CPU for 10 % of the time, or of the control, or the hypervisor took it "
    "for 2 %; or the control took twice its best in this attempt",
    doubt=True,
)
MACHINE_SHIFT: Final = Flag(
    "machine_shift",
    "the control took longer or shorter than usual in this attempt: by more than 5 %, and more "
    "than controls usually differ; `control_shift_pct` says how much",
)
SHARED_CPU: Final = Flag(
    "shared_cpu", "several workers measured on this machine at the same time", doubt=True
)
SWITCHED: Final = Flag(
    "switched",
    "a pass turned switches of torch that belong to the process, such as threads, precision or "
    "`mkldnn.enabled`, so it ran with others than its point has; `switches_turned` names them",
    doubt=True,
    lasting=True,
)
SWITCHED_BACK: Final = Flag(
    "switched_back",
    "the factory, or its module, turned such switches; they were set back before anything ran, so "
    "the row is of the switches that its point has; `switches_turned` names them",
)
RECORD: Final = CheckRecord(
    finds="a machine that became slower or faster, neighbours, switches that the network turned",
    costs="7 fixed convolutions, some milliseconds; no pass",
    overall=ControlCells,
    flags=(CONTENDED, MACHINE_SHIFT, SHARED_CPU, SWITCHED, SWITCHED_BACK),
)
