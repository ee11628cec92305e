"""Which algorithm a call's kernels belong to, judged by real traces and by names from elsewhere."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict

import pytest

from hpcsweep.conv.proof.kernels import Grade, helps, kernel_word, recognise
from paths import FACTS

REAL = FACTS / "traces"
NAMES = (
    "implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling", "winograd",
    "winograd_nonfused",
)  # fmt: skip
RUNTIMES = {"runtime", "cuda_runtime", "cuda_driver", "hip_runtime"}
# How often each algorithm ran, typed from the kernels' names.
TRACES = [
    (
        "v100_resnet50_train",
        "aten::cudnn_convolution",
        {
            ("implicit_gemm",): 168,  # implicit_convolve_sgemm
            ("implicit_precomp_gemm",): 66,  # computeOffsetsKernel, volta_scudnn_*
            ("winograd_nonfused",): 60,  # winograd_nonfused::winogradForward*, volta_sgemm_*
            ("winograd",): 18,  # volta_scudnn_winograd_*
            ("gemm",): 6,  # im2col4d_kernel, explicit_convolve_sgemm
        },
    ),
    (
        "a100_alexnet",
        "aten::cudnn_convolution",
        # sm80_xmma_fprop_implicit_gemm_indexed_*, cudnn_ampere_scudnn_*; fft2d_*_32x32
        {("implicit_precomp_gemm",): 8, ("fft", "fft_tiling"): 2},
    ),
    # cutlass_tensorop_*fprop_optimized_*
    ("h100_vit", "aten::cudnn_convolution", {("implicit_precomp_gemm",): 1}),
    (
        "mi300x_resnet_bf16",
        "aten::miopen_convolution",
        {("implicit_gemm",): 99, ("gemm",): 18},  # igemm_fwd_*, ck's grouped_conv; Cijk_*
    ),
    (
        "mi300x_resnet_bf16",
        "aten::convolution_backward",
        # both gradients in a call: in three the input's by a product, the filters' implicitly
        {("implicit_gemm",): 57, ("gemm", "implicit_gemm"): 3},
    ),
]


def calls(trace: str, operator: str) -> list[list[str]]:
    """Return the kernels of each call of an operator, in order."""
    with gzip.open(REAL / f"{trace}.json.gz") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    kinds = defaultdict(list)
    for event in events:
        kinds[str(event.get("cat")).lower()].append(event)
    number = [
        (event["ts"], event["ts"] + event["dur"], event["tid"])
        for event in (*kinds["cpu_op"], *kinds["operator"])
        if event["name"] == operator
    ]
    launches = {
        event["args"].get("correlation"): event for kind in RUNTIMES for event in kinds[kind]
    }
    found: list[list[str]] = [[] for _ in number]
    for kernel in sorted(kinds["kernel"], key=lambda event: event["ts"]):
        launch = launches.get(kernel["args"].get("correlation"))
        for place, (begin, end, thread) in enumerate(number) if launch else ():
            if launch["tid"] == thread and begin <= launch["ts"] <= end:
                found[place].append(kernel["name"])
    return found


@pytest.mark.parametrize(("trace", "operator", "wanted"), TRACES)
def test_each_call_of_a_real_trace_is_recognised(trace, operator, wanted):
    """No kernel is unknown; of each algorithm as many as a person counted; no false claim holds."""
    found = [recognise(kernels) for kernels in calls(trace, operator)]
    assert [one.unknown for one in found if one.unknown] == []
    assert Counter(tuple(sorted(one.algorithms)) for one in found) == wanted
    for one in found:
        fits = {name for name in NAMES if one.grade(name) is not Grade.CONTRADICTED}
        mixed = len(one.algorithms) > 1 and not fits  # two gradients in one call
        assert fits == one.algorithms or mixed
        if len(fits) == 1:
            assert one.grade(*fits) is Grade.RECOGNISED


# Names as published elsewhere, of other GPUs and versions.
KERNELS = [
    ("implicit_gemm", ["void cudnn::cnn::implicit_convolve_hgemm<__half, 1024, 5>(int)"]),
    ("implicit_gemm", ["igemm_v4r1_dynamic", "SubTensorOpWithScalar1d"]),
    ("implicit_gemm", ["gridwise_convolution_implicit_gemm_v4r4_xdlops_nchw_kcyx_nkhw"]),
    ("implicit_precomp_gemm", ["maxwell_scudnn_128x64_relu_small_nn"]),
    ("implicit_precomp_gemm", ["turing_h1688cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1"]),
    ("implicit_precomp_gemm", ["volta_fp16_scudnn_fp16_128x64_relu_interior_nn_v1"]),
    ("implicit_precomp_gemm", ["void cudnn::detail::precomputed_convolve_sgemm<float, 512>(int)"]),
    ("implicit_precomp_gemm", ["sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc"]),
    (
        "implicit_precomp_gemm",
        [
            "void cudnn::cnn::kern_precompute_indices<false>(int)",
            "void cudnn::detail::precomputed_convolve_sgemm<float, 1024, 5>(int)",
        ],
    ),
    (
        "implicit_precomp_gemm",
        [
            "void nhwcAddPaddingKernel<__half, __half, float, true>(int)",
            "void cutlass::Kernel<cutlass::conv::kernel::ImplicitGemmConvolution<int>>(int)",
        ],
    ),
    ("winograd", ["maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt"]),
    ("winograd", ["ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"]),
    ("winograd", ["miopenSp3AsmConv_v21_1_3_gfx9_fp32_f2x3_stride1"]),
    ("winograd", ["miopenGcnAsmWinogradXformData_0_0", "Cijk_Ailk_Bljk_SB_MT64x64x16"]),
    ("direct", ["naive_conv_nonpacked_fwd_nchw_float_double_float"]),
    ("direct", ["miopenGcnAsmConv1x1U"]),
    ("direct", ["MIOpenConvUni"]),
    ("direct", ["MIOpenGroupConvUni"]),
    ("direct", ["conv7x7c3h224w224k64u2v2p3q3f1"]),
    ("fft", ["flip_filter", "fft2d_r2c_32x32"]),
    ("fft", ["void fft2d_r2c_16x16<float>", "void fermiPlusCgemmLDS128_batched<float2>(int)"]),
    ("implicit_gemm", ["mlir_gen_igemm_conv2d_v4r4_fwd0"]),
    ("direct", ["MIOpenCvD3x3_WSR0"]),
    ("gemm", ["Im2d2Col", "Cijk_Ailk_Bljk_SB_MT64x64x16"]),
    ("gemm", ["void cudnn::cnn::im2col4d_kernel<float, long>(int)", "ampere_sgemm_128x64_nn"]),
]


@pytest.mark.parametrize(("algorithm", "kernels"), KERNELS)
def test_names_of_other_gpus_and_versions_are_recognised(algorithm, kernels):
    """As this algorithm alone; a claim of each other one is a contradiction."""
    found, same = (
        recognise(kernels),
        {algorithm} | ({"fft_tiling"} if algorithm == "fft" else set()),
    )
    assert found.algorithms == same
    assert found.grade(algorithm) is (Grade.RECOGNISED if len(same) == 1 else Grade.COMPATIBLE)
    assert not found.unknown
    others = [name for name in NAMES if name not in same]
    assert {found.grade(name) for name in others} == {Grade.CONTRADICTED}


@pytest.mark.parametrize(("first", "of_first"), [(of[1], of[0]) for of in KERNELS[:11]])
def test_a_call_that_ran_two_algorithms_contradicts_every_claim(first, of_first):
    """A library's call has one; what ran besides is found whichever is claimed."""
    for algorithm, kernels in KERNELS:
        if algorithm != of_first:
            found = recognise([*first, *kernels])
            assert {found.grade(name) for name in NAMES} == {Grade.CONTRADICTED}, kernels


