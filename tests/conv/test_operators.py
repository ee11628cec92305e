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
    TRANSFORMS,
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
        ("aten::_fft_r2c", TRANSFORMS),
        ("cudnnConvolutionForward:gemm", LIBRARY_CALLS),
        ("miopenConvolutionBackwardDataImmediate:direct", LIBRARY_CALLS),
    ],
)
def test_names_fit_their_patterns_and_no_others(name: str, patterns: tuple[str, ...]) -> None:
    """A call of a library is no operator that convolves."""
    every = (CONVOLUTIONS, PRODUCTS, TRANSFORMS, LIBRARY_CALLS)
    assert [one for one in every if matches(name, one)] == [patterns]


@pytest.mark.parametrize("name", [ONEDNN, FRAMEWORK_BACKWARD])
def test_operators_that_are_named_exist(name: str) -> None:
    """A torch that renames one is noticed."""
    assert hasattr(torch.ops.aten, name.removeprefix("aten::"))
