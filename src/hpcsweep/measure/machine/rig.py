"""What points run on: a device and its memory, and what describes them in env.json and in rows."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import resource
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from hpcsweep.catalog.checks.memory import MemoryCells
from hpcsweep.catalog.row_records import MachineCells
from hpcsweep.environment import of_slurm, readable
from hpcsweep.measure import caches
from hpcsweep.measure.machine.drivers import Driver
from hpcsweep.measure.timing import clocks

# In the names of slices: NVIDIA H200 MIG 1g.18gb.
SLICE: Final = "MIG"


@dataclass(frozen=True)
class Device:
    """The device that passes run on; `units` are its multiprocessors."""

    torch_device: torch.device
    name: str
    uuid: str | None = None
    units: int | None = None
    bus: str = ""  # of PCI, as AMD's library writes it, without the function

    @property
    def type(self) -> str:
        return str(self.torch_device.type)


class MemoryWatch:
    """Watches the memory of one point: here the resident memory of this process.

    The kernel keeps a high-water mark, which includes the interpreter and torch. If the mark can be
    reset (Linux, /proc/self/clear_refs) it is the point's own, else that of the whole process so
    far; `source` says which.
    """

    source = "max_rss"

    def reset(self) -> None:
        """Begin a point: reset the kernel's high-water mark, where that is allowed."""
        # what the point before left in reference cycles, such as its images
        gc.collect()
        with suppress(AttributeError):  # the C library is not glibc
            ctypes.CDLL(None).malloc_trim(0)  # gives back what a larger point used and freed
        try:
            # proc(5): 5 resets the high-water mark
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            self.source = "max_rss"
        else:
            self.source = "vm_hwm"

    def drop_reserve(self) -> None:
        """Give back what an allocator keeps for later, and forget its refusals."""

    def peak(self) -> int | None:
        """Return the most bytes in use since `reset`."""
        if self.source == "vm_hwm":
            status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
            match = re.search(r"VmHWM:\s+(\d+) kB", status)
            if match:
                return int(match[1]) << 10
        unit = 1 if sys.platform == "darwin" else 1 << 10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def limit(self) -> int | None:
        """Return the least limit, in bytes, of memory, control group and address space."""
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        address_space = soft if soft != resource.RLIM_INFINITY else None
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(x for x in (physical, control_group_limit(), address_space) if x)

    def now(self) -> int | None:
        """Return the bytes in use; None if unknown (not on Linux)."""
        try:
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        except OSError:
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cells(self) -> MemoryCells:
        """Return the cells on the peak since `reset`, the limit, and their source."""
        return MemoryCells(
            mem_peak_bytes=self.peak(), mem_limit_bytes=self.limit(), mem_source=self.source
        )


