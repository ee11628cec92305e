"""What torch can do, and what its errors mean."""

from __future__ import annotations

import os

import pytest
import torch
from torch.torch_version import TorchVersion

from hpcsweep.measure.machine import framework


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
