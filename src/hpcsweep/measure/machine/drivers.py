"""Asks the driver of a GPU for its state: NVIDIA's by NVML, AMD's by amdsmi.

NVML comes with the optional package nvidia-ml-py, amdsmi with ROCm. What a driver does not report
is None, whichever class its error has: besides their own errors the packages raise `AttributeError`
for a function that they lack, and pynvml `NVMLLibraryMismatchError` for one that the driver lacks.
Nothing here changes a setting.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from hpcsweep import environment, extras
from hpcsweep.errors import first_line

# nvml.h, nvmlClocksThrottleReasons (later: nvmlClocksEventReasons)
IDLE: Final = 0x1
POWER_CAP: Final = 0x4
_SLOWDOWN: Final = 0x8
_HOT: Final = 0x40
# amdgpu_smu.h, SMU_THROTTLER_*: limits of power and current, heat, what else slows a GPU down
_AMD_STATUS: Final = ((0xFFFF_FFFF, POWER_CAP), (0xFFFF << 32, _HOT), (0xFFFF << 48, _SLOWDOWN))
# What AMD's library writes in place of a status that there is not.
_UNTOLD: Final = (1 << 64) - 1
# No GPU has a higher limit: beyond it the figure is in microwatts, as some versions tell it.
_MOST_W: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a driver reports of a GPU at one time."""

    clock_mhz: float | None = None
    usual_mhz: float | None = None  # that the administrator set, else the highest
    temperature_c: float | None = None
    busy_pct: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    reasons: int | None = None  # for a low clock, as bits of NVML
    of_board: bool = False  # power and energy are those of several dies


class NoDriver(Exception):
    """Nothing reports the state of a GPU; the text says why."""


class Driver(Protocol):
    """What reads the state of one GPU."""

    def read(self) -> Reading:
        """Return the state now."""
        ...

    def energy_j(self) -> float | None:
        """Return the energy counter, in joules."""
        ...

    def others(self) -> list[int]:
        """Return the ids of other processes that compute on the GPU."""
        ...

    def provenance(self) -> dict[str, Any]:
        """Return constants of the GPU and its driver."""
        ...


class _Nvml:
    """An NVIDIA GPU."""

    def __init__(self, nvml: Any, handle: Any, own_pids: frozenset[int]) -> None:  # noqa: ANN401
        self._nvml = nvml
        self._handle = handle
        self._own = own_pids
        mig = self._ask("nvmlDeviceGetMigMode")
        # then this point has a slice, and NVML tells of the whole
        self._is_divided = bool(mig and mig[0])

    def is_of(self, uuid: str | None) -> bool:
        """Say whether this is the GPU of a UUID, as far as both are told."""
        own = _text(self._ask("nvmlDeviceGetUUID"))
        return not (own and uuid) or own == uuid

    def read(self) -> Reading:
        nvml = self._nvml
        rates = None if self._is_divided else self._ask("nvmlDeviceGetUtilizationRates")
        watts = None if self._is_divided else self._ask("nvmlDeviceGetPowerUsage")
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        usual = self._ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_SM)
        most = self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
        return Reading(
            clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM) or None,
            usual_mhz=usual or most,
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            busy_pct=rates.gpu if rates is not None else None,
            power_w=watts / 1000 if watts else None,
            power_limit_w=limit / 1000 if limit else None,
            reasons=self._ask_first(
                "nvmlDeviceGetCurrentClocksEventReasons",
                "nvmlDeviceGetCurrentClocksThrottleReasons",  # all that a driver before 535 has
            ),
        )

    def energy_j(self) -> float | None:
        if self._is_divided:
            return None
        value = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return value / 1000 if value is not None else None

    def others(self) -> list[int]:
        """Return the ids of other processes that compute on the GPU.

        In a container the driver may list the host's ids. This process uses the GPU, so if its own
        id is not in the list, one of the others is itself. Processes on other slices do not count.
        """
        if self._is_divided:
            return []
        running = self._ask_first(
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetComputeRunningProcesses_v2",  # all that a driver before 510 has
        )
        listed = {process.pid for process in running or ()}
        strangers = sorted(listed - self._own)
        return strangers if listed & self._own else strangers[1:]

    def provenance(self) -> dict[str, Any]:
        nvml = self._nvml
        default = self._ask("nvmlDeviceGetDefaultApplicationsClock", nvml.NVML_CLOCK_SM)
        most = self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
        ecc = self._ask("nvmlDeviceGetEccMode")
        mig = self._ask("nvmlDeviceGetMigMode")
        try:
            version = nvml.nvmlSystemGetDriverVersion()
        except Exception:  # noqa: BLE001 - of any class, as the module says
            version = None
        return {
            "uuid": _text(self._ask("nvmlDeviceGetUUID")),
            "driver_version": _text(version),
            "sm_clock_default_mhz": default or most,
            "sm_clock_max_mhz": most,
            "ecc": bool(ecc[0]) if ecc else None,
            "mig": bool(mig[0]) if mig else None,
            "persistence": self._ask("nvmlDeviceGetPersistenceMode"),
            "energy_resolution_uj": 1000 if self.energy_j() else None,
            "power_limit_default_mw": self._ask("nvmlDeviceGetPowerManagementDefaultLimit"),
        }

    def _ask_first(self, *names: str) -> Any:  # noqa: ANN401
        """Return the first value that one of several functions of the same meaning tells."""
        for name in names:
            value = self._ask(name)
            if value is not None:
                return value
        return None

    def _ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - NVML returns many types
        """Return NVML's value about the GPU; None without one."""
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except Exception:  # noqa: BLE001 - of any class, as the module says
            return None


