"""The GEMM families: every geometry, and no larger matrix than they say."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.conv.shape import ConvShape
from references import BACKEND, Allocations, operands

ODD = ConvShape(2, 6, 17, 20, 4, 3, 5, 2, 3, 2, 1, 2, 1, groups=2)


@pytest.mark.parametrize(
    ("algorithm", "shape"),
    [
        ("gemm", ConvShape(2, 16, 20, 20, 16, 3, 3)),
        ("gemm", ConvShape(2, 16, 20, 20, 16, 3, 3, 2, 2, groups=4)),
        ("implicit_gemm", ConvShape(2, 64, 20, 20, 16, 3, 3)),
    ],
)
def test_the_largest_allocation_of_a_gemm_is_what_it_multiplies(
    algorithm: str, shape: ConvShape
) -> None:
    """Counted while it really runs: the im2col matrix, or one shifted image."""
    x, weight, _ = operands(shape)
    with torch.inference_mode(), Allocations(x, weight) as seen:
        BACKEND.forward(algorithm, x, weight, None, shape)
    taps = shape.taps if algorithm == "gemm" else 1
    assert max(seen.sizes) == shape.n * shape.in_c * taps * shape.pixels * shape.itemsize


def test_no_im2col_matrix_exists_where_none_should() -> None:
    """Nothing that the implicit forms allocate comes near it."""
    shape = ConvShape(1, 32, 96, 96, 8, 7, 7)
    x, weight, bias = operands(shape)
    matrix = shape.in_c * shape.taps * shape.pixels * shape.itemsize
    for algorithm in ("implicit_gemm", "implicit_precomp_gemm"):
        BACKEND.forward(algorithm, x, weight, bias, shape)  # the indices are cached by now
        with torch.inference_mode(), Allocations(x, weight) as seen:
            BACKEND.forward(algorithm, x, weight, bias, shape)
        assert max(seen.sizes) < matrix / 8


def test_a_pointwise_gemm_multiplies_the_image_itself() -> None:
    """No copy of a 1x1 filter's patches: only the result is allocated."""
    shape = ConvShape(1, 16, 20, 20, 32, 1, 1)
    x, weight, _ = operands(shape)
    with torch.inference_mode(), Allocations(x, weight) as seen:
        out = BACKEND.forward("gemm", x, weight, None, shape)
    assert seen.sizes == [out.untyped_storage().nbytes()]
