"""What could prove the product wrong, as far as kernels' names tell it."""

from __future__ import annotations

import time

import pytest

from benchmarks.gpu import kernels, proofs, resources

KERNELS = {  # as in published traces
    "implicit_gemm": ["void implicit_convolve_sgemm<float, float, 1024, 5, 5>(int)"],
    "implicit_precomp_gemm": ["computeOffsetsKernel()", "volta_scudnn_128x64_relu_interior_nn_v1"],
    "gemm": ["im2col4d_kernel<float, int>", "void explicit_convolve_sgemm<float, int>(int)"],
    "winograd": ["volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"],
}


def test_no_claim_of_another_algorithms_kernels_is_accepted():
    """All pairs; each is its own."""
    found = kernels.refuted(KERNELS)
    assert found == {"claims": 28, "accepted": [], "shared": [], "own_refused": []}


def test_equal_kernels_and_unknown_ones_are_told_apart_from_refuted_claims():
    """One algorithm under two names refutes nothing; what nobody knows accepts everything."""
    same = {"gemm": KERNELS["gemm"], "direct": KERNELS["gemm"]}
    found = kernels.refuted(same)
    assert found["shared"] == [["direct", "gemm"]]
    assert found["own_refused"] == [["direct", "gemm"]]
    assert len(kernels.refuted({"gemm": ["kernel_of_tomorrow"]})["accepted"]) == 7


@pytest.mark.parametrize(
    ("ran", "kernel", "both"),
    [
        ("fft", "void fft2d_r2c_32x32<float, false>(float2*)", ["fft_tiling"]),
        ("gemm", "ampere_sgemm_128x64_nn", ["implicit_gemm", "implicit_precomp_gemm"]),
        ("direct", "void conv2d_grouped_direct_kernel<float>", [
            "implicit_gemm", "implicit_precomp_gemm"]),
    ],
)  # fmt: skip
def test_algorithms_whose_kernels_have_one_name_refute_no_claim_of_each_other(ran, kernel, both):
    """Both FFTs, a plain product of matrices, a depthwise layer; all other claims are refuted."""
    found = kernels.refuted({ran: [kernel]})
    assert (found["accepted"], found["own_refused"]) == ([], [])
    assert sorted(found["shared"]) == sorted([ran, other] for other in both)


def test_a_plan_that_raises_what_it_likes_is_told_and_the_next_one_is_tried(monkeypatch):
    """The front-end's class of refusals derives from Exception alone."""
    refusal = type("cudnnGraphNotSupportedError", (Exception,), {})

    def decide(*_):
        raise refusal("no engine runs this")

    monkeypatch.setattr(proofs.choice, "decide", decide)
    assert proofs.tried(None, "eng1", None) == {"raised": "no engine runs this"}


def test_power_is_integrated_between_looks():
    """Watts over seconds."""
    assert resources.area([(0.0, 100.0), (1.0, 200.0), (3.0, 200.0)]) == 550.0


@pytest.mark.parametrize("pass_s", [0.004, 0.06])
def test_the_energy_of_a_pass_has_no_pause_in_it(pass_s, monkeypatch):
    """The GPU draws 350 W all the time: whoever slept between passes would count that, too."""
    seconds = [0.0]

    def go_on(more):
        seconds[0] += more

    monkeypatch.setattr(time, "sleep", go_on)
    found = resources.integrated(lambda: go_on(pass_s), lambda: 350.0, lambda: seconds[0])
    assert found["integrated_j"] == pytest.approx(350 * pass_s, rel=0.001)
