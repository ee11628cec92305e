"""The record of evidence, and its text in tables."""

from __future__ import annotations

from hpcsweep.conv.backend import Direction, Operation
from hpcsweep.conv.proof.evidence import Evidence, Observation, Proof, Source, cell
from hpcsweep.conv.proof.onednn import Primitive

WINDOWS, PRODUCT = Operation("aten::unfold"), Operation("aten::bmm", (1, 64, 576, 3136))
API_CALL = "cudnnConvolutionForward:gemm"
BY_API = Evidence("a", Observation(library_calls=[API_CALL], telling=[Operation(API_CALL)]))
BY_PROFILER = Evidence("b", Observation(telling=[WINDOWS, PRODUCT]))


def test_a_cell_shows_operators_with_sizes_then_kernels_each_once() -> None:
    """Products with four numbers, kernels by their short names."""
    seen = Observation(
        telling=[WINDOWS, PRODUCT], kernels=["void k<int>(int)", "void k<int>(int)", "z"]
    )
    assert cell(Evidence("a", seen)) == ("profiler: aten::unfold aten::bmm[1,64,576,3136] k<int> z")


def test_a_cell_says_what_contradicts_and_what_onednn_reported() -> None:
    """The contradiction first; a gradient's report names the gradient."""
    reports = (
        Primitive("jit:avx2", "convolution_direct", ()),
        Primitive("gemm:jit", "convolution_direct", (), Direction.FILTER),
    )
    told = Evidence("a", Observation(telling=[WINDOWS]), reports, "filter: oneDNN ran gemm:jit")
    assert cell(told) == (
        "mismatch (filter: oneDNN ran gemm:jit); profiler: aten::unfold; onednn: jit:avx2 "
        "convolution_direct; onednn filter: gemm:jit convolution_direct"
    )


def test_a_cell_of_a_call_that_nobody_saw_is_none() -> None:
    """Seen without anything that tells is something else."""
    assert cell(Evidence("a")) == "none"
    assert cell(Evidence("a", Observation(operators=["aten::add"]))) == "profiler: none"


def test_a_cell_stays_a_cell() -> None:
    """Ten names at most, whatever ran."""
    many = Observation(telling=[Operation(f"aten::op{number}") for number in range(30)])
    assert len(cell(Evidence("a", many)).split()) == 1 + 10


def test_a_library_call_without_kernels_is_evidence_by_the_api() -> None:
    """With the kernels it is the profiler's."""
    assert BY_API.source is Source.API
    assert cell(BY_API) == f"api: {API_CALL}"
    with_kernels = Observation(library_calls=[API_CALL], kernels=["implicit_convolve_sgemm"])
    assert Evidence("a", with_kernels).source is Source.PROFILER
    assert BY_PROFILER.source is Source.PROFILER


def test_a_proof_has_the_best_source_of_its_calls() -> None:
    """The profiler, then the API, then none."""
    assert Proof((Evidence("c"), BY_API, BY_PROFILER)).source is Source.PROFILER
    assert Proof((Evidence("c"), BY_API)).source is Source.API
    assert Proof.unseen(["a", "b"]).source is Proof().source is Source.NONE
    assert [call.layer for call in Proof.unseen(["a", "b"]).calls] == ["a", "b"]
