"""The cuDNN back-end on an NVIDIA GPU: right, where it says, on the stream, without copies."""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its own habit

import pretendgpu
from hpcsweep.conv import backend as backends
from hpcsweep.conv import swap
from hpcsweep.conv.libraries import cudnn_library
from hpcsweep.conv.proof import profiled_passes, profiler_events
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure import switches
from measuring import point
from standins import EXPLICIT, with_gradients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports"),
]

# input channels, output channels, size, kernel, stride, padding, dilation, groups
SHAPES = [
    (3, 64, 64, 7, 2, 3, 1, 1),
    (64, 64, 56, 3, 1, 1, 1, 1),
    (64, 128, 28, 3, 2, 1, 1, 1),
    (256, 64, 14, 1, 1, 0, 1, 1),
    (32, 32, 28, 3, 1, 2, 2, 1),
    (32, 32, 28, 3, 1, 1, 1, 32),
    (48, 64, 28, 5, 1, 2, 1, 1),
]
# of the largest value, against float64
TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


@pytest.fixture(scope="module")
def backend():
    """Return the back-end of this machine's GPU."""
    return backends.choose("cuda")


@pytest.fixture(autouse=True)
def _full_precision():
    switches.apply(point(tf32=False).axes)
    yield
    switches.apply(point(tf32=False).axes)


def _layer(spec, dtype=torch.float32, layout=torch.contiguous_format, batch=2):
    in_c, out_c, size, kernel, stride, padding, dilation, groups = spec
    has_bias = not pretendgpu.is_pretended()  # torch's own kernels, which add it, do nothing there
    if pretendgpu.is_pretended():
        size //= 2  # the host computes
    layer = nn.Conv2d(in_c, out_c, kernel, stride, padding, dilation, groups, has_bias)
    x = torch.randn(batch, in_c, size, size)
    form = {"dtype": dtype, "memory_format": layout}  # on the host, which any GPU can copy
    return layer.to(**form).cuda(), x.to(**form).cuda()


def _error(ours, exact):
    return ((ours.cpu().double() - exact).abs().max() / exact.abs().max()).item()


def _exact(layer, x, padding=1):
    """Return a convolution in float64, computed on the host."""
    bias = None if layer.bias is None else layer.bias.cpu().double()
    return F.conv2d(x.cpu().double(), layer.weight.cpu().double(), bias, padding=padding)


@pytest.mark.gpu(real=True)  # a pretend one stands before the real library
def test_the_library_is_the_one_that_torch_loaded():
    """One version, one file in the process."""
    assert cudnn_library.load().version == torch.backends.cudnn.version()
    assert len(set(cudnn_library.loaded())) == 1


def _needs_torchs_own_kernels(spec, dtype, algorithm, nhwc):
    """Say whether the framework may convolve, and by kernels of its own: they do nothing there.

    They are those of depthwise layers and of bfloat16; and float64 is brought into another layout.
    """
    is_depthwise = spec[-1] == spec[0]
    is_always_ours = algorithm in {"implicit_gemm", "implicit_precomp_gemm"}
    own = is_depthwise or dtype == "bfloat16" or (dtype == "float64" and nhwc)
    return own and not is_always_ours


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("nhwc", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("algorithm", EXPLICIT)
def test_outputs_and_gradients_are_right_wherever_it_is_supported(backend, algorithm, nhwc, dtype):
    """Against float64 by the plain framework; what is refused has a reason."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    for spec in SHAPES:
        if pretendgpu.is_pretended() and _needs_torchs_own_kernels(spec, dtype, algorithm, nhwc):
            continue
        layer, x = _layer(spec, getattr(torch, dtype), layout)
        on_host = copy.deepcopy(layer).cpu().double()
        wanted = with_gradients(on_host, x.cpu().double())
        model = nn.Sequential(layer)
        swap.swap(model)
        calls = [("0", ConvShape.of(layer, x))]
        (picked,) = swap.assign(model, calls, algorithm, swap.FALLBACK, backend)
        assert picked.reason if picked.fallback else picked.backend == "cudnn"
        for ours, theirs in zip(with_gradients(model, x), wanted, strict=True):
            assert _error(ours, theirs) < 3 * TOLERANCE[dtype], (spec, picked)


@pytest.mark.gpu(real=True)
def test_float32_is_no_tf32_unless_asked(backend):
    """A thousandfold of error apart, on GPUs that have TF32."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no TF32 on this GPU")
    layer, x = _layer(SHAPES[1])
    shape = ConvShape.of(layer, x)
    exact = _exact(layer, x)
    errors = {}
    for allowed in (False, True):
        switches.apply(point(tf32=allowed).axes)
        with torch.no_grad():
            out = backend.forward("implicit_precomp_gemm", x, layer.weight, layer.bias, shape)
        errors[allowed] = _error(out, exact)
    assert errors[False] < 1e-5 < errors[True]


