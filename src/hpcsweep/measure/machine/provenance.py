"""Describes the machine and its software, for env.json and for cells of every row."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from hpcsweep.catalog.row_records import MachineCells
from hpcsweep.environment import of_slurm, readable
from hpcsweep.measure import caches
from hpcsweep.measure.machine import peak_memory
from hpcsweep.measure.machine.drivers import Driver
from hpcsweep.measure.timing import clocks

SLICE: Final = "MIG"  # in the names of slices: NVIDIA H200 MIG 1g.18gb


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


class Rig:
    """A device, its memory, a function that waits until it is idle, and a GPU's driver."""

    def __init__(self, kind: str = "cpu", driver: Driver | None = None) -> None:
        """Use the current device of a kind: cpu, cuda or mps."""
        self.device = device(kind)
        self.driver = driver
        self.memory = peak_memory.watch(self.device.torch_device)
        self.wait = clocks.synchronizer(self.device.torch_device)


def device(kind: str) -> Device:
    """Return the current device of a kind (cpu, cuda or mps)."""
    if kind == "cuda":
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        name = torch.cuda.get_device_name(index)
        uuid = getattr(properties, "uuid", None)  # torch 2.5 and later; of a slice, the slice's
        return Device(
            torch.device("cuda", index),
            name,
            f"{'MIG' if SLICE in name else 'GPU'}-{uuid}" if uuid else None,
            properties.multi_processor_count,
            _bus(properties),
        )
    if kind == "mps":
        return Device(torch.device("mps"), cpu_model())
    return Device(torch.device("cpu"), cpu_model())


def _bus(properties: Any) -> str:  # noqa: ANN401
    """Return domain, bus and device; later versions of torch know them."""
    names = "pci_domain_id", "pci_bus_id", "pci_device_id"
    if not all(hasattr(properties, name) for name in names):
        return ""
    domain, bus, device = (getattr(properties, name) for name in names)
    return f"{domain:04x}:{bus:02x}:{device:02x}."


def driver_index(index: int) -> int:
    """Return the driver's number of torch's n-th GPU; CUDA_VISIBLE_DEVICES may hide some."""
    try:
        return int(torch.cuda._get_nvml_device_index(index))  # noqa: SLF001 - torch has no public one
    except (AttributeError, RuntimeError, OSError):  # OSError: there is no NVML to ask for UUIDs
        return index


def environment(device: Device, driver: Driver | None = None) -> dict[str, Any]:
    """Return the description of machine and software; `row` has the cells of every row."""
    constants = driver.provenance() if driver else {}
    return {
        "row": vars(row_cells(device, constants)),
        "python": platform.python_version(),
        "executable": sys.executable,
        "argv": sys.argv,
        "host": _host(),
        "device": _gpu(device) | constants
        if device.type == "cuda"
        else {"type": device.type, "name": device.name},
        "software": _software(),
        "environment": {k: v for k, v in os.environ.items() if readable(k, v)},
        "slurm": of_slurm(os.environ),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "rocr_visible_devices": os.environ.get("ROCR_VISIBLE_DEVICES"),
    }


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


def _host() -> dict[str, Any]:
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpus_allowed": allowed,
        "cpu_cache_bytes": caches.host_cache_bytes(),
        "memory_limit_bytes": peak_memory.MemoryWatch().limit(),
        "torch_threads": torch.get_num_threads(),
    }


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


def _software() -> dict[str, Any]:
    import torchvision  # noqa: PLC0415 - two seconds, only on a machine that fits

    return {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": _cudnn_version(),
        "torch_config": torch.__config__.show(),
    }


def _cudnn_version() -> str | None:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return str(version) if version else None
