"""Sets torch's switches for each point, and classifies its errors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_USUAL_THREADS: Final = torch.get_num_threads()
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


def apply(axes: Mapping[str, Any]) -> None:
    """Set threads, TF32 and autotuning for a point, whatever the previous point set."""
    torch.set_num_threads(axes["num_threads"] or default_threads())
    allow_tf32(allowed=axes["tf32"])
    torch.backends.cudnn.benchmark = _tunes(axes)
    torch.backends.cudnn.deterministic = axes.get("cudnn_deterministic", False)


def is_kept(axes: Mapping[str, Any]) -> bool:
    """Say whether switches are as `apply` set them; a network's code may change them."""
    cudnn = torch.backends.cudnn
    threads = axes["num_threads"] or default_threads()
    tf32: object = None
    with suppress(RuntimeError):  # the older switches raise if the newer ones were set
        tf32 = (cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    wanted = (threads, _tunes(axes), axes.get("cudnn_deterministic", False))
    now = (torch.get_num_threads(), cudnn.benchmark, cudnn.deterministic)
    return tf32 == (axes["tf32"],) * 2 and now == wanted


def _tunes(axes: Mapping[str, Any]) -> bool:
    return bool(axes["algorithm"] == catalog.AUTOTUNE or axes.get("cudnn_benchmark", False))


@contextmanager
def untuned() -> Iterator[None]:
    """Let the library choose without trying: in float64, trials take longer than they save."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def determinism(*, wanted: bool) -> Iterator[None]:
    """Use only deterministic operators in the block, if wanted."""
    before = os.environ.get(_CUBLAS)
    fill = torch.utils.deterministic.fill_uninitialized_memory
    if wanted:
        os.environ.setdefault(_CUBLAS, ":4096:8")  # else cuBLAS refuses
        torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid, costs time
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.utils.deterministic.fill_uninitialized_memory = fill
        if before is None:
            os.environ.pop(_CUBLAS, None)


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


def default_threads() -> int:
    """Return the threads of a point without `num_threads`: the launcher's share, else torch's."""
    return int(os.environ.get(environment.THREADS) or _USUAL_THREADS)


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


def allow_tf32(*, allowed: bool) -> None:
    """Set TF32 of convolutions and matrix products, in the old and the new switches of torch.

    torch 2.9 has newer switches. The older ones set both kinds. If only the newer ones were set,
    torch's compiler would fail, since it reads the older ones. Some versions warn about these.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.cudnn.allow_tf32 = allowed
        torch.backends.cuda.matmul.allow_tf32 = allowed
