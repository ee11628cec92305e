"""Reads the GPU's state between blocks of passes, never inside one.

NVML reports clocks, power limit, temperature, throttling and energy, through the optional package
nvidia-ml-py. If it is missing, or the GPU is not NVIDIA's, the cells stay empty. Nothing here
changes a setting.

NVML's watts are averages over up to a second, and some GPUs sample only a quarter of that time. So
energy is always the difference of the energy counter over a window of a second or more.

A GPU counts as throttled by the driver's reasons, which are read with each clock. Samples of an
idle GPU, and the sample before the work, do not count.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from hpcsweep.catalog.columns import Row
from hpcsweep.measure.timing import stats

ENERGY_WINDOW_S: Final = 1.5
THROTTLED: Final = "throttled"
POWER_CAPPED: Final = "power_capped"
_DRIFT: Final = 0.05
_LOWERED: Final = 0.98  # of the unlimited clock; a step of the clock is less than 2 %
_UNEXPLAINED: Final = 0.9  # of the unlimited clock, if the driver gives no reasons
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
_IDLE: Final = 0x1
_POWER_CAP: Final = 0x4
_HARMLESS: Final = _IDLE | 0x2 | _POWER_CAP | 0x10 | 0x100  # settings by people, and normal states


class Telemetry:
    """Telemetry of a device that reports nothing: all values are empty."""

    watches: ClassVar[bool] = False
    unlimited_mhz: float = 0.0  # the highest clock of a point that nothing limited

    @property
    def counts_energy(self) -> bool:
        """Whether the device has a counter of its energy."""
        return False

    def begin(self) -> None:
        """Begin a point."""

    def sample(self) -> None:
        """Sample the GPU's state; called at the end of a block."""

    def cells(self) -> Row:
        """Return the state columns of a point."""
        return {}

    def flags(self) -> list[str]:
        """Return the flags by the state."""
        return []

    def others(self) -> list[int]:
        """Return the ids of other processes on the GPU."""
        return []

    def provenance(self) -> dict[str, Any]:
        """Return constants of the GPU and its driver."""
        return {}

    def energy_of(
        self,
        run: Callable[[], object],  # noqa: ARG002
        finish: Callable[[], object],  # noqa: ARG002
        block: int = 5,  # noqa: ARG002
    ) -> Row:
        """Return the energy columns of a pass; `block` passes run between two waits."""
        return {}


@dataclass
class _Looks:
    looks: list[tuple[float | None, int | None]] = field(default_factory=list)  # clock, reasons
    temperatures: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    others: bool = False

    @property
    def clocks(self) -> list[float]:
        return [clock for clock, _ in self.looks if clock]

    @property
    def working(self) -> list[tuple[float | None, int | None]]:
        """The samples of a working GPU, without the first one, taken before the work."""
        return [(clock, why) for clock, why in self.looks[1:] if not (why or 0) & _IDLE]

    @property
    def reasons(self) -> int:
        return functools.reduce(operator.or_, (why or 0 for _, why in self.looks[1:]), 0)