class _Amd:
    """An AMD GPU, which for torch is one die; a board of an MI250 has two.

    The first die of a board reports the power and the energy of both, the second one 0 W. So a 0
    is no reading: the cells of a second die stay empty. Neighbours are not told.
    """

    def __init__(self, smi: Any, dies: Sequence[Any], index: int) -> None:  # noqa: ANN401
        self._smi = smi
        self._die = dies[index]
        self._next = dies[index + 1 : index + 2]

    def read(self) -> Reading:
        smi = self._smi
        clock = self._ask("amdsmi_get_clock_info", smi.AmdSmiClkType.GFX)
        busy = _number(self._ask("amdsmi_get_gpu_activity").get("gfx_activity"))
        limit = _number(self._ask("amdsmi_get_power_cap_info").get("power_cap")) or 0
        if limit > _MOST_W:
            limit /= 1e6
        hottest = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        return Reading(
            clock_mhz=_number(clock.get("clk")) or None,
            usual_mhz=_number(clock.get("max_clk")) or None,
            temperature_c=self._ask("amdsmi_get_temp_metric", *hottest) or None,
            busy_pct=busy,
            power_w=self._watts(self._die) or None,
            power_limit_w=limit or None,
            reasons=self._reasons(IDLE if busy == 0 else 0),
            of_board=any(self._watts(die) == 0 for die in self._next),
        )

    def energy_j(self) -> float | None:
        """Return the counter where the power is told, too: else it is another die's."""
        counter = self._ask("amdsmi_get_energy_count")
        if not (self._watts(self._die) and counter.get("energy_accumulator")):
            return None
        return float(counter["energy_accumulator"] * counter["counter_resolution"] / 1e6)

    def others(self) -> list[int]:
        return []

    def provenance(self) -> dict[str, Any]:
        return {
            "driver_version": self._ask("amdsmi_get_gpu_driver_info").get("driver_version"),
            "energy_resolution_uj": self._ask("amdsmi_get_energy_count").get("counter_resolution"),
        }

    def _watts(self, die: Any) -> float | None:  # noqa: ANN401
        info = self._ask("amdsmi_get_power_info", die=die)
        watts = []
        # MI300 has the one, MI250 the other
        for name in ("current_socket_power", "average_socket_power"):
            number = _number(info.get(name))
            if number is not None:
                watts.append(number)
        return max(watts, default=None)

    def _reasons(self, idle: int) -> int | None:
        # not by the package's own function: its newer versions tell only whether some bit is set
        try:
            library = self._smi.amdsmi_wrapper
            metrics = library.amdsmi_gpu_metrics_t()
            failed = library.amdsmi_get_gpu_metrics_info(self._die, ctypes.byref(metrics))
            status = metrics.indep_throttle_status
        except Exception:  # noqa: BLE001 - of any class, as the module says
            return None
        if failed or status == _UNTOLD:
            return None
        return idle + sum(bit for mask, bit in _AMD_STATUS if status & mask)

    def _ask(self, name: str, *arguments: object, die: Any = None) -> Any:  # noqa: ANN401
        try:
            return getattr(self._smi, name)(self._die if die is None else die, *arguments)
        except Exception:  # noqa: BLE001 - of any class, as the module says
            return {}


