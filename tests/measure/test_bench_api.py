"""What becomes of a point besides a row."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.measure.bench_api import (
    Measurement,
    OutOfMemory,
    is_missing_operator,
    is_out_of_memory,
)


@pytest.mark.parametrize(
    ("peak", "limit", "detail", "text"),
    [
        (3 << 29, 1 << 32, "", "out of memory (peak 1.50 GiB, limit 4.00 GiB)"),
        (None, 1 << 30, "at once", "out of memory (peak unknown, limit 1.00 GiB): at once"),
    ],
)
def test_running_out_of_memory_says_how_much_there_was(peak, limit, detail, text):
    """What is unknown is called so."""
    error = OutOfMemory(peak, limit, detail)
    assert str(error) == text
    assert (error.peak, error.limit) == (peak, limit)


def test_the_worker_gets_a_row_alone_where_there_is_nothing_else():
    """No layers, no raw times, no proof."""
    done = Measurement({"n": 1})
    assert (done.layers, done.samples, done.proof) == ([], [], None)


def test_running_out_of_memory_is_recognised():
    """A real allocation that cannot be had, and the texts that GPUs and libraries use."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried"))
    assert is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    told = "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    assert is_out_of_memory(RuntimeError(f"cuDNN error: {told}"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))


@pytest.mark.parametrize("refused", [0, 3])
def test_no_engine_is_no_memory_where_the_allocator_refused_some(monkeypatch, refused):
    """After it tried each plan of cuDNN, torch tells only that there is none."""
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert not is_out_of_memory(error)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_ooms": refused})
    assert is_out_of_memory(error) is bool(refused)


def test_a_missing_operator_is_recognised():
    """Torch says that an operator lacks a dtype; here a real one."""
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        torch.linalg.qr(torch.ones(2, 2, dtype=torch.float16))
    assert is_missing_operator(caught.value)
    assert not is_missing_operator(RuntimeError("shape mismatch"))
