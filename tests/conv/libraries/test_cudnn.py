"""cuDNN as a driver: descriptors that the real library understands, math, counterparts."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpcsweep.conv import backend as backends
from hpcsweep.conv.backend import Direction, LibraryUnusable
from hpcsweep.conv.libraries import Problem, cudnn, cudnn_library
from hpcsweep.conv.libraries.cudnn import Cudnn, describe
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure import switches
from measuring import point
from standins import EXPLICIT

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@given(
    n=st.integers(1, 4),
    channels=st.integers(1, 8),
    out=st.integers(1, 8),
    size=st.tuples(st.integers(7, 40), st.integers(7, 40)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 3),
    dtype=st.sampled_from(list(cudnn_library.DATA_TYPES)),
    layout=st.sampled_from(["nchw", "nhwc"]),
)
def test_cudnn_computes_the_same_output_sizes(  # noqa: PLR0917 - a convolution's
    real, n, channels, out, size, kernel, stride, pad, dilation, groups, dtype, layout
):
    """Real descriptors of any geometry, type and layout; no GPU is needed for that."""
    shape = ConvShape(
        *(n, channels * groups, *size, out * groups, *kernel),
        *(*stride, *pad, *dilation, groups),
        dtype=dtype,
        layout=layout,
    )
    problem = Problem(Direction.FORWARD, "gemm", shape, layout, tf32=False)
    x, filters, convolution, _ = describe(real, problem)
    found = [ctypes.c_int() for _ in range(4)]
    asking = ctypes.CDLL(real.path).cudnnGetConvolution2dForwardOutputDim
    assert asking(convolution, x, filters, *map(ctypes.byref, found)) == 0
    assert tuple(number.value for number in found) == shape.output_size


@NO_GPU
def test_without_a_gpu_cudnn_says_so(real):
    """Making a handle is what needs one."""
    shape = ConvShape(1, 3, 8, 8, 4, 3, 3)
    with pytest.raises(LibraryUnusable, match=r"no NVIDIA GPU here.*NOT_INITIALIZED"):
        Cudnn(lambda: real).plan(Problem(Direction.FORWARD, "gemm", shape, "nchw", tf32=False), 0)


@pytest.mark.parametrize(
    ("dtype", "tf32", "math"),
    [
        ("float32", False, "FMA_MATH"),
        ("float32", True, "DEFAULT_MATH"),
        ("float16", False, "TENSOR_OP_MATH"),
        ("bfloat16", True, "TENSOR_OP_MATH"),
        ("float64", False, "DEFAULT_MATH"),
    ],
)
def test_the_math_type_is_explicit(dtype, tf32, math):
    """Float32 never becomes TF32 unless it was asked for, and never float16."""
    assert cudnn.math_type(dtype, tf32=tf32) == getattr(cudnn_library, math)


def test_tf32_follows_the_switch_of_torch_and_has_plans_of_its_own(backend, fake):
    """The switch is looked at for each call; no plan of the other kind is taken."""
    layer, x = nn.Conv2d(2, 2, 3), torch.randn(1, 2, 8, 8)
    shape = ConvShape.of(layer, x)
    seen = []
    for allowed in (True, False, True):
        switches.apply(point(tf32=allowed).axes)
        backend.forward("implicit_gemm", x, layer.weight, layer.bias, shape)
        seen.append(fake.math())
    assert seen == [cudnn_library.DEFAULT_MATH, cudnn_library.FMA_MATH, cudnn_library.DEFAULT_MATH]


def test_gradients_run_the_counterpart_or_say_that_they_do_not(backend):
    """The explicit GEMM has none; Winograd has none for filters."""
    shape = ConvShape(1, 4, 16, 16, 4, 3, 3)

    def run(algorithm, of=shape):
        return {
            gradient.way.value: gradient.algorithm for gradient in backend.gradients(algorithm, of)
        }

    assert run("gemm") == {"data": None, "filter": None}
    assert run("winograd") == {"data": "winograd", "filter": None}
    assert run("implicit_precomp_gemm") == {"data": "algo_1", "filter": "algo_1"}
    assert run("fft", ConvShape(1, 4, 16, 16, 4, 3, 3, 2, 2))["data"] is None
    _, of_filters = backend.gradients("gemm", shape)
    assert of_filters.reason == "cudnn has no gemm for the gradient of the filters"


def test_no_gradient_runs_what_cudnn_s_header_calls_non_deterministic(documented_header):
    """A step with explicit algorithms repeats bit by bit, so nothing has to be refused for it."""
    pattern = r"CUDNN_CONVOLUTION_BWD_(DATA|FILTER)_ALGO_\w+\s*= (\d+),\s*/\*\*<(.*?)\*/"
    said = re.findall(pattern, documented_header)
    wild = {(way, int(number)) for way, number, text in said if "Non-deterministic" in text}
    if not wild:
        pytest.skip("the headers of this cuDNN do not say")
    driver, numbers = Cudnn(cudnn_library.load), {
        Direction.DATA: cudnn_library.BACKWARD_DATA,
        Direction.FILTER: cudnn_library.BACKWARD_FILTER,
    }  # fmt: skip
    for way, table in numbers.items():
        names = {driver.backward_name(way, algorithm) for algorithm in EXPLICIT} - {None}
        assert not {(way.name, table[name]) for name in names} & wild


def test_cuda_gets_this_back_end(monkeypatch):
    """And a ROCm build, which calls its devices cuda too, does not."""
    monkeypatch.setattr(torch.version, "hip", None)
    assert backends.choose("cuda").name == "cudnn"
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert backends.choose("cuda").name != "cudnn"


def test_every_number_of_cudnns_numbering_has_an_algorithm():
    """The taxonomy is cuDNN's; one's own algorithm needs no number."""
    numbers = sorted(cudnn_library.FORWARD.values())
    assert numbers == list(range(len(numbers)))
