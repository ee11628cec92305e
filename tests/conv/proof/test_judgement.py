"""A claim is compared with what ran: the true one holds, every other is found out."""

from __future__ import annotations

import pytest

from hpcsweep.conv.backend import Expected, Way
from hpcsweep.conv.proof.evidence import Evidence, Seen, Source
from hpcsweep.conv.proof.judgement import contradiction, judge
from hpcsweep.conv.reference.backend import FAMILIES
from profiled import forward_proof, step_proof

OPERATORS = [name for name in FAMILIES if name != "direct"]  # those made of torch's operators
PRODUCTS = [(1, 8, 36, 400), (1, 8, 36, 400)]


def _kin(one: str, other: str) -> bool:
    """Two pairs of families differ in the size of blocks and tiles alone."""
    short = [name.removesuffix("_tiling").removesuffix("_nonfused") for name in (one, other)]
    return short[0] == short[1]


@pytest.mark.parametrize("claimed", OPERATORS)
@pytest.mark.parametrize("ran", [*OPERATORS, "direct", "auto"])
def test_a_false_claim_about_a_forward_pass_is_caught(ran: str, claimed: str) -> None:
    """Whatever ran, it does not pass for another family's; the framework's own is no exception."""
    first = forward_proof(ran, claimed).calls[0]
    assert (first.problem is None) == _kin(ran, claimed)
    if ran == "auto":  # the silent fallback, which is what all this is for
        assert first.problem == "ran aten::conv2d"


@pytest.mark.parametrize("claimed", OPERATORS)
@pytest.mark.parametrize("ran", [*OPERATORS, "direct", "auto"])
def test_a_false_claim_about_gradients_is_caught(ran: str, claimed: str) -> None:
    """In the first layer, too, which has a gradient of its filters alone, if all of it is wrong."""
    first, second, *_ = step_proof(ran, claimed)
    assert (second.problem is None) == _kin(ran, claimed), second
    if ran == "auto":
        assert first.problem == "filter: ran aten::convolution_backward"
        assert second.problem == "data: ran aten::convolution_backward"


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        (Expected(must=(("*mm",),)), None),
        (Expected(must=(("aten::unfold", "aten::b*"),)), None),
        (Expected(must=(("aten::unfold",),)), "no aten::unfold"),
        (Expected(must_not=("*bmm",)), "ran aten::bmm"),
        (Expected(inner=36), None),
        (Expected(inner=36, products=2), None),
        (Expected(inner=36, products=1), "2 products over 36 instead of 1"),
        (Expected(inner=4), "no product over 4 in batches of 1"),
        (Expected(inner=36, batch=16), "no product over 36 in batches of 16"),
        (Expected(outer=400), None),
        (Expected(outer=7), "no product over (..., 7) in batches of 1"),
        (Expected(kernels=(("*fft*",),)), None),  # no kernel was recorded at all
    ],
)
def test_the_first_thing_that_does_not_fit_is_the_problem(
    expected: Expected, problem: str | None
) -> None:
    """Names that must be there, names that must not, and the size of the product."""
    seen = Seen(operators=["aten::add", "aten::bmm"], products=PRODUCTS)
    assert contradiction(seen, expected) == problem


@pytest.mark.parametrize(
    ("kernels", "problem"),
    [
        ([], "no *implicit_gemm*"),
        (["ampere_implicit_gemm_fp32"], None),
        (["implicit_gemm", "winograd_fwd"], "ran winograd_fwd"),
    ],
)
def test_kernel_names_of_a_device_count_as_well(kernels: list[str], problem: str | None) -> None:
    """Expectations may name kernels."""
    expected = Expected(must=(("*implicit_gemm*",),), must_not=("*winograd*",))
    assert contradiction(Seen(operators=["aten::bmm"], kernels=kernels), expected) == problem


def test_a_kernel_that_has_to_be_there_is_missed_only_where_kernels_were_recorded() -> None:
    """A profiler that loses all kernels has not seen that one is missing."""
    expected = Expected(kernels=(("*fft*",),))
    assert contradiction(Seen(kernels=["sgemm"]), expected) == "no *fft*"
    assert contradiction(Seen(), expected) is None


@pytest.mark.parametrize("name", ["cudnnConvolutionForward:fft", "aten::_fft_r2c"])
def test_only_a_kernel_proves_a_kernel(name: str) -> None:
    """Our own range around the library's call, or an operator, has the name by our own doing."""
    expected = Expected(kernels=(("*fft*",),))
    seen = Seen(operators=[name], library_calls=[name], kernels=["sgemm"])
    assert contradiction(seen, expected) == "no *fft*"
    assert contradiction(Seen(operators=[name], kernels=["fft2d_r2c_32x32"]), expected) is None


def test_copies_and_fillings_are_no_kernels_that_prove_or_disprove() -> None:
    """A trace that has nothing else has lost the kernels."""
    filled = Seen(library_calls=["cudnnConvolutionForward:fft"], kernels=["Memset (Device)"])
    assert contradiction(filled, Expected(kernels=(("*fft*",),))) is None
    assert Evidence("a", filled).source is Source.API


def test_without_recorded_sizes_nothing_is_said_about_products() -> None:
    """Some torches record none."""
    assert contradiction(Seen(operators=["aten::bmm"]), Expected(inner=36)) is None


def test_a_call_that_the_profiler_did_not_see_is_not_wrong() -> None:
    """It has no evidence, and no problem."""
    found = judge("a", None, {Way.FORWARD: Expected(must=(("x",),))})
    assert (found.layer, found.seen, found.problem) == ("a", None, None)
