"""Names of operators, held against what this torch calls them."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.conv.operators import (
    CONVOLUTIONS,
    FRAMEWORK_BACKWARD,
    LIBRARY_CALLS,
    ONEDNN,
    PRODUCTS,
    helps,
    matches,
)


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("aten::conv2d", CONVOLUTIONS),
        ("aten::cudnn_convolution", CONVOLUTIONS),
        (ONEDNN, CONVOLUTIONS),
        (FRAMEWORK_BACKWARD, CONVOLUTIONS),
        ("aten::baddbmm_", PRODUCTS),
        ("cudnnConvolutionForward:gemm", LIBRARY_CALLS),
        ("miopenConvolutionBackwardDataImmediate:direct", LIBRARY_CALLS),
    ],
)
def test_names_fit_their_patterns_and_no_others(name: str, patterns: tuple[str, ...]) -> None:
    """A call of a library is no operator that convolves."""
    every = (CONVOLUTIONS, PRODUCTS, LIBRARY_CALLS)
    assert [one for one in every if matches(name, one)] == [patterns]


@pytest.mark.parametrize("name", [ONEDNN, FRAMEWORK_BACKWARD])
def test_operators_that_are_named_exist(name: str) -> None:
    """A torch that renames one is noticed."""
    assert hasattr(torch.ops.aten, name.removeprefix("aten::"))


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
