"""Whether the machine, and the settings of the process, were the same as before."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.record import Cells, CheckRecord, DisturbingFigure, Flag, cell

RUNS: Final = 7  # of the control: few milliseconds, and three slow ones do not move the median
WAITED_PCT: Final = 10  # of the time, all threads together; on an idle machine 2
STOLEN_PCT: Final = 2  # of the time; a hypervisor without other guests takes next to nothing
TWICE: Final = 2.0  # the best control; on an idle machine the ratio is up to 1.8
SHIFT_PCT: Final = 5  # of the time; a shift also exceeds what controls usually differ by
_WHOLE_PCT: Final = 100  # from here on people say how many, or how many times


class ControlCells(Cells):
    """A fixed piece of work after the point, and what the kernel says of waiting threads."""

    threads: int | None = cell("CPU threads that an operator used")
    control_ms: float | None = cell(
        f"a fixed convolution on the device after the point; median of {RUNS}"
    )
    control_host_ms: float | None = cell(
        f"a fixed loop on the host after the point; median of {RUNS}"
    )
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


# A doubt: others computed on the CPUs while the passes were timed. The figures below tell it.
CONTENDED: Final = Flag(
    "contended",
    f"threads waited for a CPU for {WAITED_PCT} % of the time, or of the control, or the "
    f"hypervisor took it for {STOLEN_PCT} %; or the control took twice its best in this attempt",
    doubt=True,
)
# No doubt: the times are those of the machine as it was, and all later points have it, too.
MACHINE_SHIFT: Final = Flag(
    "machine_shift",
    f"the control took longer or shorter than usual in this attempt: by more than {SHIFT_PCT} %, "
    "and more than controls usually differ; `control_shift_pct` says how much",
)
# A doubt: they share caches and memory, even where each has CPUs of its own.
SHARED_CPU: Final = Flag(
    "shared_cpu",
    "several workers measured on this machine at the same time",
    doubt=True,
    words="several workers at the same time",
)
# A doubt: the times are of other settings than the row says.
SWITCHED: Final = Flag(
    "switched",
    "a pass turned switches of torch that belong to the process, such as threads, precision or "
    "`mkldnn.enabled`, so it ran with others than its point has; `switches_turned` names them",
    doubt=True,
    lasting=True,
)
# No doubt: when the passes ran, the switches were as the row says.
SWITCHED_BACK: Final = Flag(
    "switched_back",
    "the factory, or its module, turned such switches; they were set back before anything ran, so "
    "the row is of the switches that its point has; `switches_turned` names them",
)


def _waited(percent: float) -> str:
    """Say how long threads waited; of several at once, how many."""
    if percent < _WHOLE_PCT:
        return f"{percent:.0f} % of the time waited for a CPU"
    return f"{percent / 100:.1f} threads at a time waited for a CPU"


def _stolen(percent: float) -> str:
    return f"{percent:.0f} % of the time stolen by the hypervisor"


def _slower(percent: float) -> str:
    if percent < _WHOLE_PCT:
        return f"the machine itself slower by {percent:.0f} %"
    return f"the machine itself {1 + percent / 100:,.3g} times slower"


RECORD: Final = CheckRecord(
    finds="a machine that became slower or faster, neighbours, switches that the network turned",
    costs=f"{RUNS} fixed convolutions, some milliseconds; no pass",
    overall=ControlCells,
    flags=(CONTENDED, MACHINE_SHIFT, SHARED_CPU, SWITCHED, SWITCHED_BACK),
    figures=(
        DisturbingFigure("waited_pct", WAITED_PCT, _waited),
        DisturbingFigure("stolen_pct", STOLEN_PCT, _stolen),
        DisturbingFigure("control_shift_pct", SHIFT_PCT, _slower),
    ),
)
