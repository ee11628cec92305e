"""Checks, before any point, that this machine fits the profile and that torch can use it.

A sweep that runs for a day on the wrong GPU is worse than one that does not start. As a program,
this module prints torch's libraries and GPU as one line of JSON, for `doctor --deep`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from hpcsweep.catalog import gpus
from hpcsweep.errors import Refused, first_line
from hpcsweep.measure.machine import gpu_telemetry, provenance, usable
from hpcsweep.measure.machine.gpu_telemetry import Telemetry
from hpcsweep.measure.machine.provenance import Device

_NEIGHBOUR_SECONDS: Final = 10.0  # a killed worker may stay on the GPU for some seconds


def device_for(run: Mapping[str, Any]) -> Device:
    """Return the device of a submission.

    Raises:
        Refused: it is missing, another one, too small, or this torch cannot use it.
    """
    kind = str(run.get("gpu")) if run.get("gpu") in {"cpu", "mps"} else "cuda"
    if kind == "cuda":
        _need_cuda(str(run.get("gpu")))
    if kind == "mps" and not torch.backends.mps.is_available():
        raise Refused("this torch finds no Metal GPU; submit with a profile whose gpu is cpu")
    device = provenance.device(kind)
    pattern = str(run.get("gpu_name") or "")
    check_name(device.name, pattern)
    check_slice(device.name, pattern)
    if kind == "cuda":
        if not pattern:
            check_label(device.name, str(run.get("gpu")))
        _check_memory(device, run.get("min_memory_gb"))
        usable.check(device)
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
    if provenance.SLICE in name and provenance.SLICE not in pattern:
        raise Refused(
            f"'{name}' is a slice of a GPU; ask for a whole one (gres, constraint), or say in the "
            f"profile that slices are meant: "
            f"gpu_name: '{provenance.SLICE} {name.rpartition(' ')[2]}$'"
        )


def telemetry_of(device: Device) -> Telemetry:
    """Return the telemetry of a GPU that this process uses."""
    index = provenance.driver_index(device.torch_device.index)
    return gpu_telemetry.watch(device.uuid, index, frozenset({os.getpid()}), device.bus)


def check_neighbours(telemetry: Telemetry, sleep: Callable[[float], object] = time.sleep) -> None:
    """Refuse a GPU that another process still uses after ten seconds."""
    waited = 0.0
    while others := telemetry.others():
        if waited >= _NEIGHBOUR_SECONDS:
            raise Refused(
                f"another process is on this GPU (pid {', '.join(map(str, others))}): ask for the "
                "GPU exclusively (gres), or submit with --workers 1"
            )
        sleep(1.0)
        waited += 1.0


def _need_cuda(gpu: str) -> None:
    if torch.cuda.is_available():
        return
    in_job = "SLURM_JOB_ID" in os.environ
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


def report() -> dict[str, Any]:
    """Return torch's threads and libraries, the GPU if there is one, and why it cannot be used."""
    import torchvision  # noqa: F401, PLC0415 - fails if it does not fit torch's release

    library = usable.wrong_library()
    facts = {
        "threads": torch.get_num_threads(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "cudnn": torch.backends.cudnn.version(),  # after the question above it raises no more
        "gpu": "",
        "refused": library.what if library else "",
        "do": library.remedy if library else "",
        "lacking": "",
    }
    return facts | (_gpu_report() if torch.cuda.is_available() and not library else {})


def _gpu_report() -> dict[str, str]:
    device = provenance.device("cuda")
    code = " ".join(torch.cuda.get_arch_list())
    wrong = usable.problem(device)
    facts = {"gpu": f"{device.name} ({usable.chip(device)}), code for {code}"}
    if wrong:
        return facts | {"refused": wrong.what, "do": wrong.remedy}
    return facts | {"lacking": telemetry_of(device).lacking}


if __name__ == "__main__":
    print(json.dumps(report()))  # noqa: T201 - `doctor` reads it
