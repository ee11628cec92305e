"""The GPU's state, read between blocks of passes and never inside one.

NVML reports clocks, power limit, temperature, throttling and energy, through the optional package
nvidia-ml-py. Where it is missing, or the GPU is not from NVIDIA, the cells stay empty. Nothing here
changes a setting.

NVML's watts are averages over up to a second, and some GPUs sample only a quarter of that time. So
energy is always the difference of the energy counter over a window of a second or more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hpcsweep.measure.timing import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcsweep.catalog.columns import Row

ENERGY_WINDOW_S: Final = 1.5
THROTTLED: Final = "throttled"
_SLOW: Final = 0.75
_DRIFT: Final = 0.05
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
_HARMLESS: Final = 0x1 | 0x2 | 0x4 | 0x10 | 0x100


class Telemetry:
    """Telemetry of a device that reports nothing: every answer is empty."""

    watches: ClassVar[bool] = False

    def begin(self) -> None:
        """Begin a point."""

    def sample(self) -> None:
        """Look at the GPU; called when a block has ended."""

    def cells(self) -> Row:
        """Return the state columns of a point."""
        return {}

    def flags(self) -> list[str]:
        """Return the flags that the state justifies."""
        return []

    def others(self) -> list[int]:
        """Return the processes of others on the GPU."""
        return []

    def provenance(self) -> dict[str, Any]:
        """Return what does not change while the worker lives."""
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
class _Seen:
    clocks: list[float] = field(default_factory=list)
    reasons: int = 0
    temperatures: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    others: bool = False


class _Nvml(Telemetry):
    """Asks NVML about one GPU; what a GPU does not answer stays empty."""

    watches: ClassVar[bool] = True

    def __init__(self, nvml: Any, handle: Any, own_pids: frozenset[int]) -> None:  # noqa: ANN401
        self._nvml, self._handle, self._own = nvml, handle, own_pids
        self._seen = _Seen()

    def begin(self) -> None:
        self._seen = _Seen()
        self.sample()

    def sample(self) -> None:
        """Look at clock, temperature, utilisation, throttle reasons and neighbours."""
        seen, nvml = self._seen, self._nvml
        clock = self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        heat = self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        if clock:
            seen.clocks.append(float(clock))
        if heat is not None:
            seen.temperatures.append(float(heat))
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        if rates is not None:
            seen.busy.append(float(rates.gpu))
        seen.reasons |= int(self._reasons() or 0)
        seen.others = seen.others or bool(self.others())

    def cells(self) -> Row:
        seen = self._seen
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return {
            "sm_clock_mhz_mean": sum(seen.clocks) / len(seen.clocks) if seen.clocks else None,
            "sm_clock_mhz_min": min(seen.clocks, default=None),
            # the first look is before the work began
            "gpu_util_pct": sum(seen.busy[1:]) / len(seen.busy[1:]) if seen.busy[1:] else None,
            "throttle_reasons": "+".join(_names(seen.reasons & ~1)),
            "power_limit_w": limit / 1000 if limit else None,
            "temp_c_start": seen.temperatures[0] if seen.temperatures else None,
            "temp_c_end": seen.temperatures[-1] if seen.temperatures else None,
        }

    def flags(self) -> list[str]:
        seen, found = self._seen, []
        # the first look is before the work began, when the clock may rest
        clocks = seen.clocks[1:]
        usual = self.provenance().get("sm_clock_default_mhz")
        slow = usual and clocks and sum(clocks) / len(clocks) < _SLOW * usual
        if slow or seen.reasons & ~_HARMLESS:
            found.append(THROTTLED)
        if clocks and max(clocks) - min(clocks) > _DRIFT * stats.median(clocks):
            found.append("clock_drift")
        if seen.others:
            found.append("shared_gpu")
        return found

    def others(self) -> list[int]:
        """Return the processes of others that compute on the GPU.

        In a container the driver may list processes by the host's numbers. This process uses the
        GPU, so it is in the list. If it does not find its own number, one of the others is itself.
        """
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
        if self._energy() is None:
            return {}
        finish()
        before, began, passes = self._energy(), time.monotonic(), 0
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
        """Return an answer about the GPU, or None where it has none."""
        return self._call(name, self._handle, *arguments)

    def _call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def watch(uuid: str | None, index: int, own_pids: frozenset[int]) -> Telemetry:
    """Return telemetry of a CUDA device, by its UUID where torch knows it."""
    try:
        import pynvml  # noqa: PLC0415 - optional
    except ImportError:
        return Telemetry()
    return connect(pynvml, uuid, index, own_pids)


def connect(nvml: Any, uuid: str | None, index: int, own_pids: frozenset[int]) -> Telemetry:  # noqa: ANN401
    """Return telemetry through the module `pynvml`; empty where the driver does not answer."""
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


def _names(reasons: int) -> list[str]:
    named = [name for bit, name in _REASONS.items() if reasons & bit]
    unknown = reasons & ~sum(_REASONS)
    return [*named, hex(unknown)] if unknown else named


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return str(value) if value is not None else None