class _CudaMemory(MemoryWatch):
    """Watches the GPU's memory by torch's caching allocator."""

    source = "cuda_allocator"

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def drop_reserve(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_accumulated_memory_stats()

    def peak(self) -> int | None:
        return int(torch.cuda.max_memory_allocated())

    def limit(self) -> int | None:
        return int(torch.cuda.mem_get_info()[1])

    def now(self) -> int | None:
        return int(torch.cuda.memory_allocated())

    def cells(self) -> MemoryCells:
        """Add the most that torch reserved, and which share of it was never in use at once."""
        statistics = torch.cuda.memory_stats()
        used = statistics["allocated_bytes.all.peak"]
        held = statistics["reserved_bytes.all.peak"]
        return super().cells() | MemoryCells(
            mem_reserved_bytes=held,
            mem_fragmentation_pct=100 * (1 - used / held) if held else None,
        )


class Rig:
    """A device, its memory, a function that waits until it is idle, and a GPU's driver."""

    def __init__(self, kind: str = "cpu", driver: Driver | None = None) -> None:
        """Use the current device of a kind: cpu, cuda or mps."""
        self.device = current_device(kind)
        self.driver = driver
        self.memory = _CudaMemory() if self.device.type == "cuda" else MemoryWatch()
        self.wait = clocks.synchronizer(self.device.torch_device)

    def environment(self) -> dict[str, Any]:
        """Return the description of machine and software; `row` has the cells of every row."""
        import torchvision  # noqa: PLC0415 - two seconds, only on a machine that fits

        constants = self.driver.provenance() if self.driver else {}
        device: dict[str, Any] = {"type": self.device.type, "name": self.device.name}
        if self.device.type == "cuda":
            device = _gpu(self.device) | constants
        can_tell = hasattr(os, "sched_getaffinity")  # Linux
        return {
            "row": vars(row_cells(self.device, constants)),
            "python": platform.python_version(),
            "executable": sys.executable,
            "argv": sys.argv,
            "host": {
                "name": socket.gethostname(),
                "system": platform.platform(),
                "cpu_model": cpu_model(),
                "cpu_count": os.cpu_count(),
                "cpus_allowed": sorted(os.sched_getaffinity(0)) if can_tell else None,
                "cpu_cache_bytes": caches.host_cache_bytes(),
                "memory_limit_bytes": MemoryWatch().limit(),
                "torch_threads": torch.get_num_threads(),
            },
            "device": device,
            "software": {
                "torch": torch.__version__,
                "torchvision": torchvision.__version__,
                "cuda": torch.version.cuda,
                "hip": torch.version.hip,
                "cudnn": _cudnn_version(),
                "torch_config": torch.__config__.show(),
            },
            "environment": {k: v for k, v in os.environ.items() if readable(k, v)},
            "slurm": of_slurm(os.environ),
            "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "rocr_visible_devices": os.environ.get("ROCR_VISIBLE_DEVICES"),
        }


def current_device(kind: str) -> Device:
    """Return the current device of a kind (cpu, cuda or mps)."""
    if kind == "cuda":
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        name = torch.cuda.get_device_name(index)
        uuid = getattr(properties, "uuid", None)  # torch 2.5 and later; of a slice, the slice's
        # as the driver names it
        if uuid:
            uuid = f"{'MIG' if SLICE in name else 'GPU'}-{uuid}"
        units = properties.multi_processor_count
        try:
            numbers = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
            bus = "{:04x}:{:02x}:{:02x}.".format(*numbers)
        except AttributeError:  # an earlier torch
            bus = ""
        return Device(torch.device("cuda", index), name, uuid, units, bus)
    return Device(torch.device(kind), cpu_model())


def driver_index(index: int) -> int:
    """Return the driver's number of torch's n-th GPU; CUDA_VISIBLE_DEVICES may hide some."""
    try:
        return int(torch.cuda._get_nvml_device_index(index))  # noqa: SLF001 - torch has no public one
    except (AttributeError, RuntimeError, OSError):  # OSError: there is no NVML to ask for UUIDs
        return index


def row_cells(device: Device, driver: Mapping[str, Any]) -> MachineCells:
    """Return the cells on the node, which every row has; `driver` is what a GPU's driver tells."""
    on_gpu = device.type == "cuda"
    return MachineCells(
        device_name=device.name,
        device_uuid=device.uuid or driver.get("uuid"),
        node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        torch_version=torch.__version__,
        cuda_version=(torch.version.hip or torch.version.cuda) if on_gpu else None,
        cudnn_version=_cudnn_version() if on_gpu else None,
        driver_version=driver.get("driver_version"),
    )


def cpu_model() -> str:
    """Return the processor's marketing name, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _gpu(device: Device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device.torch_device)
    return {
        "type": "cuda",
        "name": device.name,
        "uuid": device.uuid,
        "sm_count": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "gcn_arch": getattr(properties, "gcnArchName", None) if torch.version.hip else None,
        "vram_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
    }


def _cudnn_version() -> str | None:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return str(version) if version else None


def control_group_limit() -> int | None:
    """Return the lowest memory limit of this process's control groups, of version 1 or 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup")
        name = "memory.max"
        if "memory" in controllers:  # of version 1
            root /= "memory"
            name = "memory.limit_in_bytes"
        folder = root / path.strip("/")
        for step in (folder, *folder.parents):
            limit = limit_in(step / name)
            if limit:
                limits.append(limit)
    return min(limits, default=None)


def limit_in(path: Path) -> int | None:
    """Return the limit in a file of a control group; None if it has none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    value = int(text) if text.isdigit() else 0
    # version 1 says "no limit" with a number near 2 ** 63, and no machine has 2 ** 60 bytes
    return value if 0 < value < 1 << 60 else None
