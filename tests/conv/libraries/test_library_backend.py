"""What the vendors' back-ends share, on cuDNN's stand-in: support, plans, evidence, errors."""

from __future__ import annotations

import math
import pickle
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.autograd.profiler_util import Kernel
from torch.nn import functional as F  # noqa: N812 - its own habit
from torch.utils.flop_counter import FlopCounterMode

from hpcsweep.conv import backend as backends
from hpcsweep.conv import swap
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.choice import backward_choice, gradients_of
from hpcsweep.conv.libraries import NotSupported, cudnn_library
from hpcsweep.conv.libraries.cudnn import Cudnn
from hpcsweep.conv.libraries.cudnn_library import CudnnError
from hpcsweep.conv.proof import Source, cell, profiled_passes
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure.measure_point import on_device
from measuring import training
from standins import EXPLICIT

SHAPE = ConvShape(1, 4, 17, 16, 4, 3, 3)
# by the end of a function's name: its direction in the library's log, and its algorithms
NUMBERS = {
    "Forward": (0, cudnn_library.FORWARD),
    "BackwardData": (1, cudnn_library.BACKWARD_DATA),
    "BackwardFilter": (2, cudnn_library.BACKWARD_FILTER),
}


def test_support_is_asked_before_anything_runs_and_once(backend, fake):
    """FFT with stride 2 and Winograd with 1x1 are answers, not accidents; asking again is free."""
    strided = ConvShape(1, 4, 16, 16, 4, 3, 3, stride_h=2, stride_w=2)
    assert backend.unsupported("fft", strided) == "FFT wants stride 1"
    assert backend.unsupported("winograd", ConvShape(1, 4, 16, 16, 4, 1, 1)).startswith("Winograd")
    assert backend.unsupported("direct", strided) == "not implemented"
    assert "cudnnConvolutionForward" not in fake.calls
    before = len(fake.calls)
    assert backend.unsupported("fft", strided) == "FFT wants stride 1"
    assert len(fake.calls) == before


def test_an_execution_that_fails_when_tried_is_a_reason_and_later_a_typed_error(backend, fake):
    """One layer is not worth the point: the reason has function, status and the library's words."""
    x, weight = torch.randn(1, 4, 17, 16), torch.randn(4, 4, 3, 3)
    assert backend.unsupported("gemm", SHAPE) is None
    fake.fail("cudnnConvolutionForward", 5000)
    words = "cudnnConvolutionForward: CUDNN_STATUS_EXECUTION_FAILED"
    assert backend.unsupported("implicit_gemm", SHAPE) == f"failed when tried: {words}"
    with pytest.raises(CudnnError, match=words):
        backend.forward("gemm", x, weight, None, SHAPE)


@pytest.mark.parametrize(
    "function", ["", "cudnnConvolutionForward", "cudnnGetConvolutionForwardWorkspaceSize"]
)
def test_a_device_that_broke_is_an_error_and_no_answer(backend, fake, monkeypatch, function):
    """When a plan was made or tried: nothing that follows in this process would be right."""

    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(backend, "_wait", broken)
    if function:
        fake.fail(function, 5000)
    with pytest.raises(RuntimeError, match="CUDA error: an illegal"):
        backend.unsupported("gemm", SHAPE)


@pytest.mark.parametrize("status", [2002, 5000])
def test_any_status_at_planning_is_an_answer_for_that_layer(backend, fake, status):
    """With function, status and words; and the layers beside it are asked as if nothing was."""
    asking = "cudnnGetConvolutionForwardWorkspaceSize"
    fake.fail(asking, status)
    reason = backend.unsupported("gemm", SHAPE)
    assert reason.startswith(f"failed when planned: {asking}: CUDNN_")
    fake.forget()
    assert backend.unsupported("gemm", ConvShape(1, 4, 18, 16, 4, 3, 3)) is None


def test_a_gradient_that_cannot_be_planned_is_the_framework_s(backend, fake):
    """With the reason, in the proof as in the step."""
    fake.fail("cudnnGetConvolutionBackwardDataWorkspaceSize", 4000)
    of_input, of_filters = backend.gradients("fft", SHAPE)
    assert (of_input.algorithm, of_filters.algorithm) == (None, "fft")
    assert of_input.reason.startswith("gradient of the input: failed when planned: cudnnGet")
    assert "CUDNN_STATUS_INTERNAL_ERROR" in of_input.reason


