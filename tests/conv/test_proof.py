"""The record of evidence, its text in tables, and what contradicts a claim."""

from __future__ import annotations

import pytest

from hpcsweep.conv.backend import Direction, Expected, Operation, product
from hpcsweep.conv.proof import (
    Evidence,
    Observation,
    Proof,
    Source,
    cell,
    contradiction,
    other_work,
)
from hpcsweep.conv.proof.onednn import Primitive

WINDOWS, PRODUCT = Operation("aten::unfold"), Operation("aten::bmm", (1, 64, 576, 3136))
API_CALL = "cudnnConvolutionForward:gemm"
BY_API = Evidence("a", Observation(library_calls=[API_CALL], telling=[Operation(API_CALL)]))
WORK = [
    Operation("aten::bmm", (2, 8, 36, 400)),
    Operation("aten::mm", (2, 8, 36, 400)),
    Operation("aten::unfold"),
]
ONE_PRODUCT = product(2, 8, 36, 400)
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


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        ({ONE_PRODUCT, Operation("aten::unfold")}, None),
        ({product(2, 400, 36, 8), Operation("aten::unfold")}, None),
        ({ONE_PRODUCT}, "ran aten::unfold"),
        ({Operation("aten::unfold")}, "ran aten::bmm[2,8,36,400]"),
        (
            {ONE_PRODUCT, product(2, 8, 36, 400, adds=True), Operation("aten::unfold")},
            "did not run added product[2,8,36,400]",
        ),
    ],
)
def test_what_tells_algorithms_apart_is_compared_by_sizes(
    work: set[Operation], problem: str | None
) -> None:
    """Nothing of another algorithm, nothing missing; the order of operands is free."""
    assert other_work(WORK, [Expected(work=work)]) == problem
    assert other_work(WORK, [Expected()]) is None


def test_gradients_may_run_what_either_needs() -> None:
    """A call's two gradients are looked at together."""
    ways = [Expected(work={work}) for work in (ONE_PRODUCT, WORK[2])]
    assert other_work(WORK, ways) is None
    assert other_work(WORK, ways[:1]) == "ran aten::unfold"


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        (Expected(must=(("*mm",),)), None),
        (Expected(must=(("aten::unfold", "aten::b*"),)), None),
        (Expected(must=(("aten::unfold",),)), "no aten::unfold"),
        (Expected(must_not=("*bmm",)), "ran aten::bmm"),
        (Expected(must=(("*implicit_gemm*",),)), None),  # a kernel's name counts, too
        (Expected(must_not=("*gemm*",)), "ran ampere_implicit_gemm"),
        (Expected(kernels=(("*bmm",),)), "no *bmm"),  # only a kernel proves a kernel
    ],
)
def test_the_first_thing_that_does_not_fit_is_the_problem(
    expected: Expected, problem: str | None
) -> None:
    """Names that must be there, and names that must not."""
    seen = Observation(operators=["aten::add", "aten::bmm"], kernels=["ampere_implicit_gemm"])
    assert contradiction(seen, expected) == problem


def test_copies_and_fillings_are_no_kernels_that_prove_or_disprove() -> None:
    """A trace that has nothing else has lost the kernels."""
    filled = Observation(library_calls=["cudnnConvolutionForward:fft"], kernels=["Memset (Device)"])
    assert contradiction(filled, Expected(kernels=(("*fft*",),))) is None
    assert Evidence("a", filled).source is Source.API
