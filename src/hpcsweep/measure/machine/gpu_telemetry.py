"""Reads the GPU's state between blocks of passes, never inside one.

`drivers` asks NVML or AMD's library. Without either the cells stay empty.

NVML's watts are averages over up to a second, and some GPUs sample only a quarter of that time. So
energy is always the difference of the energy counter over a window of a second or more, which
begins and ends with an update of the counter.

A GPU counts as throttled by the driver's reasons, which are read with each clock. Samples of an
idle GPU, and the sample before the work, do not count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from hpcsweep.catalog.checks.energy import SPAN_S, WINDOW_S, EnergyCells
from hpcsweep.catalog.checks.telemetry import (
    CLOCK_DRIFT,
    DRIFT_PCT,
    POWER_CAPPED,
    SHARED_GPU,
    SLOWED_PCT,
    THROTTLED,
    TelemetryCells,
)
from hpcsweep.measure.machine import drivers
from hpcsweep.measure.machine.drivers import IDLE, POWER_CAP, Driver, Reading
from hpcsweep.measure.timing import stats

LONGEST_S: Final = 5.0  # a counter that was not updated until then tells nothing
_POLL_S: Final = 0.001  # so late is an update seen: a thousandth of the span
_LOWERED: Final = 0.98  # of the unlimited clock; a step of the clock is less than 2 %
_OFTEN: Final = 0.1  # of the samples; a single one does not represent the others
# nvml.h, nvmlClocksThrottleReasons (later: nvmlClocksEventReasons)
_REASONS: Final[Mapping[int, str]] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
_HARMLESS: Final = IDLE | 0x2 | POWER_CAP | 0x10 | 0x100  # settings by people, and normal states


class Telemetry:
    """Telemetry of one GPU by its driver; what is not reported stays empty, without one all.

    `lacking` says why there is no driver; `energy_stands` that its energy counter stood still.
    """

    def __init__(self, driver: Driver | None = None, lacking: str = "") -> None:
        """Ask a driver."""
        self._driver = driver
        self.lacking = lacking
        self.energy_stands = False
        self._looks: list[Reading] = []
        self._is_shared = False
        self._free = 0.0  # `unlimited_mhz` of earlier points, also of other workers

    @property
    def unlimited_mhz(self) -> float:
        """The highest clock of a point that nothing limited."""
        free = self._unlimited()
        return max(self._free, stats.median(free) if free else 0.0)

    @unlimited_mhz.setter
    def unlimited_mhz(self, of_earlier: float) -> None:
        self._free = of_earlier

    @property
    def counts_energy(self) -> bool:
        """Whether the device has a counter of its energy, which did not stand still before."""
        if self._driver is None or self.energy_stands:
            return False
        return self._driver.energy_j() is not None

    def begin(self) -> None:
        """Begin a point."""
        self._free = self.unlimited_mhz
        self._looks = []
        self._is_shared = False
        self.sample()

    def sample(self) -> None:
        """Sample the state of the GPU, and who else is on it; called at the end of a block."""
        if self._driver is None:
            return
        self._looks.append(self._driver.read())
        self._is_shared = self._is_shared or bool(self.others())

    def cells(self) -> TelemetryCells:
        """Return the state cells of a point."""
        looks = self._looks
        if not looks:
            return TelemetryCells()
        after = looks[1:]  # the first sample is from before the work
        clocks = _known(look.clock_mhz for look in looks)
        temperatures = _known(look.temperature_c for look in looks)
        busy = _known(look.busy_pct for look in after)
        state = TelemetryCells(
            sm_clock_mhz_mean=sum(clocks) / len(clocks) if clocks else None,
            sm_clock_mhz_min=min(clocks, default=None),
            gpu_util_pct=sum(busy) / len(busy) if busy else None,
            throttle_reasons="+".join(_names(self._reasons & ~IDLE)),
            power_limit_w=looks[-1].power_limit_w,
            temp_c_start=temperatures[0] if temperatures else None,
            temp_c_end=temperatures[-1] if temperatures else None,
        )
        return state | _power(after)

    def flags(self) -> list[str]:
        """Return the flags by the state."""
        raised = {
            THROTTLED.name: self._reasons & ~_HARMLESS or self._slow_without_reasons(),
            POWER_CAPPED.name: self._power_capped(),
            CLOCK_DRIFT.name: _drifts(_known(look.clock_mhz for look in self._working)),
            SHARED_GPU.name: self._is_shared,
        }
        return [flag for flag, is_raised in raised.items() if is_raised]

    def others(self) -> list[int]:
        """Return the ids of other processes on the GPU."""
        return self._driver.others() if self._driver else []

    def provenance(self) -> dict[str, Any]:
        """Return constants of the GPU and its driver."""
        return self._driver.provenance() if self._driver else {}

    @property
    def _working(self) -> list[Reading]:
        """The samples of a working GPU, without the first one, taken before the work."""
        return [look for look in self._looks[1:] if not (look.reasons or 0) & IDLE]

    @property
    def _reasons(self) -> int:
        reasons = 0
        for look in self._looks[1:]:
            reasons |= look.reasons or 0
        return reasons

    def _unlimited(self) -> list[float]:
        """Return the clocks of this point in samples without a limit by the driver."""
        own = ~_HARMLESS | POWER_CAP
        free = [look for look in self._working if not (look.reasons or 0) & own]
        return _known(look.clock_mhz for look in free)

    def _power_capped(self) -> bool:
        """Say whether the driver lowered the clock of this point for the power limit."""
        working = self._working
        capped = [look for look in working if (look.reasons or 0) & POWER_CAP]
        if len(capped) <= _OFTEN * len(working):
            return False
        clocks = _known(look.clock_mhz for look in capped)
        free = self._unlimited()
        usual = (stats.median(free) if free else self._free) or capped[-1].usual_mhz
        return not (clocks and usual) or stats.median(clocks) < _LOWERED * usual

    def _slow_without_reasons(self) -> bool:
        """Say whether the clock is low against earlier points, if the driver gives no reasons."""
        clocks = self._unlimited()
        mute = all(look.reasons is None for look in self._looks)
        return bool(mute and clocks) and stats.median(clocks) < (1 - SLOWED_PCT / 100) * self._free

    def energy_of(
        self, run: Callable[[], object], finish: Callable[[], object], block: int = 5
    ) -> EnergyCells | None:
        """Return the energy of a pass, if it is counted; `block` passes run between two waits.

        They run until the counter's updates, which may be 100 ms apart, span a second. Energy is
        the power between the first and the last update, times the time of a pass. A counter that
        was not updated once is not asked again, since that takes five seconds a point.
        """
        if self._driver is None or not self.counts_energy:
            return None
        finish()
        passes = 0
        began = time.monotonic()
        with _updates_of(self._driver) as updates:
            seconds = 0.0
            while seconds < WINDOW_S or _span_s(updates) < SPAN_S:
                if seconds >= LONGEST_S:
                    break
                for _ in range(block):
                    run()
                finish()
                passes += block
                seconds = time.monotonic() - began
        self.energy_stands = not updates
        return energy_cells(updates, began, seconds / passes)


def watch(uuid: str | None, index: int, own_pids: frozenset[int], bus: str = "") -> Telemetry:
    """Return telemetry of a CUDA device, by UUID or PCI bus if torch knows it, else by index."""
    try:
        return Telemetry(drivers.find(uuid, index, own_pids, bus))
    except drivers.NoDriver as error:
        return Telemetry(lacking=str(error))


class Update(NamedTuple):
    """One update of an energy counter."""

    at_s: float
    joules: float
    watts: float | None


@contextmanager
def _updates_of(driver: Driver) -> Iterator[list[Update]]:
    """Note the updates of the energy counter meanwhile, in a thread."""
    updates: list[Update] = []
    is_over = threading.Event()

    def watch() -> None:
        counted = driver.energy_j()
        while not is_over.wait(_POLL_S):
            joules = driver.energy_j()
            if joules is not None and joules != counted:
                updates.append(Update(time.monotonic(), joules, driver.read().power_w))
                counted = joules

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield updates
    finally:
        is_over.set()
        thread.join()


def _span_s(updates: Sequence[Update]) -> float:
    return updates[-1].at_s - updates[0].at_s if updates else 0.0


def energy_cells(updates: Sequence[Update], began_s: float, pass_s: float) -> EnergyCells | None:
    """Return the energy of a pass from updates while passes ran; None where they were too few."""
    span_s = _span_s(updates)
    if span_s < SPAN_S:
        return None
    joules = updates[-1].joules - updates[0].joules
    # the driver's watts are averages over up to a second: those of the first one are old
    watts = _known(update.watts for update in updates if update.at_s >= began_s + SPAN_S)
    return EnergyCells(
        energy_j=joules / span_s * pass_s,
        energy_sampled_j=sum(watts) / len(watts) * pass_s if watts else None,
        energy_update_ms=1000 * span_s / (len(updates) - 1),
        energy_method="counter",
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _power(looks: Sequence[Reading]) -> TelemetryCells:
    watts = _known(look.power_w for look in looks)
    if not watts:
        return TelemetryCells()
    power = stats.summarise(watts)
    return TelemetryCells(
        power_mean_w=power.mean,
        power_std_w=power.std,
        power_min_w=power.min,
        power_max_w=power.max,
        power_scope="board" if looks[-1].of_board else "gpu",
    )


def _drifts(clocks: Sequence[float]) -> bool:
    """Say whether clocks differ by more than `DRIFT_PCT`, but for the highest and lowest tenth."""
    few = max(1, len(clocks) // 10)
    kept = sorted(clocks)[few:-few]
    return bool(kept) and kept[-1] - kept[0] > DRIFT_PCT / 100 * stats.median(kept)


def _names(reasons: int) -> list[str]:
    named = [name for bit, name in _REASONS.items() if reasons & bit]
    unknown = reasons & ~sum(_REASONS)
    return [*named, hex(unknown)] if unknown else named