def test_a_handle_that_cannot_be_made_is_no_answer_of_a_layer(fake):
    """Without a handle the library does no layer at all."""
    fake.fail("cudnnCreate", 4000)
    alone = Cudnn(lambda: fake.library, "cpu")
    with pytest.raises(LibraryUnusable, match=r"no handle.*CUDNN_STATUS_INTERNAL_ERROR"):
        alone.unsupported("gemm", SHAPE)


def test_what_needs_more_scratch_memory_than_allowed_is_never_tried(backend, fake, monkeypatch):
    """A try of tens of GB would take them, or fail; the limit comes first, in every direction."""
    monkeypatch.setattr(backend, "_try", lambda *_: pytest.fail("tried"))
    layer = nn.Conv2d(4, 4, 3)
    shape = ConvShape.of(layer, torch.empty(1, 4, 34, 34))
    model = nn.Sequential(layer)
    swap.swap(model)
    calls = [("0", shape)]
    backend.most_workspace = 1000
    (picked,) = swap.assign(model, calls, "fft", swap.FALLBACK, backend)
    assert picked.reason == "a workspace of 0.1 MiB; 0.000953674 MiB are allowed"
    for gradient in backend.gradients("fft", shape):
        assert gradient.algorithm is None
        assert gradient.reason.endswith(" MiB; 0.000953674 MiB are allowed")
    assert not [name for name in fake.calls if name.startswith("cudnnConvolution")]
    monkeypatch.undo()
    backend.most_workspace = math.inf
    (picked,) = swap.assign(model, calls, "fft", swap.FALLBACK, backend)
    assert (picked.used, picked.fallback) == ("fft", False)
    assert [gradient.algorithm for gradient in backend.gradients("fft", shape)] == ["fft", "fft"]


NET_CALLS = [
    ("0", ConvShape(2, 3, 12, 12, 4, 3, 3, bias=True)),
    ("1", ConvShape(2, 4, 10, 10, 4, 3, 3, bias=True)),
]


def _stepped(backend, algorithm):
    """Return a swapped network, its choices, and a step of it that warmed up."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    swap.swap(net)
    picked = swap.assign(net, NET_CALLS, algorithm, swap.FALLBACK, backend)
    x = torch.randn(2, 3, 12, 12)

    def step():
        net(x).sum().backward()

    step()
    return net, picked, step


def test_a_network_that_was_pickled_finds_the_back_end_of_its_device_again(backend):
    """With its choices; plans and handles belong to the process."""
    net, picked, _ = _stepped(backend, "fft")
    again = pickle.loads(pickle.dumps(net))
    assert again[0].assigned.backend.name == "reference"  # it serves a CPU
    assert again[0].assigned.decided == {picked[0].shape: picked[0]}


@pytest.mark.parametrize("algorithm", EXPLICIT)
def test_evidence_of_both_directions_is_what_the_library_was_called_with(backend, fake, algorithm):
    """Call by call: the cell names function and algorithm, and the library's own log agrees."""
    net, picked, step = _stepped(backend, algorithm)
    fake.forget()
    forward = profiled_passes.prove_forward(net, step, picked, backend).calls
    logged = fake.ran
    backward = profiled_passes.prove_backward(net, step, picked, backend)
    assert not any(call.problem for call in [*forward, *backward])
    if algorithm == "direct":  # declared by cuDNN, never done
        assert logged == []
        return
    assert [cell(call) for call in forward] == [f"api: cudnnConvolutionForward:{algorithm}"] * 2
    named = []
    for call in (*forward, *backward):
        for name in call.seen.library_calls:
            function, _, ran = name.removeprefix("cudnnConvolution").partition(":")
            way, numbers = NUMBERS[function]
            named.append((way, numbers[ran]))
    assert sorted(logged) == sorted(named)
    for wanted, call in enumerate(backward, start=1):  # the first layer's input needs no gradient
        by_framework = "aten::convolution_backward" in call.seen.operators
        assert by_framework == (len(call.seen.library_calls) < wanted)


def test_gradients_of_another_algorithm_than_claimed_are_a_mismatch(backend):
    """Also where the framework took them over in silence."""
    net, picked, step = _stepped(backend, "implicit_precomp_gemm")
    claims = [replace(choice, used="fft") for choice in picked]
    found = profiled_passes.prove_backward(net, step, claims, backend)
    assert [call.problem for call in found] == [
        "filter: no cudnnConvolutionBackwardFilter:fft",
        "data: no cudnnConvolutionBackwardData:fft",
    ]
    net, picked, step = _stepped(backend, "gemm")
    claims = [replace(choice, used="implicit_gemm") for choice in picked]
    found = profiled_passes.prove_backward(net, step, claims, backend)
    assert found[1].problem == "data: ran aten::convolution_backward"


