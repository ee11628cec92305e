"""Checks that torch can use the GPU that is here; each cause has words and a remedy of its own.

The words of drivers are those of cudaGetErrorString (`driver_types.h`); HIP says the same, or names
its error.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

import torch

from hpcsweep.conv.libraries import cudnn_library
from hpcsweep.errors import GpuFails, NoCodeForGpu, Occupied, Refused, first_line
from hpcsweep.measure.machine.provenance import Device

_FULL: Final = "out of memory"
_BUSY: Final = "busy or unavailable"  # cudaErrorDevicesUnavailable
# cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction (HIP's word for the same)
_NO_CODE: Final = ("no kernel image", "invalid device function")
_VERSION: Final = re.compile(r"\((\d+), (\d+), (\d+)\)")  # as torch writes those of cuDNN


@dataclass(frozen=True)
class Unusable:
    """Why a GPU that is there cannot be measured, and what to do."""

    what: str
    remedy: str
    kind: type[Refused]


def check(device: Device) -> None:
    """Check that torch can use a GPU.

    Raises:
        Refused: it cannot; with the cause, and what to do.
    """
    if wrong := problem(device):
        raise wrong.kind(f"{wrong.what}; {wrong.remedy}")


def problem(device: Device) -> Unusable | None:
    """Return what keeps torch from a GPU: a library of another version, or the GPU itself."""
    return wrong_library() or _wrong_gpu(device)


def wrong_library() -> Unusable | None:
    """Return what torch says against the cuDNN that was loaded.

    It takes none that is older than its own, or that lacks code for the GPU. It looks at its first
    use of cuDNN, and only then.
    """
    try:
        torch.backends.cudnn.version()
    except RuntimeError as error:
        versions = [".".join(one) for one in _VERSION.findall(str(error))]
        if len(versions) < 2:
            do = "install the torch that its link names for this GPU"
            return Unusable(first_line(error), do, NoCodeForGpu)
        places = ", ".join(cudnn_library.loaded())
        return Unusable(
            f"torch was built for cuDNN {versions[0]}, and {versions[1]} is loaded ({places})",
            "remove `module load cudnn`, and its folder from LD_LIBRARY_PATH: torch brings its own",
            NoCodeForGpu,
        )
    return None


def _wrong_gpu(device: Device) -> Unusable | None:
    """Return what fails of the least that a point does: memory, a kernel, a copy of its result."""
    try:
        one = torch.empty(1, device=device.torch_device)
    except RuntimeError as error:
        return _without_memory(device, error)
    try:
        one.fill_(1)
        torch.cuda.synchronize(device.torch_device)
    except RuntimeError as error:
        return _without_kernel(device, error)
    try:
        one.item()
    except RuntimeError as error:
        return Unusable(
            f"'{device.name}' gives no result back, which takes pinned memory: {first_line(error)}",
            "see `ulimit -l`, and the memory limit of the job or the container",
            GpuFails,
        )
    return None


def _without_memory(device: Device, error: RuntimeError) -> Unusable:
    # the rest is what torch itself holds, which is nothing
    said = first_line(error).partition(". Of the allocated")[0]
    alone = "ask for the GPU exclusively (gres)" if _in_job() else "wait for it, or end that"
    if _FULL in said:
        do = f"see with nvidia-smi or rocm-smi which process holds its memory; {alone}"
        return Unusable(f"'{device.name}' is full: {said}", do, Occupied)
    if _BUSY in said:
        what = f"'{device.name}' is busy: another process holds it in exclusive mode ({said})"
        return Unusable(what, f"see with nvidia-smi which one; {alone}", Occupied)
    return _failing(device, said)


def _without_kernel(device: Device, error: RuntimeError) -> Unusable:
    said = first_line(error)
    if not any(words in said for words in _NO_CODE):
        return _failing(device, said)
    built_for = " ".join(torch.cuda.get_arch_list())
    what = (
        f"torch {torch.__version__} has no code for '{device.name}' ({chip(device)}; it has code "
        f"for {built_for}): {said}"
    )
    do = "install another torch where this profile's points run (V100: one of CUDA 12.6)"
    return Unusable(what, do, NoCodeForGpu)


def _failing(device: Device, said: str) -> Unusable:
    node = "leave this node out (`exclude`)" if _in_job() else "restart its driver"
    do = f"see what nvidia-smi and the kernel's log say (Xid); {node}"
    return Unusable(f"'{device.name}' fails at the simplest work: {said}", do, GpuFails)


def _in_job() -> bool:
    return "SLURM_JOB_ID" in os.environ


def chip(device: Device) -> str:
    """Return a GPU's architecture in the words of compilers: ``sm_86``, or ``gfx90a`` for AMD."""
    properties = torch.cuda.get_device_properties(device.torch_device)
    if torch.version.hip:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"
