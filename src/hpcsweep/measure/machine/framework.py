"""Says what torch can do on a device, and what its errors mean."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import torch

from hpcsweep import catalog, environment
from hpcsweep.measure.bench_api import CannotMeasure

_CUPTI: Final = "TEARDOWN_CUPTI"
# CUDA: before, graphs crash (pytorch pull request 150957). torch: before, a session that begins
# while CUPTI leaves ends the process. Kineto's pull request 1169 mends that. It was merged on
# 2025-12-17, a week after the branch of torch 2.10 was cut, and is in the Kineto that torch took
# for 2.11 (pytorch pull request 171810).
_CUPTI_CAN_LEAVE: Final = (12, 6)
_KINETO_CAN_LEAVE: Final = "2.11"
# Messages of allocators and libraries that have no exception type of their own.
_NO_MEMORY: Final = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "_STATUS_ALLOC_FAILED",
    "_ALLOCATION_FAILED",  # of cuDNN 9
)
# of torch, when it tried every plan; it swallows that memory ran out
_NO_ENGINE: Final = "unable to find an engine"
_NO_OPERATOR: Final = ("not implemented for '", "Could not run 'aten::", "Unsupported dtype")


def detach_profiler() -> None:
    """Let CUPTI leave the process after each profiler session: it would slow down later points.

    torch leaves it there, so that only the first point of a process were timed without it.
    """
    version = tuple(map(int, (torch.version.cuda or "0").split(".")))
    if version >= _CUPTI_CAN_LEAVE and torch.__version__ >= _KINETO_CAN_LEAVE:
        os.environ.setdefault(_CUPTI, "1")


def has_autotuner(device_type: str) -> bool:
    """Say whether torch tunes the algorithms of a library on this type of device."""
    return device_type == "cuda"


def refuse_early(axes: Mapping[str, Any], device_type: str) -> None:
    """Raise `CannotMeasure` if a point needs an autotuner, or plans, that the device lacks."""
    if has_autotuner(device_type):
        return
    algorithm = axes["algorithm"]
    if isinstance(algorithm, str) and (
        algorithm == catalog.HEURISTIC or catalog.is_plan(algorithm)
    ):
        raise CannotMeasure(
            f"algorithm: {algorithm} is a plan of cuDNN or MIOpen; on {device_type} there is none"
        )
    asks = {
        f"algorithm: {catalog.AUTOTUNE}": algorithm == catalog.AUTOTUNE,
        "cudnn_benchmark": axes.get("cudnn_benchmark", False),
    }
    for name in (name for name, wanted in asks.items() if wanted):
        raise CannotMeasure(f"{name} tunes cuDNN; on {device_type} there is none")


def shares_cpu() -> bool:
    """Say whether the launcher runs several workers on this machine."""
    return bool(os.environ.get(environment.THREADS))


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception means that memory ran out, on the device or on the host."""
    told = str(error)
    if _NO_ENGINE in told and torch.cuda.is_initialized():
        return torch.cuda.memory_stats().get("num_ooms", 0) > 0
    return isinstance(error, MemoryError) or any(text in told for text in _NO_MEMORY)


def is_missing_operator(error: BaseException) -> bool:
    """Say whether an exception means that an operator lacks this dtype or device."""
    return any(text in str(error) for text in _NO_OPERATOR)