@pytest.mark.parametrize(("kernel", "fits"), [("implicit_convolve", True), ("fft2d_r2c", False)])
def test_the_kernels_of_a_gradient_are_those_of_its_operator(backend, kernel, fits):
    """The profiler gives kernels to the innermost operator, which is the gradient's own."""
    net, picked, step = _stepped(backend, "implicit_gemm")
    with profiled_passes.backward_ranges(net), torch.profiler.profile() as seen:
        step()
    events = seen.events()
    for event in events:
        if event.name == "hpcsweep::convolution_filter_gradient":
            event.kernels = [Kernel(kernel, 0, 5)]
    found = profiled_passes.proof_of_backward(events, picked, backend)
    wanted = None if fits else f"filter: ran {kernel}, which is of fft or fft_tiling"
    assert [call.problem for call in found] == [wanted, wanted]
    assert all(call.seen.kernels and kernel in cell(call) for call in found)


SGEMM = "ran ampere_sgemm_128x64, which is of gemm or implicit_gemm or implicit_precomp_gemm"


@pytest.mark.parametrize(
    ("names", "problem", "source"),
    [
        (["fft2d_r2c_32x32"], None, Source.PROFILER),
        (["a_kernel_of_next_year"], "no *fft*", Source.PROFILER),
        (["ampere_sgemm_128x64"], SGEMM, Source.PROFILER),
        (["cudnnConvolutionForward:fft"], None, Source.API),  # our range on the GPU's time line
        (["cudnnConvolutionForward:fft", "ampere_sgemm_128x64"], SGEMM, Source.PROFILER),
        ([], None, Source.API),
    ],
)
def test_the_proof_of_an_fft_can_fail(backend, names, problem, source):
    """The library was called for FFT and ran something else: our own range proves nothing."""
    net, picked, step = _stepped(backend, "fft")
    with profiled_passes.forward_ranges(net), torch.profiler.profile() as seen:
        step()
    events = seen.events()
    for event in events:
        if event.name == "hpcsweep::convolution":
            event.kernels = [Kernel(name, 0, 5) for name in names]
    found = profiled_passes.proof_of_forward(events, picked, backend).calls
    assert [call.problem for call in found] == [problem] * 2
    assert [call.source for call in found] == [source] * 2


def test_what_the_backward_pass_runs_is_told_per_call(backend):
    """As asked, half of it, or none; with the library's scratch memory and the reasons."""

    def second(algorithm):
        _, picked, _ = _stepped(backend, algorithm)
        return backward_choice(picked[1], gradients_of(picked[1], backend))

    whole = second("fft")
    assert (whole.used, whole.backend, whole.fallback) == ("fft", "cudnn", False)
    assert whole.workspace_bytes > 0
    half = second("winograd")
    assert (half.used, half.backend) == ("winograd+auto", "cudnn+framework")
    assert (half.fallback, half.as_requested) == (True, False)
    assert half.reason == "cudnn has no winograd for the gradient of the filters"
    none = second("gemm")
    assert (none.used, none.backend) == ("auto", "framework")


def test_a_training_row_tells_what_its_gradients_ran(backend, monkeypatch):
    """Forward rows as asked, backward rows the framework's, covered by half the time or so."""
    monkeypatch.setattr(backends, "choose", lambda _device_type: backend)
    bench = on_device("training", "cpu")
    wanted = {"layers": True, "evidence": True}
    done = bench.measure(training(algorithm="gemm", measure=wanted))
    forward, backward = (
        [row for row in done.layers if row["direction"] == way and row.get("algorithm_used")]
        for way in ("forward", "backward")
    )
    assert {(r["backend"], r["algorithm_used"]) for r in forward} == {("cudnn", "gemm")}
    assert {(r["backend"], r["algorithm_used"]) for r in backward} == {("framework", "auto")}
    assert all("cudnn has no gemm" in r["fallback_reason"] for r in backward)
    assert all(r["algorithm_evidence"].startswith("api: cudnn") for r in forward)
    assert all("aten::convolution_backward" in r["algorithm_evidence"] for r in backward)
    row = done.row
    assert row["algorithm_evidence"] == "profiler"
    assert row["algorithm_coverage_pct"] == 100
    assert 0 < row["algorithm_coverage_time_pct"] < 100
    assert "fallback" in row["flags"].split(";")
    assert "algorithm_mismatch" not in row["flags"].split(";")


def test_a_wrong_device_or_type_is_a_typed_error(backend):
    """Not an address handed to a library."""
    x, weight = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
    shape = ConvShape(1, 2, 8, 8, 2, 3, 3)
    with pytest.raises(TypeError, match=r"float32 on cpu got torch.float64"):
        backend.forward("implicit_gemm", x, weight.double(), None, shape)
    with pytest.raises(NotSupported, match="no int32"):
        backend.forward("implicit_gemm", x.int(), weight.int(), None, shape)