def test_work_goes_to_the_current_stream_without_waiting(backend, monkeypatch):
    """Behind a long delay the call returns at once, and the result is there after it."""
    monkeypatch.setenv("PRETEND_HOST_US", "1")  # a pretend one does not look how busy the host is
    layer, x = _layer(SHAPES[1])
    shape = ConvShape.of(layer, x)
    with torch.no_grad():
        wanted = backend.forward("implicit_gemm", x, layer.weight, None, shape)
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            out = backend.forward("implicit_gemm", x, layer.weight, None, shape)
        assert not side.query(), "the call waited for the delay"
        torch.cuda.synchronize()
    torch.testing.assert_close(out.cpu(), wanted.cpu())


@pytest.mark.parametrize("algorithm", EXPLICIT)
def test_a_graph_replays_what_was_captured(backend, algorithm):
    """New input in the same place, new output."""
    layer, x = _layer(SHAPES[1])
    shape = ConvShape.of(layer, x)
    if backend.unsupported(algorithm, shape):
        pytest.skip("not supported here")
    with torch.no_grad():
        for _ in range(3):
            backend.forward(algorithm, x, layer.weight, layer.bias, shape)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = backend.forward(algorithm, x, layer.weight, layer.bias, shape)
        x.copy_(torch.randn(x.shape))
        # what the graph holds, its scratch memory too, is nobody else's meanwhile
        others = [torch.full((1 << 22,), torch.nan).cuda() for _ in range(16)]
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        assert all(other.cpu().isnan().all() for other in others)
        exact = _exact(layer, x)
    assert _error(out, exact) < 1e-4


@pytest.mark.parametrize("nhwc", [False, True], ids=["nchw", "nhwc"])
def test_no_pass_copies_anything(backend, nhwc):
    """Neither between host and device, which made others' numbers memcpy, nor on the device."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    layer, x = _layer(SHAPES[1], layout=layout)
    x.requires_grad_()
    shape = ConvShape.of(layer, x)
    if reason := backend.unsupported("implicit_gemm", shape):
        pytest.skip(reason)
    given = torch.ones(shape.output_size).to(memory_format=layout).cuda()
    for _ in range(2):  # the first time the back-end tries its plans
        with profiler_events.session(x.device) as seen:
            out = backend.forward("implicit_gemm", x, layer.weight, None, shape)
            torch.autograd.grad(out, [x, layer.weight], given)
            torch.cuda.synchronize()
    names = [event.key for event in seen.key_averages()]
    unwanted = ("Memcpy*", "cudaMalloc*", "aten::copy_", "aten::contiguous", "aten::clone")
    assert not [n for n in names if any(fnmatchcase(n, pattern) for pattern in unwanted)]
    own = [event for event in seen.events() if event.name.startswith("hpcsweep::convolution")]
    inside = {inner.name for event in own for inner in event.cpu_children}
    assert inside.isdisjoint({"aten::zero_", "aten::fill_"})
    assert out.is_contiguous(memory_format=layout)
    name = "cudnnConvolutionForward:implicit_gemm"
    (call,) = (event for event in seen.events() if event.name == name)
    gradients = ("hpcsweep::convolution_data_gradient", "hpcsweep::convolution_filter_gradient")
    assert {"hpcsweep::convolution", *gradients} <= {*names}
    assert call.kernels, "the profiler gives the library's kernels to its call"


@pytest.mark.parametrize("algorithm", ["implicit_gemm", "fft", "winograd_nonfused", "gemm"])
def test_the_kernels_of_gradients_are_seen(backend, algorithm):
    """Autograd runs them in a thread of its own; the proof has them all the same."""
    net = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)).cuda()
    x = torch.randn(2, 16, 28, 28, device="cuda")
    swap.swap(net)
    inner = torch.empty(2, 32, 28, 28, device="cuda")
    calls = [("0", ConvShape.of(net[0], x)), ("1", ConvShape.of(net[1], inner))]
    picked = swap.assign(net, calls, algorithm, swap.FALLBACK, backend)
    for _ in range(2):  # a first session may lose kernels
        found = profiled_passes.prove_backward(
            net, lambda: net(x).sum().backward(), picked, backend
        )
    for call in found:
        assert call.problem is None
        assert call.seen.kernels


def test_autocast_gives_half_types(backend):
    """As with the framework's own layer."""
    layer, x = _layer(SHAPES[1])
    model = nn.Sequential(layer)
    swap.swap(model)
    with torch.autocast("cuda", dtype=torch.float16):
        calls = [("0", ConvShape.of(layer, x))]
        (picked,) = swap.assign(model, calls, "implicit_precomp_gemm", swap.FALLBACK, backend)
        out = model(x)
    assert (picked.shape.dtype, out.dtype) == ("float16", torch.float16)
