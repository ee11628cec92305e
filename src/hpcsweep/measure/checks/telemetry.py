"""The telemetry check: the state of the GPU at the ends of blocks of timed passes.

The GPU's driver tells it; without one the cells stay empty. A GPU counts as throttled by the
driver's reasons, which are read with each clock. Looks at an idle GPU, and the look before the
work, do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hpcsweep.catalog.checks.telemetry import (
    CLOCK_DRIFT,
    DRIFT_PCT,
    POWER_CAPPED,
    SHARED_GPU,
    SLOWED_PCT,
    THROTTLED,
    TelemetryCells,
)
from hpcsweep.catalog.record import Flag
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.machine.drivers import IDLE, POWER_CAP, Reading
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.network import Choices, Network, Times
from hpcsweep.measure.timing import stats

# Of the clock without a limit: a step of the clock is less than 2 %.
_LOWERED: Final = 0.98
# Of the looks: a single one does not represent the others.
_OFTEN: Final = 0.1
# nvml.h, nvmlClocksThrottleReasons (later: nvmlClocksEventReasons)
_REASONS: Final[Mapping[int, str]] = {
    IDLE: "gpu_idle",
    0x2: "applications_clocks",
    POWER_CAP: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
# settings by people, and normal states
_HARMLESS: Final = IDLE | 0x2 | POWER_CAP | 0x10 | 0x100


class TelemetryCheck(PointCheck):
    """Looks at the GPU; wants the passes once more if it was throttled.

    `history` is the highest clock, in MHz, of a point that nothing limited.
    """

    runs = False
    history: float = 0.0

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self._looks: list[Reading] = []
        self._is_shared = False
        self._first_ms: float | None = None  # the median of passes that were throttled

    def begin(self, network: Network) -> None:
        """Forget the point before."""
        self._first_ms = None

    def settled(self, network: Network) -> None:
        """Look at the GPU before the work; passes that were timed before are a part of history."""
        if self._looks:
            self._remember()
        self._looks = []
        self._is_shared = False
        self.look()

    def look(self) -> None:
        """Look at the state of the GPU, and who else is on it."""
        driver = self.rig.driver
        if driver is not None:
            self._looks.append(driver.read())
            self._is_shared = self._is_shared or bool(driver.others())

    def disturbed(self, median_ms: float) -> bool:
        """Say whether the GPU was throttled."""
        if not self._looks or not self._flags()[THROTTLED]:
            return False
        self._first_ms = median_ms
        return True

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Tell it."""
        if not self._looks:
            return Finding(cells=TelemetryCells())
        cells = self._cells() | TelemetryCells(throttled_median_ms=self._first_ms)
        found = Finding(cells=cells, flags=self._flags())
        self._remember()  # after the flags, which compare this point with earlier ones
        return found

    def _remember(self) -> None:
        """Keep the clock of this point for later ones; asked again, this changes nothing."""
        self.history = max(self.history, self._free_mhz())

    def _cells(self) -> TelemetryCells:
        after = self._looks[1:]  # what a GPU does before the work is not the work's
        clocks = _known(look.clock_mhz for look in self._looks)
        temperatures = _known(look.temperature_c for look in self._looks)
        busy = _known(look.busy_pct for look in after)
        state = TelemetryCells(
            sm_clock_mhz_mean=_mean(clocks),
            sm_clock_mhz_min=min(clocks, default=None),
            gpu_util_pct=_mean(busy),
            throttle_reasons="+".join(_names(self._reasons() & ~IDLE)),
            power_limit_w=self._looks[-1].power_limit_w,
            temp_c_start=temperatures[0] if temperatures else None,
            temp_c_end=temperatures[-1] if temperatures else None,
        )
        watts = _known(look.power_w for look in after)
        if not watts:
            return state
        power = stats.summarise(watts)
        return state | TelemetryCells(
            power_mean_w=power.mean,
            power_std_w=power.std,
            power_min_w=power.min,
            power_max_w=power.max,
            power_scope="board" if after[-1].of_board else "gpu",
        )

    def _flags(self) -> dict[Flag, bool]:
        is_limited = bool(self._reasons() & ~_HARMLESS)
        return {
            THROTTLED: is_limited or self._is_slow_without_reasons(),
            POWER_CAPPED: self._is_power_capped(),
            CLOCK_DRIFT: _drifts(_known(look.clock_mhz for look in self._working())),
            SHARED_GPU: self._is_shared,
        }

    def _working(self) -> list[Reading]:
        """Return the looks at a working GPU, without the first one, which is before the work."""
        return [look for look in self._looks[1:] if not (look.reasons or 0) & IDLE]

    def _reasons(self) -> int:
        """Return all reasons for a low clock in this point, as bits of NVML."""
        reasons = 0
        for look in self._looks[1:]:
            reasons |= look.reasons or 0
        return reasons

    def _free_mhz(self) -> float:
        """Return the median clock in looks of this point without a limit by the driver, or 0."""
        limits = ~_HARMLESS | POWER_CAP
        free = [look for look in self._working() if not (look.reasons or 0) & limits]
        clocks = _known(look.clock_mhz for look in free)
        return stats.median(clocks) if clocks else 0.0

    def _is_power_capped(self) -> bool:
        """Say whether the driver lowered the clock of this point for the power limit."""
        working = self._working()
        capped = [look for look in working if (look.reasons or 0) & POWER_CAP]
        if len(capped) <= _OFTEN * len(working):
            return False
        clocks = _known(look.clock_mhz for look in capped)
        # best the same work at liberty, then other work, then what the driver calls usual
        usual = self._free_mhz() or self.history or capped[-1].usual_mhz
        if not clocks or not usual:
            return True  # the driver says so, and no clock tells otherwise
        return stats.median(clocks) < _LOWERED * usual

    def _is_slow_without_reasons(self) -> bool:
        """Say whether the clock is low against earlier points, if the driver gives no reasons."""
        if any(look.reasons is not None for look in self._looks):
            return False
        return 0 < self._free_mhz() < (1 - SLOWED_PCT / 100) * self.history


def _known(values: Iterable[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _drifts(clocks: Sequence[float]) -> bool:
    """Say whether clocks differ by more than `DRIFT_PCT`, but for the highest and lowest tenth."""
    # at least one at each end: a single look does not tell a drift
    few = max(1, len(clocks) // 10)
    kept = sorted(clocks)[few:-few]
    return bool(kept) and kept[-1] - kept[0] > DRIFT_PCT / 100 * stats.median(kept)


def _names(reasons: int) -> list[str]:
    """Return the words for reasons; bits that have none are told as a number."""
    named = [name for bit, name in _REASONS.items() if reasons & bit]
    unknown = reasons & ~sum(_REASONS)
    return [*named, hex(unknown)] if unknown else named


CHECK: Final = TelemetryCheck
