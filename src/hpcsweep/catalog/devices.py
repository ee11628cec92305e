"""What cuDNN has to know of a GPU to say what it can do there, without the GPU.

The figures are typed from NVIDIA's data sheets and from the table of compute capabilities in the
CUDA programming guide. `hpcsweep doctor` on a node with a GPU writes the true ones beside the
profile, and these win.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class _Sheet(NamedTuple):
    """A line of a data sheet: capability, GiB, multiprocessors, L2 in MiB, clocks in MHz, PCI."""

    name: str
    capability: int
    memory: int
    multiprocessors: int
    l2: int
    clock: int
    memory_clock: int
    pci: int


# fmt: off
_SHEETS: Final[Mapping[str, _Sheet]] = {
    "v100": _Sheet("Tesla V100-SXM2-16GB", 700, 16, 80, 6, 1530, 877, 0x1DB1),
    "t4": _Sheet("Tesla T4", 750, 15, 40, 4, 1590, 5001, 0x1EB8),
    "a100": _Sheet("NVIDIA A100-SXM4-40GB", 800, 40, 108, 40, 1410, 1215, 0x20B0),
    "l4": _Sheet("NVIDIA L4", 890, 22, 58, 48, 2040, 6251, 0x27B8),
    "l40": _Sheet("NVIDIA L40", 890, 45, 142, 96, 2490, 9001, 0x26B5),
    "l40s": _Sheet("NVIDIA L40S", 890, 45, 142, 96, 2520, 9001, 0x26B9),
    "h100": _Sheet("NVIDIA H100 80GB HBM3", 900, 80, 132, 50, 1980, 2619, 0x2330),
    "h200": _Sheet("NVIDIA H200", 900, 140, 132, 50, 1980, 3201, 0x2335),
}
# by compute capability: shared memory of a block at most, blocks and threads of a multiprocessor
_CAPABILITIES: Final[Mapping[int, tuple[int, int, int]]] = {
    700: (98_304, 32, 2048), 750: (65_536, 16, 1024), 800: (166_912, 32, 2048),
    890: (101_376, 24, 1536), 900: (232_448, 32, 2048),
}
# fmt: on
NAMES: Final = tuple(_SHEETS)
_CUDA: Final = 13000


def properties(gpu: str) -> dict[str, Any] | None:
    """Return the properties of a `gpu` as cuDNN reads them; None where no sheet was typed."""
    sheet = _SHEETS.get(gpu)
    if sheet is None:
        return None
    shared, blocks, threads = _CAPABILITIES[sheet.capability]
    return {
        "deviceVer": sheet.capability,
        "smVersion": sheet.capability,
        "deviceName": sheet.name,
        "cudaDeviceId": 0,
        "pciDeviceId": sheet.pci,
        **dict.fromkeys(("driverVer", "driverVersion", "runtimeVersion"), _CUDA),
        "totalGlobalMem": sheet.memory << 30,
        "l2CacheSize": sheet.l2 << 20,
        "smClockRateKHz": sheet.clock * 1000,
        "memClockRateKHz": sheet.memory_clock * 1000,
        "multiProcessorCount": sheet.multiprocessors,
        "smCountOrigin": 0,
        "maxSharedMemoryPerBlockOptin": shared,
        "maxCtasPerSM": blocks,
        "maxThreadsPerSM": threads,
        "maxSharedMemoryPerBlock": 49_152,
        "oversizedSharedMemoryPerBlock": 0,
        "reservedSharedMemoryPerBlock": 1024,
        "regsPerBlock": 65_536,
        "maxRegistersPerSM": 65_536,
        "maxThreadsPerBlock": 1024,
        "maxBlockSize": [1024, 1024, 64],
        "maxGridSize": [2_147_483_647, 65_535, 65_535],
        "warpSize": 32,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
    }
