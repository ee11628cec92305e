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

from hpcsweep.errors import Refused, first_line
from hpcsweep.measure.machine import provenance
from hpcsweep.measure.machine.provenance import Device
from hpcsweep.measure.machine.telemetry import Telemetry

_NEIGHBOUR_SECONDS: Final = 10.0  # a killed worker may stay on the GPU for some seconds


def device_for(run: Mapping[str, Any]) -> Device:
    """Return the device of a submission.

    Raises:
        Refused: it is missing, another one, too small, or this torch has no code for it.
    """
    kind = str(run.get("gpu")) if run.get("gpu") in {"cpu", "mps"} else "cuda"
    if kind == "cuda":
        _need_cuda(str(run.get("gpu")))
    if kind == "mps" and not torch.backends.mps.is_available():
        raise Refused("this torch finds no Metal GPU; submit with a profile whose gpu is cpu")
    device = provenance.device(kind)
    check_name(device.name, str(run.get("gpu_name") or ""))
    check_slice(device.name, str(run.get("gpu_name") or ""))
    if kind == "cuda":
        _check_memory(device, run.get("min_memory_gb"))
        check_code(device)
    return device


def check_name(name: str, pattern: str) -> None:
    """Refuse a device whose name does not match the profile's regular expression."""
    if pattern and not re.search(pattern, name):
        raise Refused(
            f"wrong device: the profile promises gpu_name /{pattern}/, this node has '{name}'; "
            "correct the profile's constraint or gres, or its gpu_name"
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


def chip(device: Device) -> str:
    """Return a GPU's architecture in the words of compilers: ``sm_86``, or ``gfx90a`` for AMD."""
    properties = torch.cuda.get_device_properties(device.torch_device)
    if torch.version.hip:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


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
    if torch.version.cuda is None and torch.version.hip is None:
        why = "this torch was built without CUDA or ROCm; install another build in the job's setup"
    elif os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1", "NoDevFiles"}:
        why = "no GPU was given to this job (CUDA_VISIBLE_DEVICES is empty); ask for it with gres"
    else:
        why = "torch finds no GPU here; is the driver too old for this torch, or `gres` missing?"
    raise Refused(f"the profile promises gpu '{gpu}': {why}")


def _check_memory(device: Device, least_gb: float | None) -> None:
    total = torch.cuda.get_device_properties(device.torch_device).total_memory
    if least_gb and total < least_gb * 1e9:
        raise Refused(
            f"'{device.name}' has {total / 1e9:.1f} GB, the profile promises {least_gb:g} GB; "
            "is it a slice (MIG), or the smaller model of the same name?"
        )


def check_code(device: Device) -> None:
    """Check that this torch runs on a GPU: a build may have no code for it.

    Raises:
        Refused: the simplest kernel does not work.
    """
    try:
        torch.ones(1, device=device.torch_device).add_(1).item()
    except RuntimeError as error:
        built_for = " ".join(torch.cuda.get_arch_list())
        raise Refused(
            f"torch {torch.__version__} runs no kernel on '{device.name}' ({chip(device)}; it has "
            f"code for {built_for}): {first_line(error)}; where its chip is missing, give this "
            "profile an environment with an older or newer torch"
        ) from error


def report() -> dict[str, Any]:
    """Return torch's threads and libraries, the GPU if there is one, and why it cannot be used."""
    import torchvision  # noqa: F401, PLC0415 - fails if it does not fit torch's release

    facts = {
        "threads": torch.get_num_threads(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "gpu": "",
        "refused": "",
    }
    return facts | (_gpu_report() if torch.cuda.is_available() else {})


def _gpu_report() -> dict[str, str]:
    device = provenance.device("cuda")
    code = " ".join(torch.cuda.get_arch_list())
    cudnn = torch.backends.cudnn.version()
    refused = ""
    try:
        check_code(device)
    except Refused as error:
        refused = str(error)
    gpu = f"{device.name} ({chip(device)}), cuDNN {cudnn}, code for {code}"
    return {"gpu": gpu, "refused": refused}


if __name__ == "__main__":
    print(json.dumps(report()))  # noqa: T201 - `doctor` reads it
