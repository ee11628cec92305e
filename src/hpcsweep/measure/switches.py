"""Torch's switches that belong to the process: one list, and what a point wants of each.

A network of others may turn them in its module, in its factory or in `forward`. What it turned when
it was built is set back before anything runs, so that a point is measured with what its row says,
and the next point does not inherit it. What `forward` turned is told after the passes.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from hpcsweep import catalog, environment

_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
# torch refuses deterministic products of cuBLAS without such a value. Of the two that NVIDIA's
# manual names, `:16:8` may limit performance, and this one takes 24 MiB.
_CUBLAS_REPEATS: Final = ":4096:8"
_CUPTI: Final = "TEARDOWN_CUPTI"
# CUDA: before, graphs crash (pytorch pull request 150957). torch: before, a session that begins
# while CUPTI leaves ends the process. Kineto's pull request 1169 mends that. It was merged on
# 2025-12-17, a week after the branch of torch 2.10 was cut, and is in the Kineto that torch took
# for 2.11 (pytorch pull request 171810).
_CUPTI_CAN_LEAVE: Final = (12, 6)
_KINETO_CAN_LEAVE: Final = "2.11"
_USUAL_THREADS: Final = torch.get_num_threads()
# Backends and operators whose precision torch 2.9 lets people set, by torch's names.
_PRECISIONS: Final = (
    ("generic", "all"),
    ("cuda", "all"), ("cuda", "conv"), ("cuda", "rnn"), ("cuda", "matmul"),
    ("mkldnn", "all"), ("mkldnn", "conv"), ("mkldnn", "rnn"), ("mkldnn", "matmul"),
)  # fmt: skip


# how a switch is read, and how it is turned to a value that was read
Switch = tuple[Callable[[], Any], Callable[[Any], object]]


def _attributes(group: str, owner: object, *names: str) -> dict[str, Switch]:
    """Return the switches that are attributes, by names such as `cudnn.enabled`."""
    found = dict[str, Switch]()
    for name in names:
        if hasattr(owner, name):  # which this torch may lack
            get = partial(getattr, owner, name)
            found[f"{group}.{name}"] = get, partial(setattr, owner, name)
    return found


@dataclass(frozen=True)
class Precision:
    """TF32 of convolutions and of products, and what torch's newer switches say, if it has any.

    The older ones are None where they raise: the newer ones then say something else.
    """

    older: tuple[bool, bool] | None
    newer: tuple[str, ...] = ()

    def __str__(self) -> str:
        lower = []
        for pair, precision in zip(_PRECISIONS, self.newer, strict=False):
            if precision not in {"none", "ieee"}:
                lower.append(f"{'.'.join(pair)} {precision}")
        return ", ".join(lower) or "TF32 off"


def _precision() -> Precision:
    older = None
    with suppress(RuntimeError):
        older = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    if not hasattr(torch._C, "_get_fp32_precision_getter"):  # noqa: SLF001 - no public one takes names
        return Precision(older)
    newer = tuple(torch._C._get_fp32_precision_getter(*pair) for pair in _PRECISIONS)  # noqa: SLF001
    return Precision(older, newer)


def _set_precision(wanted: Precision) -> None:
    """Set them: the newer ones to nothing first, else the older ones would not be heard.

    If only the newer ones were set, torch's compiler would fail, since it reads the older ones.
    """
    if hasattr(torch._C, "_set_fp32_precision_setter"):  # noqa: SLF001
        for pair in _PRECISIONS:
            torch._C._set_fp32_precision_setter(*pair, "none")  # noqa: SLF001
    if wanted.older is not None:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = wanted.older
    for pair, precision in zip(_PRECISIONS, wanted.newer, strict=False):
        torch._C._set_fp32_precision_setter(*pair, precision)  # noqa: SLF001


def _set_workspace(wanted: str | None) -> None:
    if wanted is None:
        os.environ.pop(_CUBLAS, None)
    else:
        os.environ[_CUBLAS] = wanted


def _device() -> torch.device | None:
    """Return the device of new tensors; None: nobody set one, which costs each call some time."""
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None:  # noqa: SLF001
        return None
    return torch.get_default_device()


def _autocast(kind: str) -> Switch:
    def turn(wanted: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(kind, wanted[0])
        torch.set_autocast_dtype(kind, wanted[1])

    return (lambda: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))), turn


_SDP: Final = torch.backends.cuda
_MHA: Final = torch.backends.mha
_C: Final = torch._C  # noqa: SLF001 - these have no public name
_PRECISION: Final = "fp32_precision"
SWITCHES: Final[Mapping[str, Switch]] = {
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    _PRECISION: (_precision, _set_precision),
    **_attributes(
        "cudnn", torch.backends.cudnn, "enabled", "benchmark", "deterministic", "benchmark_limit"
    ),
    **_attributes("mkldnn", torch.backends.mkldnn, "enabled", "deterministic"),
    **_attributes(
        "matmul",
        torch.backends.cuda.matmul,
        "allow_fp16_accumulation",
        "allow_fp16_reduced_precision_reduction",
    ),
    **_attributes("products", torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    **_attributes("deterministic", torch.utils.deterministic, "fill_uninitialized_memory"),
    "nnpack": (_C._get_nnpack_enabled, _C._set_nnpack_enabled),  # noqa: SLF001
    "mha.fastpath": (_MHA.get_fastpath_enabled, _MHA.set_fastpath_enabled),
    "sdp.flash": (_SDP.flash_sdp_enabled, _SDP.enable_flash_sdp),
    "sdp.mem_efficient": (_SDP.mem_efficient_sdp_enabled, _SDP.enable_mem_efficient_sdp),
    "sdp.math": (_SDP.math_sdp_enabled, _SDP.enable_math_sdp),
    "sdp.cudnn": (_SDP.cudnn_sdp_enabled, _SDP.enable_cudnn_sdp),
    "deterministic_algorithms": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda wanted: torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1]),
    ),
    _CUBLAS: (lambda: os.environ.get(_CUBLAS), _set_workspace),
    # whether this thread takes numbers below the normal ones for zero
    "flush_denormal": (lambda: sys.float_info.min / 4 == 0, torch.set_flush_denormal),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (_device, torch.set_default_device),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast.cpu": _autocast("cpu"),
    "autocast.cuda": _autocast("cuda"),
    "autocast.cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    "anomaly": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda wanted: torch.set_anomaly_enabled(*wanted),
    ),
    "jit.fuser": (_C._jit_texpr_fuser_enabled, _C._jit_set_texpr_fuser_enabled),  # noqa: SLF001
    "jit.optimized": (
        _C._get_graph_executor_optimize,  # noqa: SLF001
        _C._set_graph_executor_optimize,  # noqa: SLF001
    ),
}


def read(names: Iterable[str] = SWITCHES) -> dict[str, Any]:
    """Return what switches say: all of them, or some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions warn about the older switches of TF32
        return {name: SWITCHES[name][0]() for name in names}


