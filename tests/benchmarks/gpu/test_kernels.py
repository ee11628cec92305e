"""What is read from the profiler's events, recorded and real."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from benchmarks.gpu import kernels

CPU = torch.autograd.DeviceType.CPU
GPU = torch.autograd.DeviceType.CUDA


@dataclass
class Kernel:
    """A kernel of the profiler."""

    name: str
    duration: float


@dataclass
class Event:
    """An event of the profiler, with what is inside of it."""

    name: str
    cpu_children: list = field(default_factory=list)
    kernels: list = field(default_factory=list)
    device_type: object = CPU


def call(name, *found):
    """Return a marked call of one operator with kernels."""
    return Event(f"hpcsweep.proof|{name}", [Event("aten::cudnn_convolution", [], list(found))])


def test_kernels_and_the_median_of_their_sum_are_read():
    """Two kernels of a call count together; the copy on the GPU's own time line does not."""
    events = [
        call("fft", Kernel("void fft2d<1, 2>(float*)", first), Kernel("gemm", 2.0))
        for first in (3.0, 9.0, 4.0)
    ]
    found = kernels.read([*events, Event("hpcsweep.proof|fft", device_type=GPU), Event("x")])
    assert found == {"fft": {"kernels": ["void fft2d<1, 2>(float*)", "gemm"], "us": 6.0, "lost": 0}}


def test_a_repeat_that_lost_kernels_does_not_count():
    """Else a session that loses its first kernels makes an algorithm look fast."""
    whole = [call("auto", Kernel("a", 5.0), Kernel("b", 5.0)) for _ in range(2)]
    found = kernels.read([call("auto"), call("auto", Kernel("b", 5.0)), *whole])
    assert found["auto"] == {"kernels": ["a", "b"], "us": 10.0, "lost": 2}


def test_a_call_without_any_kernel_has_no_duration():
    """Zero would be a time."""
    assert kernels.read([call("gemm")])["gemm"] == {"kernels": [], "us": None, "lost": 0}


def test_what_shows_no_kernel_is_profiled_again(monkeypatch):
    """Only that, and not for ever."""
    asked = []

    def session(runs, _repeats):
        asked.append(list(runs))
        seen = {"auto": [Kernel("k", 1.0)], "gemm": [Kernel("g", 2.0)] * (len(asked) == 2)}
        return [call(name, *seen.get(name, [])) for name in runs]

    monkeypatch.setattr(kernels, "_session", session)
    found = kernels.profiled(dict.fromkeys(("auto", "gemm", "fft")))
    assert asked == [["auto", "gemm", "fft"], ["gemm", "fft"], ["fft"]]
    assert [found[name]["us"] for name in ("auto", "gemm", "fft")] == [1.0, 2.0, None]


def test_lost_kernels_are_counted_by_their_place():
    """The first ones are those that later sessions lose."""
    plain = [Event("aten::cudnn_convolution", [], [Kernel("k", 1.0)]) for _ in range(5)]
    plain[0].kernels, plain[1].kernels = [], []
    found = kernels.lost([Event("aten::conv2d"), *plain])
    assert found == {"calls": 5, "lost": 2, "which": [0, 1]}


@pytest.mark.gpu(real=True)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
def test_a_real_gpu_shows_kernels_and_durations():
    """Of a matrix product."""
    square = torch.randn(2048, 2048, device="cuda")
    found = kernels.profiled({"auto": lambda: square @ square})["auto"]
    assert found["kernels"]
    assert found["us"] > 10