@pytest.mark.parametrize(
    "kernel",
    [
        "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)",
        "void cudnn::cnn::im2col4d_kernel<float, long>(int)",
        "void cudnn::winograd::generateWinogradTilesKernel<0, float, float>(int)",
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x64",
    ],
)
def test_what_prepares_or_is_no_convolution_proves_none(kernel):
    """A profiler may lose the kernel that convolves."""
    assert {recognise([kernel]).grade(name) for name in NAMES} == {Grade.COMPATIBLE}


def test_of_an_unknown_kernel_nothing_is_concluded():
    """Nor from what only helps; beside a known one the claim is compatible, and no more."""
    for kernels in (["a_kernel_of_next_year"], ["nchwToNhwcKernel<float>"], []):
        found = recognise(kernels)
        assert {found.grade(name) for name in NAMES} == {Grade.COMPATIBLE}
    found = recognise(["implicit_convolve_sgemm", "a_kernel_of_next_year"])
    assert found.unknown == ("a_kernel_of_next_year",)
    assert found.grade("implicit_gemm") is Grade.COMPATIBLE
    assert found.grade("gemm") is Grade.CONTRADICTED


def test_a_product_alone_is_any_gemm_and_names_of_gradients_say_less():
    """A convolution of 1x1 may be one product, whoever asked for it."""
    found = recognise(["ampere_sgemm_32x32_sliced1x4_tn"])
    assert found.algorithms == {"gemm", "implicit_gemm", "implicit_precomp_gemm"}
    assert recognise(["void cudnn::detail::dgrad_engine<float>"]).grade("algo_1") is (
        Grade.RECOGNISED
    )
    assert recognise(["volta_scudnn_winograd_128x128"]).grade("algo_1") is Grade.CONTRADICTED


@pytest.mark.parametrize(
    ("kernel", "only_helps"),
    [
        ("Memset (Device)", True),
        ("void at::native::elementwise_kernel<128, 2, CUDAFunctor_add<float>>", True),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>", True),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", True),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", True),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float>", True),
        ("batched_transpose_32x32_half", True),
        ("SubTensorOpWithCastTensor1d", True),
        ("cask_cudnn::computeBOffsetsKernel(cask_cudnn::ComputeBOffsetsParams)", True),
        ("void cudnn::cnn::im2col4d_kernel<float, long>", True),
        ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3>", False),
        ("volta_scudnn_128x64_relu_interior_nn_v1", False),
        ("void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>", False),
        ("void fft2d_r2c_32x32<float, false, 5u, true>", False),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32", False),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1", False),
        ("miopenSp3AsmConv_v21_1_2_gfx9_fp32_f2x3_stride1", False),
    ],
)
def test_kernels_that_only_help_are_told_from_those_that_convolve(
    kernel: str,
    only_helps: bool,  # noqa: FBT001
) -> None:
    """Torch's own, layouts, types, sums and offsets prove nothing alone."""
    assert helps(kernel) == only_helps


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
    assert kernel_word(name) == word


def test_long_kernel_names_that_differ_at_the_end_stay_different() -> None:
    """Where a name is cut, a checksum of the whole of it is kept."""
    one, other = (kernel_word(200 * "k" + tile) for tile in ("128x64", "64x128"))
    assert one != other
    assert len(one) == len(other) == 160
