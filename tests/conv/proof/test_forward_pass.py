"""Evidence: the profiler proves each algorithm, and a wrong one is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hpcsweep.conv import swap
from hpcsweep.conv.backend import Expected, choose
from hpcsweep.conv.proof import forward_pass, profiler_events
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import NONE
from hpcsweep.conv.reference.backend import FAMILIES
from hpcsweep.conv.shape import ConvShape

if TYPE_CHECKING:
    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.forward_pass import Proof

BACKEND: Backend = choose("cpu")
X = torch.randn(2, 4, 20, 20, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Three convolutions in four calls, and one more that no layer makes."""

    def __init__(self) -> None:
        """Draw the filters."""
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.b = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.c = nn.Conv2d(8, 8, 1)
        self.functional = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call `b` twice."""
        x = self.c(self.b(self.b(self.a(x))))
        if self.functional:
            x = nn.functional.conv2d(x, self.c.weight)
        return x


CALLS = [
    ("a", ConvShape(2, 4, 20, 20, 8, 3, 3, pad_h=1, pad_w=1)),
    ("b", ConvShape(2, 8, 20, 20, 8, 3, 3, pad_h=1, pad_w=1, groups=2, bias=True)),
    ("b", ConvShape(2, 8, 20, 20, 8, 3, 3, pad_h=1, pad_w=1, groups=2, bias=True)),
    ("c", ConvShape(2, 8, 20, 20, 8, 1, 1, bias=True)),
]


@pytest.fixture
def net() -> Net:
    """Return a swapped network."""
    net = Net().eval()
    swap.swap(net)
    return net


@torch.inference_mode()
def proven(net: Net, algorithm: str) -> tuple[list[LayerChoice], Proof]:
    """Assign, warm up, prove."""
    picked = swap.assign(net, CALLS, algorithm, "fallback", BACKEND)
    net(X)
    return picked, forward_pass.prove(net, lambda: net(X), picked, BACKEND)


TEXTS = {
    "gemm": "profiler: aten::unfold aten::bmm[2,8,36,400]",
    "implicit_gemm": "profiler: aten::bmm[2,8,4,400] aten::baddbmm_[2,8,4,400]",
    "implicit_precomp_gemm": "profiler: aten::index_select aten::bmm[1,8,36,800]",
    "fft": (
        "profiler: aten::unfold aten::_fft_r2c[24,24] aten::mm[1,64,9,32] aten::bmm[32,4,4,16] "
        "aten::_fft_c2r[24,13]"
    ),
    "winograd": ("profiler: aten::mm[1,16,9,32] aten::unfold aten::bmm[16,8,4,200]"),
    "winograd_nonfused": ("profiler: aten::mm[1,16,9,32] aten::unfold aten::bmm[16,8,4,200]"),
}


@pytest.mark.parametrize("algorithm", FAMILIES)
def test_every_algorithm_leaves_its_own_traces(net: Net, algorithm: str) -> None:
    """A real pass: no call contradicts, and no convolution operator runs inside one."""
    picked, proof = proven(net, algorithm)
    assert [e.layer for e in proof.calls] == ["a", "b", "b", "c"]
    assert [e.problem for e in proof.calls] == [None] * 4
    assert proof.outside == []
    for choice, proof_of_call in zip(picked, proof.calls, strict=True):
        assert ("conv" in proof_of_call.text) == (choice.used == "auto")
    if algorithm in TEXTS:
        assert proof.calls[0].text == TEXTS[algorithm]


@pytest.mark.parametrize("algorithm", FAMILIES)
def test_no_convolution_operator_runs_in_a_named_family(net: Net, algorithm: str) -> None:
    """Looked up in the raw events of a whole pass, without the code under test."""
    shape = CALLS[0][1]
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as seen:
        BACKEND.forward(algorithm, X, net.a.weight, None, shape)
    names = {event.name for event in seen.events()}
    assert any("mm" in name for name in names)
    assert not any("conv" in name for name in names)


@pytest.mark.parametrize("claimed", FAMILIES)
@pytest.mark.parametrize("ran", FAMILIES)
def test_a_false_claim_is_caught(net: Net, claimed: str, ran: str) -> None:
    """Whatever ran, the profile does not pass for another family's.

    The members of two pairs differ in the size of blocks and tiles alone, so on a small image they
    are one and the same.
    """
    picked, proof = proven(net, ran)
    claims = [replace(choice, used=claimed) for choice in picked[:1]]
    with torch.inference_mode():
        false = forward_pass.prove(net, lambda: net(X), claims, BACKEND)
    families = [name.removesuffix("_tiling").removesuffix("_nonfused") for name in (claimed, ran)]
    assert false.calls[0].mismatch == (families[0] != families[1])
    assert not proof.calls[0].mismatch


@pytest.mark.parametrize("claimed", FAMILIES)
@torch.inference_mode()
def test_the_framework_s_convolution_passes_for_no_named_family(net: Net, claimed: str) -> None:
    """The silent fallback, which is what all this is for."""
    picked = swap.assign(net, CALLS, "auto", "fallback", BACKEND)
    claims = [replace(picked[0], used=claimed)]
    proof = forward_pass.prove(net, lambda: net(X), claims, BACKEND)
    assert proof.calls[0].problem == "ran aten::conv2d"


def test_direct_is_proven_by_the_library_itself(net: Net) -> None:
    """The operator alone would not say what oneDNN did."""
    if BACKEND.unsupported("direct", CALLS[0][1]):
        pytest.skip("this torch build has no oneDNN")
    _, proof = proven(net, "direct")
    assert [e.problem for e in proof.calls] == [None] * 4
    for call in proof.calls:
        assert call.text.startswith("profiler: aten::mkldnn_convolution; onednn: ")
        assert call.text.endswith(" convolution_direct")


def test_direct_by_way_of_im2col_is_a_mismatch(net: Net) -> None:
    """What a CPU without vector units gets."""
    picked = swap.assign(net, CALLS[:1], "direct", "fallback", BACKEND)
    if picked[0].fallback:
        pytest.skip("this torch build has no oneDNN")
    with (
        torch.inference_mode(),
        forward_pass.ranges(net),
        profile(activities=[ProfilerActivity.CPU]) as seen,
    ):
        net(X)
    lines = [
        Primitive("jit:other_sizes", "convolution_direct", (9, 9, 9, 9, 9, 9, 9)),
        Primitive("gemm:jit", "convolution_direct", (2, 4, 8, 20, 20, 3, 3)),
    ]
    (call,) = forward_pass.read(seen.events(), picked, BACKEND, lines).calls
    assert call.problem == "oneDNN ran gemm:jit"
    assert call.text.endswith("; onednn: gemm:jit convolution_direct")


def test_the_framework_s_choice_is_told_as_it_is(net: Net) -> None:
    """`auto` claims nothing but that the framework convolved."""
    _, proof = proven(net, "auto")
    assert [e.problem for e in proof.calls] == [None] * 4
    assert all("conv" in e.text for e in proof.calls)


def test_a_convolution_that_no_layer_makes_is_reported(net: Net) -> None:
    """A functional call cannot be swapped; its share must not go unnoticed."""
    net.functional = True
    _, proof = proven(net, "gemm")
    assert "aten::convolution" in proof.outside
    assert [e.problem for e in proof.calls] == [None] * 4


@torch.inference_mode()
def test_a_call_that_the_profiler_did_not_see_has_no_evidence(net: Net) -> None:
    """Not seen is not wrong."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    proof = forward_pass.prove(net, lambda: net.a(X), picked, BACKEND)
    assert [e.text == NONE for e in proof.calls] == [False, True, True, True]
    assert not any(e.mismatch for e in proof.calls)


