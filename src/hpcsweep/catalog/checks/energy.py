"""The energy of a pass."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog import INFERENCE
from hpcsweep.catalog.record import Cells, CheckRecord, Flag, cell

SPAN_S: Final = 1  # over as long may the driver average its watts
WINDOW_S: Final = 1.5  # with updates 100 ms apart, the first and the last are `SPAN_S` apart, too
APART_PCT: Final = 10  # of the counter; published pairs are as far apart as 187 and 327 J
PACE_PCT: Final = 10  # of a timed pass; by that much the energy would be wrong, too


class EnergyCells(Cells):
    """The growth of the GPU's energy counter over many passes, divided by their number."""

    energy_j: float | None = cell(
        f"energy of one pass, from the energy counter over at least {SPAN_S} s", clocked=True
    )
    energy_sampled_j: float | None = cell(
        "energy of one pass, from the power that the driver reported meanwhile", clocked=True
    )
    energy_update_ms: float | None = cell("time between two updates of the energy counter")
    energy_method: str | None = cell(
        "counter; graph: counter over replays, the host being slow; launch_bound: not measured"
    )


# No doubts: the passes of the energy are others than the timed ones, so the times are good.
ENERGY_APART: Final = Flag(
    "energy_apart",
    f"the energy counter and the sampled power differ by more than {APART_PCT} %",
)
ENERGY_PACE: Final = Flag(
    "energy_pace",
    f"the passes of the energy took over {PACE_PCT} % longer or shorter than the timed ones, as "
    "where the GPU waits for the host: `energy_j` is not that of a timed pass",
)
RECORD: Final = CheckRecord(
    finds="joules of a pass",
    costs=f"{WINDOW_S} s of passes, on a GPU with an energy counter",
    overall=EnergyCells,
    flags=(ENERGY_APART, ENERGY_PACE),
    setting="energy",
    workloads=(INFERENCE.name,),
)
