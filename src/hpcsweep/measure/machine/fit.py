"""Checks, before any point, that this machine fits the profile and that torch can use it.

A sweep that runs for a day on the wrong GPU is worse than one that does not start. Each cause has
words and a remedy of its own; the words of drivers are those of cudaGetErrorString
(`driver_types.h`); HIP says the same, or names its error. As a program, this module prints torch's
libraries and GPU as one line of JSON, for `doctor --deep`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from hpcsweep.catalog import gpus
from hpcsweep.conv.libraries import cudnn_library
from hpcsweep.errors import GpuFails, NoCodeForGpu, Occupied, Refused, first_line
from hpcsweep.measure.machine import drivers, rig
from hpcsweep.measure.machine.drivers import Driver, NoDriver
from hpcsweep.measure.machine.rig import Device

# A killed worker may stay on the GPU for some seconds.
_NEIGHBOUR_SECONDS: Final = 10.0
_FULL: Final = "out of memory"
_BUSY: Final = "busy or unavailable"  # cudaErrorDevicesUnavailable
# cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction (HIP's word for the same)
_NO_CODE: Final = ("no kernel image", "invalid device function")
# As torch writes versions of cuDNN.
_VERSION: Final = re.compile(r"\((\d+), (\d+), (\d+)\)")


@dataclass(frozen=True)
class Unusable:
    """Why a GPU that is there cannot be measured, and what to do."""

    what: str
    remedy: str
    kind: type[Refused]


def device_for(run: Mapping[str, Any]) -> Device:
    """Return the device of a submission.

    Raises:
        Refused: it is missing, another one, too small, or this torch cannot use it.
    """
    gpu = str(run.get("gpu"))
    kind = gpu if gpu in {"cpu", "mps"} else "cuda"
    if kind == "cuda":
        _need_cuda(gpu)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise Refused("this torch finds no Metal GPU; submit with a profile whose gpu is cpu")
    device = rig.current_device(kind)
    pattern = str(run.get("gpu_name") or "")
    check_name(device.name, pattern)
    check_slice(device.name, pattern)
    if kind == "cuda":
        if not pattern:
            check_label(device.name, gpu)
        _check_memory(device, run.get("min_memory_gb"))
        check_usable(device)
    return device


def check_name(name: str, pattern: str) -> None:
    """Refuse a device whose name does not match the profile's regular expression."""
    if pattern and not re.search(pattern, name):
        raise Refused(
            f"wrong device: the profile promises gpu_name /{pattern}/, this node has '{name}'; "
            "correct the profile's constraint or gres, or its gpu_name"
        )


def check_label(name: str, gpu: str) -> None:
    """Refuse a device that rows would give the name of another one.

    A profile with a `gpu_name` says itself which devices its `gpu` stands for. A `gpu` that the
    catalogue lacks is a name of the user's own.
    """
    maker = "amd" if torch.version.hip else "nvidia"
    if gpu in gpus.GPUS and gpus.label(name, maker) != gpu:
        raise Refused(
            f"wrong device: rows would say gpu '{gpu}', the first GPU here is '{name}'; correct "
            "the profile's `gpu`, or choose another GPU with CUDA_VISIBLE_DEVICES"
        )


def check_slice(name: str, pattern: str) -> None:
    """Refuse a slice of a GPU (NVIDIA's MIG) unless the profile's `gpu_name` names slices.

    Slices are named like ``NVIDIA H200 MIG 1g.18gb``.
    """
    if rig.SLICE in name and rig.SLICE not in pattern:
        raise Refused(
            f"'{name}' is a slice of a GPU; ask for a whole one (gres, constraint), or say in the "
            f"profile that slices are meant: "
            f"gpu_name: '{rig.SLICE} {name.rpartition(' ')[2]}$'"
        )


def driver_of(device: Device) -> Driver:
    """Return what reads the state of a GPU that this process uses.

    Raises:
        NoDriver: nothing reports it.
    """
    index = rig.driver_index(device.torch_device.index)
    return drivers.find(device.uuid, index, frozenset({os.getpid()}), device.bus)


def check_neighbours(driver: Driver, sleep: Callable[[float], object] = time.sleep) -> None:
    """Refuse a GPU that another process still uses after ten seconds."""
    waited = 0.0
    while others := driver.others():
        if waited >= _NEIGHBOUR_SECONDS:
            pids = ", ".join(map(str, others))
            raise Refused(
                f"another process is on this GPU (pid {pids}): ask for the "
                "GPU exclusively (gres), or submit with --workers 1"
            )
        sleep(1.0)
        waited += 1.0


def _need_cuda(gpu: str) -> None:
    if torch.cuda.is_available():
        return
    in_job = _in_job()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None and torch.version.hip is None:
        why = "this torch was built without CUDA or ROCm; install another build in the job's setup"
    elif hidden in {"", "-1", "NoDevFiles"}:  # the last one is Slurm's
        do = "ask for a GPU with gres" if in_job else "unset it"
        why = f"CUDA_VISIBLE_DEVICES='{hidden}' hides every GPU; {do}"
    else:
        do = "is `gres` missing, or the driver" if in_job else "is the driver"
        why = f"torch finds no GPU here ({_why_no_cuda()}); {do} too old for this torch?"
    raise Refused(f"the profile promises gpu '{gpu}': {why}")


def _why_no_cuda() -> str:
    """Return torch's own words for it, such as on a driver that is too old."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return first_line(error)
    return "no reason is told"


def _check_memory(device: Device, least_gb: float | None) -> None:
    total = torch.cuda.get_device_properties(device.torch_device).total_memory
    if least_gb and total < least_gb * 1e9:
        raise Refused(
            f"'{device.name}' has {total / 1e9:.1f} GB, the profile promises {least_gb:g} GB; "
            "is it a slice (MIG), or the smaller model of the same name?"
        )


def check_usable(device: Device) -> None:
    """Refuse a GPU that torch cannot use, with the cause, and what to do."""
    wrong = problem(device)
    if wrong is not None:
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
        versions = [".".join(parts) for parts in _VERSION.findall(str(error))]
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
        number = torch.empty(1, device=device.torch_device)
    except RuntimeError as error:
        return _without_memory(device, error)
    try:
        number.fill_(1)
        torch.cuda.synchronize(device.torch_device)
    except RuntimeError as error:
        return _without_kernel(device, error)
    try:
        number.item()
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


def report() -> dict[str, Any]:
    """Return torch's threads and libraries, the GPU if there is one, and why it cannot be used."""
    import torchvision  # noqa: F401, PLC0415 - fails if it does not fit torch's release

    library = wrong_library()
    facts: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "cudnn": torch.backends.cudnn.version(),  # after the question above it raises no more
        "gpu": "",
        "refused": library.what if library else "",
        "do": library.remedy if library else "",
        "lacking": "",
    }
    if library or not torch.cuda.is_available():
        return facts
    device = rig.current_device("cuda")
    code = " ".join(torch.cuda.get_arch_list())
    facts["gpu"] = f"{device.name} ({chip(device)}), code for {code}"
    wrong = problem(device)
    if wrong:
        return facts | {"refused": wrong.what, "do": wrong.remedy}
    try:
        driver_of(device)
    except NoDriver as error:
        facts["lacking"] = str(error)
    return facts


if __name__ == "__main__":
    print(json.dumps(report()))  # noqa: T201 - `doctor` reads it
