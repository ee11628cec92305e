"""What the figures were measured with. Nothing here names the machine, its users or folders."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any, Final

import torch

from hpcsweep import __version__
from hpcsweep.measure.machine import provenance, telemetry

if TYPE_CHECKING:
    from collections.abc import Mapping

# nvidia-smi's name and ours; for where nvidia-ml-py is not installed
_SMI: Final[Mapping[str, str]] = {
    "driver_version": "driver",
    "clocks.max.sm": "sm_clock_max_mhz",
    "clocks.default_applications.graphics": "sm_clock_default_mhz",
    "clocks.current.sm": "sm_clock_now_mhz",
    "clocks.max.memory": "memory_clock_max_mhz",
    "power.limit": "power_limit_w",
    "persistence_mode": "persistence",
    "mig.mode.current": "mig",
}
_NVML: Final = ("sm_clock_default_mhz", "sm_clock_max_mhz", "ecc", "mig", "persistence")


def collect(kind: str) -> dict[str, Any]:
    """Return device, driver, software and clocks; what nobody tells is left out."""
    found: dict[str, Any] = {
        "kind": kind,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "hpcsweep": __version__,
    }
    found |= _gpu() if kind == "cuda" else {"name": provenance.cpu_model()}
    return {name: value for name, value in found.items() if value not in {None, ""}}


def _gpu() -> dict[str, Any]:
    device = provenance.device("cuda")
    properties = torch.cuda.get_device_properties(device.torch_device)
    index = provenance.driver_index(device.torch_device.index)
    told = telemetry.watch(device.uuid, index, frozenset({os.getpid()})).provenance()
    asked = nvidia_smi(device.uuid or str(index)) | {n: told[n] for n in _NVML if told.get(n)}
    return {
        "name": device.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sm_count": device.units,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "driver": told.get("driver_version"),
        **asked,
    }


def nvidia_smi(gpu: str) -> dict[str, str]:
    """Return what nvidia-smi tells of a GPU; nothing where it is not there or does not answer."""
    query = f"--query-gpu={','.join(_SMI)}"
    command = ("nvidia-smi", query, "--format=csv,noheader,nounits", f"--id={gpu}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_smi(done.stdout)


def parse_smi(line: str) -> dict[str, str]:
    """Read a line of nvidia-smi's CSV; `[N/A]` and the like are no answer."""
    values = [value.strip() for value in line.strip().split(",")]
    if len(values) != len(_SMI):
        return {}
    told = zip(_SMI.values(), values, strict=True)
    return {name: value for name, value in told if value and not value.startswith("[")}