def test_tensors_that_are_not_contiguous_are_made_so(backend):
    """As the framework does."""
    x = torch.randn(1, 8, 8, 2).permute(0, 3, 1, 2)[:, :, ::2]
    weight = torch.randn(2, 2, 3, 3)
    shape = ConvShape(1, 2, 4, 8, 2, 3, 3)
    out = backend.forward("implicit_gemm", x, weight, None, shape)
    torch.testing.assert_close(out, F.conv2d(x, weight), rtol=1e-4, atol=1e-5)


def test_a_prepared_call_calls_the_library_once_and_nothing_else_of_it(backend, fake):
    """Also where its bias, its input or its layout needs work of torch."""
    x, weight, bias = torch.randn(2, 4, 17, 16), torch.randn(4, 4, 3, 3), torch.randn(4)
    convolve = backend.prepared("implicit_gemm", replace(SHAPE, n=2))
    before = len(fake.calls)
    for image in (x, x.to(memory_format=torch.channels_last)):
        for added in (None, bias):
            out = convolve(image, weight, added)
            torch.testing.assert_close(out, F.conv2d(x, weight, added), rtol=1e-4, atol=1e-4)
    assert fake.calls[before:] == ["cudnnConvolutionForward"] * 4


class _Own(torch.Tensor):
    """A class of a user's own."""


@pytest.mark.parametrize(
    "looks",
    [
        "nobody",
        "autograd",
        "profiler",
        "mode",
        "subclass",
        "TF32",
        "determinism of cuDNN",
        "determinism of torch",
    ],
)
def test_a_prepared_call_is_an_operator_where_somebody_looks_or_a_switch_has_changed(
    backend, looks, monkeypatch
):
    """Whoever looks sees an operator alone; a switch of torch asks for another plan."""
    ran = []
    plainly = backend.forward
    monkeypatch.setattr(backend, "forward", lambda *a, **k: ran.append(looks) or plainly(*a, **k))
    cudnn = torch.backends.cudnn
    x, weight = torch.randn(1, 4, 17, 16), torch.randn(4, 4, 3, 3)
    wanted = F.conv2d(x, weight)
    convolve = backend.prepared("implicit_gemm", SHAPE)
    with ExitStack() as stack:
        if looks == "autograd":
            weight.requires_grad_()
        if looks == "subclass":
            x = x.as_subclass(_Own)
        if looks == "profiler":
            stack.enter_context(torch.profiler.profile())
        if looks == "mode":
            stack.enter_context(FlopCounterMode(display=False))
        if looks == "TF32":
            monkeypatch.setattr(cudnn, "allow_tf32", not cudnn.allow_tf32)
        if looks == "determinism of cuDNN":
            monkeypatch.setattr(cudnn, "deterministic", True)
        if looks == "determinism of torch":
            stack.callback(torch.use_deterministic_algorithms, mode=False)
            torch.use_deterministic_algorithms(mode=True)
        out = convolve(x, weight, None)
    torch.testing.assert_close(torch.Tensor(out.detach()), wanted, rtol=1e-4, atol=1e-4)
    assert ran == ([] if looks == "nobody" else [looks])
    assert (out.grad_fn is not None) is (looks == "autograd")


# torch's own tracing looks at such a gradient
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("algorithm", "nhwc"),
    [pytest.param("gemm", False, marks=pytest.mark.slow), ("winograd", True)],
)
def test_the_operator_passes_torchs_own_checks(backend, algorithm, nhwc):
    """Schema, autograd registration, fake tensors, and tracing with gradients."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    x = torch.randn(2, 2, 6, 6).to(memory_format=layout).requires_grad_()
    weight = torch.randn(4, 2, 3, 3).to(memory_format=layout).requires_grad_()
    arguments = (x, weight, [2, 4, 6, 6], "cudnn", algorithm, [1, 1], [1, 1], [1, 1], 1, nhwc)
    torch.library.opcheck(torch.ops.hpcsweep.convolution.default, arguments)


def test_the_gradient_formula_is_right_in_float64(backend):
    """Against finite differences."""
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)

    nhwc = False

    def run(a, b):
        return torch.ops.hpcsweep.convolution(
            a, b, [1, 3, 5, 5], "cudnn", "winograd_nonfused", [1, 1], [1, 1], [1, 1], 1, nhwc
        )

    assert torch.autograd.gradcheck(run, (x, weight))