class _Nvml(Telemetry):
    """Telemetry of one GPU by NVML; values that it does not report stay empty."""

    watches: ClassVar[bool] = True

    def __init__(self, nvml: Any, handle: Any, own_pids: frozenset[int]) -> None:  # noqa: ANN401
        self._nvml = nvml
        self._handle = handle
        self._own = own_pids
        self._seen = _Looks()
        mig = self._ask("nvmlDeviceGetMigMode")
        self._is_divided = bool(mig and mig[0])  # then this point has a slice, and NVML the whole
        self._free = 0.0  # `unlimited_mhz` of earlier points, also of other workers

    @property
    def unlimited_mhz(self) -> float:
        free = self._unlimited()
        return max(self._free, stats.median(free) if free else 0.0)

    @unlimited_mhz.setter
    def unlimited_mhz(self, of_earlier: float) -> None:
        self._free = of_earlier

    @property
    def counts_energy(self) -> bool:
        return self._energy() is not None

    def begin(self) -> None:
        self._free = self.unlimited_mhz
        self._seen = _Looks()
        self.sample()

    def sample(self) -> None:
        """Sample clock, temperature, utilisation, throttle reasons and other processes."""
        seen = self._seen
        nvml = self._nvml
        clock = self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        heat = self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        if heat is not None:
            seen.temperatures.append(float(heat))
        rates = None if self._is_divided else self._ask("nvmlDeviceGetUtilizationRates")
        if rates is not None:
            seen.busy.append(float(rates.gpu))
        seen.looks.append((float(clock) if clock else None, self._reasons()))
        seen.others = seen.others or bool(self.others())

    def cells(self) -> Row:
        seen = self._seen
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return {
            "sm_clock_mhz_mean": sum(seen.clocks) / len(seen.clocks) if seen.clocks else None,
            "sm_clock_mhz_min": min(seen.clocks, default=None),
            # the first sample is from before the work
            "gpu_util_pct": sum(seen.busy[1:]) / len(seen.busy[1:]) if seen.busy[1:] else None,
            "throttle_reasons": "+".join(_names(seen.reasons & ~_IDLE)),
            "power_limit_w": limit / 1000 if limit else None,
            "temp_c_start": seen.temperatures[0] if seen.temperatures else None,
            "temp_c_end": seen.temperatures[-1] if seen.temperatures else None,
        }

    def flags(self) -> list[str]:
        raised = {
            THROTTLED: self._seen.reasons & ~_HARMLESS or self._slow_without_reasons(),
            POWER_CAPPED: self._power_capped(),
            "clock_drift": _drifts([clock for clock, _ in self._seen.working if clock]),
            "shared_gpu": self._seen.others,
        }
        return [flag for flag, is_raised in raised.items() if is_raised]

    def _unlimited(self) -> list[float]:
        """Return the clocks of this point in samples without a limit by the driver."""
        own = ~_HARMLESS | _POWER_CAP
        return [clock for clock, why in self._seen.working if clock and not (why or 0) & own]

    def _power_capped(self) -> bool:
        """Say whether the driver lowered the clock of this point for the power limit."""
        working = self._seen.working
        capped = [clock for clock, why in working if (why or 0) & _POWER_CAP]
        if len(capped) <= _OFTEN * len(working):
            return False
        clocks = [clock for clock in capped if clock]
        free = self._unlimited()
        usual = stats.median(free) if free else self._free
        for clock in ("ApplicationsClock", "MaxClockInfo"):  # the administrator's, else the highest
            usual = usual or self._ask(f"nvmlDeviceGet{clock}", self._nvml.NVML_CLOCK_SM)
        return not (clocks and usual) or stats.median(clocks) < _LOWERED * usual

    def _slow_without_reasons(self) -> bool:
        """Say whether the clock is low against earlier points, if the driver gives no reasons."""
        clocks = self._unlimited()
        mute = all(why is None for _, why in self._seen.looks)
        return bool(mute and clocks) and stats.median(clocks) < _UNEXPLAINED * self._free

    def others(self) -> list[int]:
        """Return the ids of other processes that compute on the GPU.

        In a container the driver may list the host's ids. This process uses the GPU, so if its own
        id is not in the list, one of the others is itself. Processes on other slices do not count.
        """
        if self._is_divided:
            return []
        running = self._ask("nvmlDeviceGetComputeRunningProcesses") or ()
        listed = {process.pid for process in running}
        strangers = sorted(listed - self._own)
        return strangers if listed & self._own else strangers[1:]

    def provenance(self) -> dict[str, Any]:
        nvml = self._nvml
        default = self._ask("nvmlDeviceGetDefaultApplicationsClock", nvml.NVML_CLOCK_SM)
        most = self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
        ecc = self._ask("nvmlDeviceGetEccMode")
        mig = self._ask("nvmlDeviceGetMigMode")
        return {
            "uuid": _text(self._ask("nvmlDeviceGetUUID")),
            "driver_version": _text(self._call("nvmlSystemGetDriverVersion")),
            "sm_clock_default_mhz": default or most,
            "sm_clock_max_mhz": most,
            "ecc": bool(ecc[0]) if ecc else None,
            "mig": bool(mig[0]) if mig else None,
            "persistence": self._ask("nvmlDeviceGetPersistenceMode"),
            "compute_mode": self._ask("nvmlDeviceGetComputeMode"),
            "power_limit_default_mw": self._ask("nvmlDeviceGetPowerManagementDefaultLimit"),
        }

    def energy_of(
        self, run: Callable[[], object], finish: Callable[[], object], block: int = 5
    ) -> Row:
        """Run passes for a second and a half; divide the growth of the energy counter by them."""
        if not self.counts_energy:
            return {}
        finish()
        before = self._energy()
        began = time.monotonic()
        passes = 0
        while time.monotonic() - began < ENERGY_WINDOW_S:
            for _ in range(block):
                run()
            finish()
            passes += block
        after = self._energy()
        if before is None or after is None or after <= before:
            return {}
        return {"energy_j": (after - before) / 1000 / passes, "energy_method": "counter"}

    def _energy(self) -> int | None:
        if self._is_divided:
            return None
        value = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return int(value) if value is not None else None

    def _reasons(self) -> int | None:
        names = (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        )
        name = next((name for name in names if hasattr(self._nvml, name)), names[1])
        value = self._ask(name)
        return int(value) if value is not None else None

    def _ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - NVML returns many types
        """Return NVML's value about the GPU; None without one."""
        return self._call(name, self._handle, *arguments)

    def _call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def watch(uuid: str | None, index: int, own_pids: frozenset[int]) -> Telemetry:
    """Return telemetry of a CUDA device, by its UUID if torch knows it, else by its index."""
    try:
        import pynvml  # noqa: PLC0415 - optional
    except ImportError:
        return Telemetry()
    return connect(pynvml, uuid, index, own_pids)


def connect(nvml: Any, uuid: str | None, index: int, own_pids: frozenset[int]) -> Telemetry:  # noqa: ANN401
    """Return telemetry through the module `pynvml`; empty if the driver does not answer."""
    try:
        nvml.nvmlInit()
        handle = (
            nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            if uuid
            else nvml.nvmlDeviceGetHandleByIndex(index)
        )
    except nvml.NVMLError:
        return Telemetry()
    return _Nvml(nvml, handle, own_pids)


def _drifts(clocks: Sequence[float]) -> bool:
    """Say whether clocks differ by more than 5 %, without the highest and the lowest tenth."""
    few = max(1, len(clocks) // 10)
    kept = sorted(clocks)[few:-few]
    return bool(kept) and kept[-1] - kept[0] > _DRIFT * stats.median(kept)


def _names(reasons: int) -> list[str]:
    named = [name for bit, name in _REASONS.items() if reasons & bit]
    unknown = reasons & ~sum(_REASONS)
    return [*named, hex(unknown)] if unknown else named


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return str(value) if value is not None else None
