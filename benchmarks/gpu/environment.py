"""What the figures were measured with. Nothing here names the machine, its users or folders."""

from __future__ import annotations

import os
from typing import Any, Final

import torch

from hpcsweep import __version__
from hpcsweep.measure.machine import provenance, telemetry

_NVML: Final = (
    *("driver_version", "sm_clock_default_mhz", "sm_clock_max_mhz", "ecc", "mig"),
    *("persistence", "power_limit_default_mw"),
)


def watch() -> telemetry.Telemetry:
    """Return the telemetry of the GPU, as the bench has it."""
    device = provenance.device("cuda")
    index = provenance.driver_index(device.torch_device.index)
    return telemetry.watch(device.uuid, index, frozenset({os.getpid()}))


def collect(*, simulated: bool) -> dict[str, Any]:
    """Return device, driver, software and clocks; what nobody tells is left out."""
    device = provenance.device("cuda")
    told = watch().provenance()
    properties = torch.cuda.get_device_properties(device.torch_device)
    found: dict[str, Any] = {
        "kind": "simulated" if simulated else "cuda",
        "name": device.name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "hpcsweep": __version__,
        "capability": f"{properties.major}.{properties.minor}",
        "sm_count": device.units,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "teardown_cupti": os.environ.get("TEARDOWN_CUPTI"),
        **{name: told.get(name) for name in _NVML},
    }
    return {name: value for name, value in found.items() if value not in {None, ""}}
