"""Torch's switches, and what its errors mean."""

from __future__ import annotations

import os

import pytest
import torch
from torch.torch_version import TorchVersion

from hpcsweep.conv.libraries.library_backend import tf32_allowed
from hpcsweep.measure.machine import framework
from measuring import point, training


@pytest.fixture(autouse=True)
def _switches():
    """Put back what the tests turn."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark
    framework.allow_tf32(allowed=False)


def test_threads_are_the_points_then_the_launchers_then_torchs(monkeypatch):
    """An axis value beats the launcher's share, which beats torch's own number."""
    framework.apply(point(num_threads=2).axes)
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("HPCSWEEP_THREADS", "1")
    framework.apply(point(num_threads=None).axes)
    assert torch.get_num_threads() == 1
    assert framework.shares_cpu()
    monkeypatch.delenv("HPCSWEEP_THREADS")
    framework.apply(point(num_threads=None).axes)
    assert torch.get_num_threads() == framework._USUAL_THREADS
    assert not framework.shares_cpu()


@pytest.mark.filterwarnings("ignore:Please use the new API")
def test_tf32_is_set_both_ways_every_time_and_all_of_torch_agrees():
    """No point inherits it; whoever asks by torch's older or newer switches gets the answer."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    for allowed in (True, False, True):
        framework.apply(point(tf32=allowed).axes)
        assert (cudnn.allow_tf32, matmul.allow_tf32) == (allowed, allowed)
        assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
        assert tf32_allowed() is allowed
        if hasattr(matmul, "fp32_precision"):
            assert (matmul.fp32_precision == "tf32") is allowed


@pytest.mark.parametrize(
    ("version", "cuda", "before", "after"),
    [("2.11.0", "13.0", None, "1"), ("2.15.0+cu132", "12.6", None, "1"),
     ("2.11.0", "12.4", None, None), ("2.11.0", None, None, None), ("2.11.0", "13.0", "0", "0"),
     ("2.10.0", "13.0", None, None), ("2.9.1", "12.8", None, None), ("2.9.1", "12.8", "1", "1")],
)  # fmt: skip
def test_the_profiler_leaves_the_process_where_that_is_safe(
    monkeypatch, version, cuda, before, after
):
    """Later points are timed without it, like the first; who sets the variable decides."""
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("TEARDOWN_CUPTI", before or "")
    if before is None:
        monkeypatch.delenv("TEARDOWN_CUPTI")
    framework.detach_profiler()
    assert os.environ.get("TEARDOWN_CUPTI") == after


def test_autotuning_is_on_for_autotune_alone():
    """The next point switches it off again; a map of layers decides per layer."""
    for algorithm, wanted in (("autotune", True), ("auto", False), ({"default": "gemm"}, False)):
        framework.apply(point(algorithm=algorithm).axes)
        assert torch.backends.cudnn.benchmark is wanted


def test_the_switches_of_cudnn_are_set_both_ways_every_time():
    """What one training point wants is not what the next one gets."""
    cudnn = torch.backends.cudnn
    framework.apply(training(cudnn_benchmark=True, cudnn_deterministic=True).axes)
    assert (cudnn.benchmark, cudnn.deterministic) == (True, True)
    framework.apply(training().axes)
    assert (cudnn.benchmark, cudnn.deterministic) == (False, False)


def test_running_out_of_memory_is_recognised():
    """A real allocation that cannot be had, and the texts that GPUs and libraries use."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    assert framework.is_out_of_memory(caught.value)
    assert framework.is_out_of_memory(MemoryError())
    assert framework.is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried"))
    assert framework.is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    told = "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    assert framework.is_out_of_memory(RuntimeError(f"cuDNN error: {told}"))
    assert not framework.is_out_of_memory(RuntimeError("shape mismatch"))


@pytest.mark.parametrize("refused", [0, 3])
def test_no_engine_is_no_memory_where_the_allocator_refused_some(monkeypatch, refused):
    """After it tried each plan of cuDNN, torch tells only that there is none."""
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert not framework.is_out_of_memory(error)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_ooms": refused})
    assert framework.is_out_of_memory(error) is bool(refused)


def test_a_missing_operator_is_recognised():
    """Torch says that an operator lacks a dtype; here a real one."""
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        torch.linalg.qr(torch.ones(2, 2, dtype=torch.float16))
    assert framework.is_missing_operator(caught.value)
    assert not framework.is_missing_operator(RuntimeError("shape mismatch"))