@torch.inference_mode()
def test_calls_are_told_apart_by_layer_and_order(net: Net) -> None:
    """Calls that the choices leave out do not shift the others."""
    picked = swap.assign(net, CALLS, {"c": "implicit_gemm", "default": "gemm"}, "fallback", BACKEND)
    proof = forward_pass.prove(net, lambda: net(X), [picked[1], picked[3]], BACKEND)
    assert [e.layer for e in proof.calls] == ["b", "c"]
    assert "aten::unfold" in proof.calls[0].text
    assert proof.calls[1].text == "profiler: aten::bmm[2,8,8,400]"


@torch.inference_mode()
def test_hooks_are_gone_after_the_pass_even_if_it_fails(net: Net) -> None:
    """A timed pass afterwards runs clean."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    with pytest.raises(RuntimeError):
        forward_pass.prove(net, lambda: net(X[:, :2]), picked, BACKEND)
    for module in net.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


class Kernel:
    """A device kernel, as the profiler attaches it to an operator."""

    def __init__(self, name: str) -> None:
        """Keep the name."""
        self.name = name


def test_kernel_names_of_a_device_count_as_well(net: Net) -> None:
    """Expectations may name kernels; the text shows them shortened."""

    class Named:
        """A back-end that wants to see one kernel and refuses another."""

        name = "named"

        def expected(self, algorithm: str, shape: ConvShape) -> Expected:
            """Return patterns over kernel names."""
            return Expected(must=(("*implicit_gemm*",),), must_not=("*winograd*",))

    picked = swap.assign(net, CALLS[:1], "gemm", "fallback", BACKEND)
    with (
        torch.inference_mode(),
        forward_pass.ranges(net),
        profile(activities=[ProfilerActivity.CPU]) as seen,
    ):
        net(X)
    events = seen.events()
    product = next(event for event in events if event.name == "aten::bmm")
    for kernels, problem in (
        ([], "no *implicit_gemm*"),
        (["ampere_implicit_gemm_fp32" + 180 * "x"], None),
        (["implicit_gemm", "winograd_fwd"], "ran winograd_fwd"),
    ):
        product.kernels = [Kernel(name) for name in kernels]
        (call,) = forward_pass.read(events, picked, Named()).calls  # type: ignore[arg-type]
        assert call.problem == problem
        assert all(name[:60] in call.text for name in kernels)
        assert "x" * 170 not in call.text


_XMMA = (
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize{}"
    "_stage3_warpsize1x2x1_g1_ffma_aligna4_alignc4_execute_kernel__5x_cudnn"
)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        (_XMMA.format("32x32x8"), _XMMA.format("32x32x8")),
        (
            "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int)",
            "fft2d_r2c_32x32<float,false,1u,false>",
        ),
        (
            "void cudnn::ops::nchwToNhwcKernel<float, (cudnnKernelDataType_t)2>(int, float (*)())",
            "cudnn::ops::nchwToNhwcKernel<float,(cudnnKernelDataType_t)2>",
        ),
        ("at::native::(anonymous namespace)::fill", "at::native::(anonymousnamespace)::fill"),
        ("(odd)", "(odd)"),
        ("", ""),
    ],
)
def test_a_kernel_is_one_word_that_tells_it_from_its_like(name: str, word: str) -> None:
    """Real names: what is left out is the return type, the arguments and the blanks."""
    assert profiler_events.kernel_word(name) == word


def test_long_kernel_names_that_differ_at_the_end_stay_different() -> None:
    """Where a name is cut, a mark of the whole of it is kept."""
    one, other = (profiler_events.kernel_word(200 * "k" + tile) for tile in ("128x64", "64x128"))
    assert one != other
    assert len(one) == len(other) == 160