def _turn(wanted: Mapping[str, Any]) -> None:
    """Turn the switches that say something else."""
    now = read(wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in wanted.items():
            if now[name] != value:
                SWITCHES[name][1](value)


# what they said when this module was imported, before any network
_USUAL: Final = read()
# what they said after `apply`
_wanted: Final = dict(_USUAL)
# what factories turned, by their names
_turned: Final = dict[str, list[str]]()


def apply(axes: Mapping[str, Any]) -> None:
    """Set all switches for a point, whatever networks and the previous point left."""
    deterministic = axes.get("deterministic", False)
    tunes = axes["algorithm"] == catalog.AUTOTUNE or axes.get("cudnn_benchmark", False)
    wanted = {
        **_USUAL,
        "num_threads": axes["num_threads"] or default_threads(),
        _PRECISION: Precision((axes["tf32"], axes["tf32"])),
        "cudnn.benchmark": bool(tunes),
        "cudnn.deterministic": axes.get("cudnn_deterministic", False),
        "deterministic_algorithms": (deterministic, False),
        "grad_enabled": not torch.is_inference_mode_enabled(),
    }
    if deterministic:
        # a debugging aid, which costs time
        wanted["deterministic.fill_uninitialized_memory"] = False
        wanted[_CUBLAS] = _USUAL[_CUBLAS] or _CUBLAS_REPEATS
    _turn(wanted)
    _wanted.update(read())


def turned() -> list[str]:
    """Return the switches that do not say what `apply` set, with what they say."""
    return _differing(_wanted, read())


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in now.items() if value != before[name]]


@contextmanager
def kept(factory: str) -> Iterator[None]:
    """Set switches back that a factory, or its module, turns in the block, and remember them."""
    before = read()
    try:
        yield
    finally:
        _turned[factory] = _differing(before, read())
        _turn(before)


def turned_by(names: Iterable[object]) -> list[str]:
    """Return the switches that factories of these names turned, with what they said then."""
    found = list[str]()
    for name in names:
        found += _turned.get(str(name), ())
    return found


@contextmanager
def set_to(wanted: Mapping[str, Any]) -> Iterator[None]:
    """Turn switches in the block, and back."""
    before = read(wanted)
    _turn(wanted)
    try:
        yield
    finally:
        _turn(before)


def plainly() -> AbstractContextManager[None]:
    """Compute without TF32, and let the library choose without trying, in the block.

    In float64, trials take longer than they save.
    """
    wanted: dict[str, Any] = {"cudnn.benchmark": False}
    if read([_PRECISION])[_PRECISION].older != (False, False):  # to set them all takes long
        wanted[_PRECISION] = Precision((False, False))
    return set_to(wanted)


def default_threads() -> int:
    """Return the threads of a point without `num_threads`: the launcher's share, else torch's."""
    return int(os.environ.get(environment.THREADS) or _USUAL_THREADS)


def shares_cpu() -> bool:
    """Say whether the launcher runs several workers on this machine."""
    return bool(os.environ.get(environment.THREADS))


def detach_profiler() -> None:
    """Let CUPTI leave the process after each profiler session: it would slow down later points.

    torch leaves it there, so that only the first point of a process were timed without it.
    """
    version = tuple(map(int, (torch.version.cuda or "0").split(".")))
    if version >= _CUPTI_CAN_LEAVE and torch.__version__ >= _KINETO_CAN_LEAVE:
        os.environ.setdefault(_CUPTI, "1")
