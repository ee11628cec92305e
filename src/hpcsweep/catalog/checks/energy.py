"""The energy of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpcsweep.catalog import INFERENCE
from hpcsweep.catalog.record import CheckRecord, Flag, cell


@dataclass(frozen=True, kw_only=True)
class EnergyCells:
    """The growth of the GPU's energy counter over many passes, divided by their number."""

    energy_j: float | None = cell(
        "energy of one pass, from the energy counter over at least 1 s", clocked=True
    )
    energy_sampled_j: float | None = cell(
        "energy of one pass, from the power that the driver reported meanwhile", clocked=True
    )
    energy_update_ms: float | None = cell("time between two updates of the energy counter")
    energy_method: str | None = cell(
        "counter; graph: counter over replays, the host being slow; launch_bound: not measured"
    )


ENERGY_APART: Final = Flag(
    "energy_apart", "the energy counter and the sampled power differ by more than 10 %"
)
ENERGY_PACE: Final = Flag(
    "energy_pace",
    "the passes of the energy took over 10 % longer or shorter than the timed ones, as where the "
    "GPU waits for the host: `energy_j` is not that of a timed pass",
)
RECORD: Final = CheckRecord(
    finds="joules of a pass",
    costs="1.5 s of passes, on a GPU with an energy counter",
    overall=EnergyCells,
    flags=(ENERGY_APART, ENERGY_PACE),
    setting="energy",
    workloads=(INFERENCE.name,),
)
