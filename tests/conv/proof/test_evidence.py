"""The record of evidence, and its text in tables."""

from __future__ import annotations

import pytest

from hpcsweep.conv.backend import Direction
from hpcsweep.conv.operators import Operation
from hpcsweep.conv.proof import evidence
from hpcsweep.conv.proof.evidence import Evidence, Proof, Seen, Source, cell
from hpcsweep.conv.proof.onednn import Primitive

WINDOWS, PRODUCT = Operation("aten::unfold"), Operation("aten::bmm", (1, 64, 576, 3136))
API_CALL = "cudnnConvolutionForward:gemm"
BY_API = Evidence("a", Seen(library_calls=[API_CALL], telling=[Operation(API_CALL)]))
BY_PROFILER = Evidence("b", Seen(telling=[WINDOWS, PRODUCT]))


def test_a_cell_shows_operators_with_sizes_then_kernels_each_once() -> None:
    """Products with four numbers, kernels by their short names."""
    seen = Seen(telling=[WINDOWS, PRODUCT], kernels=["void k<int>(int)", "void k<int>(int)", "z"])
    assert cell(Evidence("a", seen)) == ("profiler: aten::unfold aten::bmm[1,64,576,3136] k<int> z")


def test_a_cell_says_what_contradicts_and_what_onednn_reported() -> None:
    """The contradiction first; a gradient's report names the gradient."""
    reports = (
        Primitive("jit:avx2", "convolution_direct", ()),
        Primitive("gemm:jit", "convolution_direct", (), Direction.FILTER),
    )
    told = Evidence("a", Seen(telling=[WINDOWS]), reports, "filter: oneDNN ran gemm:jit")
    assert cell(told) == (
        "mismatch (filter: oneDNN ran gemm:jit); profiler: aten::unfold; onednn: jit:avx2 "
        "convolution_direct; onednn filter: gemm:jit convolution_direct"
    )


def test_a_cell_of_a_call_that_nobody_saw_is_none() -> None:
    """Seen without anything that tells is something else."""
    assert cell(Evidence("a")) == "none"
    assert cell(Evidence("a", Seen(operators=["aten::add"]))) == "profiler: none"


def test_a_cell_stays_a_cell() -> None:
    """Ten names at most, whatever ran."""
    many = Seen(telling=[Operation(f"aten::op{number}") for number in range(30)])
    assert len(cell(Evidence("a", many)).split()) == 1 + 10


def test_a_library_call_without_kernels_is_evidence_by_the_api() -> None:
    """With the kernels it is the profiler's."""
    assert BY_API.source is Source.API
    assert cell(BY_API) == f"api: {API_CALL}"
    with_kernels = Seen(library_calls=[API_CALL], kernels=["implicit_convolve_sgemm"])
    assert Evidence("a", with_kernels).source is Source.PROFILER
    assert BY_PROFILER.source is Source.PROFILER


def test_a_proof_has_the_best_source_of_its_calls() -> None:
    """The profiler, then the API, then none."""
    assert Proof((Evidence("c"), BY_API, BY_PROFILER)).source is Source.PROFILER
    assert Proof((Evidence("c"), BY_API)).source is Source.API
    assert Proof.unseen(["a", "b"]).source is Proof().source is Source.NONE
    assert [call.layer for call in Proof.unseen(["a", "b"]).calls] == ["a", "b"]


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
    assert evidence.kernel_word(name) == word


def test_long_kernel_names_that_differ_at_the_end_stay_different() -> None:
    """Where a name is cut, a checksum of the whole of it is kept."""
    one, other = (evidence.kernel_word(200 * "k" + tile) for tile in ("128x64", "64x128"))
    assert one != other
    assert len(one) == len(other) == 160
