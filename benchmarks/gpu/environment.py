"""What the figures were measured with. Nothing here names the machine, its users or folders."""

from __future__ import annotations

import os
from typing import Any, Final

import torch
from torch.nn import functional as F  # noqa: N812 - its own habit

from hpcsweep.conv.proof import profiler_events
from hpcsweep.measure.machine import drivers, rig
from hpcsweep.measure.machine.drivers import Driver, NoDriver
from hpcsweep.version import __version__

PRETENDED: Final = "pretended"  # the kind of a device that is not there
_NVML: Final = (
    *("driver_version", "sm_clock_default_mhz", "sm_clock_max_mhz", "ecc", "mig"),
    *("persistence", "power_limit_default_mw"),
)


def driver(*known: int) -> Driver | None:
    """Return what reads the state of the GPU, as the bench does; `known` may use it, too."""
    device = rig.current_device("cuda")
    index = rig.driver_index(device.torch_device.index)
    try:
        return drivers.find(device.uuid, index, frozenset({os.getpid(), *known}), device.bus)
    except NoDriver:
        return None


def collect(*, pretended: bool) -> dict[str, Any]:
    """Return device, driver, software and clocks; what nobody tells is left out."""
    device = rig.current_device("cuda")
    nvml = driver()
    told = nvml.provenance() if nvml else {}
    properties = torch.cuda.get_device_properties(device.torch_device)
    found: dict[str, Any] = {
        "kind": PRETENDED if pretended else "cuda",
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


def warm_up() -> None:
    """Load what a GPU needs for the first time: from a cold disk that can take half a minute."""
    gpu = torch.device("cuda")
    image = torch.randn(1, 64, 56, 56, device=gpu)
    filters = torch.randn(64, 64, 3, 3, device=gpu)
    with profiler_events.session(gpu):
        F.conv2d(image, filters)
        F.linear(image, image[0, 0])
    torch.cuda.synchronize()