def nvml(
    module: Any,  # noqa: ANN401
    uuid: str | None,
    index: int,
    own_pids: frozenset[int],
    bus: str = "",
) -> Driver:
    """Return the driver of a GPU behind the module `pynvml`.

    The UUID names a GPU best, then its place on the PCI bus; its number is that of another GPU
    where a variable hides some, or orders them.

    Raises:
        NoDriver: NVML does not answer, or knows no such GPU.
    """
    if module is None:
        raise NoDriver(f"nvidia-ml-py is not installed: {extras.install('nvidia')}")
    try:
        module.nvmlInit()
    except Exception as error:
        raise NoDriver(
            f"NVML does not start ({first_line(error)}): see what nvidia-smi says; a container "
            "needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        ) from error
    refusal = ""
    ways: list[tuple[str, bytes | int]] = []
    if uuid:
        ways.append(("nvmlDeviceGetHandleByUUID", uuid.encode()))
    if bus:
        ways.append(("nvmlDeviceGetHandleByPciBusId", f"{bus}0".encode()))
    ways.append(("nvmlDeviceGetHandleByIndex", index))
    for name, by in ways:
        try:
            found = _Nvml(module, getattr(module, name)(by), own_pids)
        except Exception as error:  # noqa: BLE001 - of any class, as the module says
            refusal = refusal or first_line(error)
            continue
        if by is not index or found.is_of(uuid):
            return found
        refusal = refusal or f"its number {index} is another one"
    raise NoDriver(f"NVML does not find this GPU: {refusal}")


def amdsmi(module: Any, bus: str) -> Driver:  # noqa: ANN401
    """Return the driver behind the module `amdsmi`, of the die at a PCI bus.

    The n-th is another one where a variable hides some, or HIP counts in another order: without its
    bus only a single die is known.

    Raises:
        NoDriver: amdsmi does not answer, or knows no such die.
    """
    dies, buses = _amd_dies(module)
    for place, own in enumerate(buses):
        if len(dies) == 1 or (bus and own.startswith(bus)):
            return _Amd(module, dies, place)
    raise NoDriver(f"amdsmi knows no GPU at PCI bus '{bus}'")


def _amd_dies(module: Any) -> tuple[list[Any], list[str]]:  # noqa: ANN401
    """Return the dies that `amdsmi` knows, and their PCI buses; raise `NoDriver` if none."""
    if module is None:
        raise NoDriver("this Python finds no amdsmi, which ROCm brings")
    try:
        module.amdsmi_init()
        dies = module.amdsmi_get_processor_handles()
        return dies, [module.amdsmi_get_gpu_device_bdf(die) for die in dies]
    except Exception as error:
        raise NoDriver(f"amdsmi does not answer: {first_line(error)}") from error


def find(uuid: str | None, index: int, own_pids: frozenset[int], bus: str) -> Driver:
    """Return the driver of a CUDA device by UUID, PCI bus or index, of an AMD GPU by its bus.

    Raises:
        NoDriver: none of the installed packages reports it.
    """
    try:
        return nvml(_imported("pynvml"), uuid, index, own_pids, bus)
    except NoDriver:
        if not _may_be_amd():
            raise
    return amdsmi(_imported("amdsmi"), bus)


def lacking() -> str:
    """Return why no driver can report a GPU of this machine; empty if one can."""
    try:
        nvml(_imported("pynvml"), None, 0, frozenset())
    except NoDriver as of_nvidia:
        if not _may_be_amd():
            return str(of_nvidia)
        try:
            _amd_dies(_imported("amdsmi"))
        except NoDriver as of_amd:
            return str(of_amd)
    return ""


def _may_be_amd() -> bool:
    return environment.AMD_DRIVER.exists() or _imported("amdsmi") is not None


def _imported(name: str) -> Any:  # noqa: ANN401
    """Return a module that is installed, or that ROCm has in a folder of its own."""
    folder = str(Path(os.environ.get("ROCM_PATH", "/opt/rocm"), "share", "amd_smi"))
    sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, AttributeError, KeyError):  # KeyError: amdsmi lacks its library
        return None
    finally:
        sys.path.remove(folder)


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) else None  # AMD's package also says "N/A"


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return str(value) if value is not None else None


if __name__ == "__main__":
    print(lacking())  # noqa: T201 - who measures here reads it
