"""Finds the device of this machine without torch, which a login node may not have."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcsweep import environment, processes
from hpcsweep.catalog import gpus
from hpcsweep.cluster.local import visible
from hpcsweep.text import count

_TELEMETRY: Final = "hpcsweep.measure.machine.drivers"
# what a row lacks, and which checks are off, where nothing reports the state of the GPU
WITHOUT_TELEMETRY: Final = (
    "these are off: clock, power, temperature, throttling, energy, and who else uses the GPU"
)
_SECONDS: Final = 30.0  # for a driver's answer
# what lists the GPUs, where the vendor's library does not answer: every one, in the bus's order
_QUERIES: Final[Mapping[str, Sequence[str]]] = {
    "nvidia": ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
    "amd": ("rocm-smi", "--showproductname", "--csv"),
}
# the variables that hide GPUs from a process; HIP heeds CUDA's, too
_HIDING: Final[Mapping[str, Sequence[str]]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
# what a vendor's driver makes on a machine with its GPUs; a container may have it without the rest
_NODES: Final[Mapping[str, Sequence[Path]]] = {
    "nvidia": (Path("/dev/nvidia0"), Path("/proc/driver/nvidia/gpus")),
    "amd": (environment.AMD_DRIVER,),
}
_IN_CONTAINER: Final[Mapping[str, str]] = {
    "nvidia": "in a container, start it with --nv (Apptainer) or --gpus all (Docker)",
    "amd": "in a container, start it with --rocm (Apptainer); else see ROCM_PATH",
}


@dataclass(frozen=True, kw_only=True)
class LocalDevice:
    """What points run on here: `gpu` is the catalogue's name of the GPU, else `mps` or `cpu`.

    `unused` says why a GPU that is here is not seen, `remedy` what to do about it.
    """

    gpu: str
    unused: str = ""
    remedy: str = ""


def local_device(env: Mapping[str, str] | None = None) -> LocalDevice:
    """Return the device of a process here with these variables beside its own."""
    variables = {**os.environ, **(env or {})}
    why = LocalDevice(gpu="cpu")
    for vendor, said in visible.ask(variables).items():
        found = gpus.label(said.name, vendor)
        if not said.name and said.status != visible.NO_DEVICE:
            found = _listed(vendor)
        if found:
            return LocalDevice(gpu=found)
        if not why.unused:
            why = _unused(vendor, said, variables)
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return LocalDevice(gpu="mps") if apple else why


def _unused(vendor: str, said: visible.LibraryAnswer, variables: Mapping[str, str]) -> LocalDevice:
    """Return the CPU, with the reason if a GPU of a vendor is here, or may be."""
    node = next((path for path in _NODES[vendor] if path.exists()), None)
    hiding = next((name for name in _HIDING[vendor] if name in variables), "")
    told = remedy = ""
    if said.name:
        told = f"'{said.name}' has no name in the catalogue"
        remedy = "give it one in a profile of your own: `launcher: local`, `gpu: NAME`"
    elif not said.library and node:
        told = f"{node} is here, the library of its driver is not"
        remedy = _IN_CONTAINER[vendor]
    elif said.library and hiding:
        told = f"no GPU is seen with {hiding}='{variables[hiding]}'"
        remedy = f"unset {hiding} to measure a GPU"
    elif said.library and (node or said.status != visible.NO_DEVICE):
        told = f"{said.library} finds no GPU (error {said.status})"
        remedy = f"see what {_QUERIES[vendor][0]} says"
    return LocalDevice(gpu="cpu", unused=told, remedy=remedy)


def _listed(vendor: str) -> str:
    """Return the first GPU that the vendor's program lists and that has a name here."""
    try:
        done = subprocess.run(
            _QUERIES[vendor], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(filter(None, (gpus.label(line, vendor) for line in done.stdout.splitlines())), "")


def lacking_telemetry(env: Mapping[str, str]) -> str:
    """Return why nothing will report the state of the GPU here; empty if something does."""
    try:
        done = subprocess.run(
            processes.python(_TELEMETRY),
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"the driver's library ends the process that asks it ({error})"
    return done.stdout.strip()


def busy() -> str:
    """Return a warning if other programs use the cores that are about to be measured, else ""."""
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    if load < max(0.5, cores / 2):
        return ""
    return (
        f"this machine is busy (load {load:.1f} on {count(cores, 'core')}), so times will be "
        "noisy; stop other programs, or measure on a node of your own"
    )
