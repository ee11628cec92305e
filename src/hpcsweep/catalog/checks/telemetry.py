"""The state of the GPU while passes were timed."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.record import Cells, CheckRecord, Flag, cell


class TelemetryCells(Cells):
    """Clocks, power, heat and neighbours by the driver; empty without one that reports."""

    gpu_util_pct: float | None = cell("GPU utilisation from the driver, mean at the ends of blocks")
    sm_clock_mhz_mean: float | None = cell("SM clock at the ends of blocks, mean")
    sm_clock_mhz_min: float | None = cell("SM clock at the ends of blocks, lowest")
    throttle_reasons: str | None = cell(
        "reasons for throttling, as NVML names them; AMD's limits of power and current are "
        "sw_power_cap, its heat hw_thermal"
    )
    throttled_median_ms: float | None = cell(
        "median of the first try, if it was throttled", clocked=True
    )
    power_limit_w: float | None = cell("power limit of the GPU")
    power_mean_w: float | None = cell("power that the driver reports at the ends of blocks, mean")
    power_std_w: float | None = cell("standard deviation of that power")
    power_min_w: float | None = cell("lowest of that power")
    power_max_w: float | None = cell("highest of that power")
    power_scope: str | None = cell(
        "whose power and energy it is: gpu; board: of all dies of a board, such as an MI250"
    )
    temp_c_start: float | None = cell("GPU temperature before the point")
    temp_c_end: float | None = cell("GPU temperature after the point")


# Where the driver gives no reasons: clocks of like points differ by 4 %, when throttled by 16 %.
SLOWED_PCT: Final = 10
DRIFT_PCT: Final = 5  # of the median clock: several steps of it

# A doubt: cooled better, the GPU would have been faster.
THROTTLED: Final = Flag(
    "throttled",
    "the driver slowed the GPU down for heat, power brake or hardware; where it tells no reasons: "
    f"the clock was {SLOWED_PCT} % below that of earlier points",
    doubt=True,
    words="the GPU throttled",
    detail="throttle_reasons",
    cause="device",
)
# No doubt: heavy work runs at the power limit always, so this is the speed of that GPU.
POWER_CAPPED: Final = Flag(
    "power_capped", "the driver lowered the SM clock to keep to the power limit; often normal"
)
# A doubt: the median is of passes of several speeds.
CLOCK_DRIFT: Final = Flag(
    "clock_drift",
    f"the SM clock moved by more than {DRIFT_PCT} % during the measurement; single looks apart",
    doubt=True,
    words="the GPU's clock moved",
    cause="device",
)
# A doubt: its work ran in between, and in the caches.
SHARED_GPU: Final = Flag(
    "shared_gpu",
    "another process was on the same GPU",
    doubt=True,
    words="another process on the GPU",
)
RECORD: Final = CheckRecord(
    finds="a GPU that was slowed down, or shared; throttled passes are timed once more",
    costs="some reads of the driver at the end of each block; no pass",
    overall=TelemetryCells,
    flags=(THROTTLED, POWER_CAPPED, CLOCK_DRIFT, SHARED_GPU),
)
