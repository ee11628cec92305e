"""Finds the device of this machine without torch, which a login node may not have.

It looks at what a process here would get, and measures nothing. Variables hide and order GPUs:
CUDA_VISIBLE_DEVICES takes numbers, UUIDs and slices, and CUDA counts the fastest first unless
CUDA_DEVICE_ORDER says otherwise. Only CUDA's driver, or HIP for AMD, knows what they mean;
`nvidia-smi` and `rocm-smi` list every GPU in an order of their own. So the library that torch asks
is asked, in a process of its own (`first_device`): it reads the variables once, and may crash.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcsweep import environment, processes
from hpcsweep.catalog import gpus
from hpcsweep.cluster.local import first_device
from hpcsweep.text import count

_TELEMETRY: Final = "hpcsweep.measure.machine.drivers"
# What a row lacks, and which checks are off, where nothing reports the state of the GPU
WITHOUT_TELEMETRY: Final = (
    "these are off: clock, power, temperature, throttling, energy, and who else uses the GPU"
)
# For a driver's answer: without persistence mode it takes some seconds to start
_SECONDS: Final = 30.0
# CUDA_ERROR_NO_DEVICE of cuda.h, and hipErrorNoDevice of hip_runtime_api.h.
NO_DEVICE: Final = 100
# What lists the GPUs, where the vendor's library does not answer: every one, in the bus's order
_QUERIES: Final[Mapping[str, Sequence[str]]] = {
    "nvidia": ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
    "amd": ("rocm-smi", "--showproductname", "--csv"),
}
# The variables that hide GPUs from a process; HIP heeds CUDA's, too
_HIDING: Final[Mapping[str, Sequence[str]]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
# What a vendor's driver makes on a machine with its GPUs; a container may have it without the rest
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


@dataclass(frozen=True, kw_only=True)
class LibraryAnswer:
    """What a vendor's library says: the first device's name, else the status of what failed.

    Without a `library` there is none that loads; the status is -1 if it ended or held its process.
    """

    library: str = ""
    name: str = ""
    status: int = 0


def local_device(env: Mapping[str, str] | None = None) -> LocalDevice:
    """Return the device of a process here with these variables beside its own."""
    variables = {**os.environ, **(env or {})}
    cpu = LocalDevice(gpu="cpu")
    for vendor, answer in ask_libraries(variables).items():
        found = gpus.label(answer.name, vendor)
        if not answer.name and answer.status != NO_DEVICE:
            found = _first_listed(vendor)
        if found:
            return LocalDevice(gpu=found)
        if not cpu.unused:
            cpu = _unused(vendor, answer, variables)
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return LocalDevice(gpu="mps") if apple else cpu


def ask_libraries(variables: Mapping[str, str]) -> dict[str, LibraryAnswer]:
    """Return what each vendor's library says to a process with these variables."""
    # isolated (-I), without its packages (-S), Python starts in 20 ms; it writes nothing (-B)
    command = [sys.executable, "-I", "-S", "-B", first_device.__file__]
    for vendor in first_device.FUNCTIONS:
        for place in library_places(vendor):
            command += [vendor, place]
    try:
        printed = subprocess.run(
            command,
            env=dict(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
    answers = dict.fromkeys(first_device.FUNCTIONS, LibraryAnswer())
    for line in printed.splitlines():
        fields = json.loads(line)
        vendor = fields.pop("vendor")
        answers[vendor] = LibraryAnswer(**fields)
    return answers


def library_places(vendor: str) -> Iterator[str]:
    """Yield where a vendor's library may be; torch's own copy of HIP comes first."""
    if vendor == "nvidia":
        yield "libcuda.so.1"
        return
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        yield str(Path(torch.origin).parent / "lib" / "libamdhip64.so")
    yield "libamdhip64.so"
    yield str(Path(os.environ.get("ROCM_PATH", "/opt/rocm"), "lib", "libamdhip64.so"))


def _unused(vendor: str, answer: LibraryAnswer, variables: Mapping[str, str]) -> LocalDevice:
    """Return the CPU, with the reason if a GPU of a vendor is here, or may be."""
    node = next((path for path in _NODES[vendor] if path.exists()), None)
    hiding = next((name for name in _HIDING[vendor] if name in variables), "")
    why = remedy = ""
    if answer.name:
        why = f"'{answer.name}' has no name in the catalogue"
        remedy = "give it one in a profile of your own: `launcher: local`, `gpu: NAME`"
    elif not answer.library and node:
        why = f"{node} is here, the library of its driver is not"
        remedy = _IN_CONTAINER[vendor]
    elif answer.library and hiding:
        why = f"no GPU is seen with {hiding}='{variables[hiding]}'"
        remedy = f"unset {hiding} to measure a GPU"
    elif answer.library and (node or answer.status != NO_DEVICE):
        why = f"{answer.library} finds no GPU (error {answer.status})"
        remedy = f"see what {_QUERIES[vendor][0]} says"
    return LocalDevice(gpu="cpu", unused=why, remedy=remedy)


def _first_listed(vendor: str) -> str:
    """Return the first GPU that the vendor's program lists and that has a name here."""
    try:
        done = subprocess.run(
            _QUERIES[vendor], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    for line in done.stdout.splitlines():
        label = gpus.label(line, vendor)
        if label:
            return label
    return ""


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
    # points themselves leave no load at this moment: half of the cores is somebody else's work
    if load < max(0.5, cores / 2):
        return ""
    return (
        f"this machine is busy (load {load:.1f} on {count(cores, 'core')}), so times will be "
        "noisy; stop other programs, or measure on a node of your own"
    )
