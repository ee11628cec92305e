"""The operators as torch sees them: schema, gradient, fake tensors, traces."""

from __future__ import annotations

import pytest
import torch


# torch's own tracing looks at such a gradient
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("algorithm", "nhwc"),
    [pytest.param("gemm", False, marks=pytest.mark.slow), ("winograd", True)],
)
def test_the_operator_passes_torchs_own_checks(backend, algorithm, nhwc):
    """Schema, autograd registration, fake tensors, and tracing with gradients."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    x = torch.randn(2, 2, 6, 6).to(memory_format=layout).requires_grad_()
    weight = torch.randn(4, 2, 3, 3).to(memory_format=layout).requires_grad_()
    arguments = (x, weight, [2, 4, 6, 6], "cudnn", algorithm, [1, 1], [1, 1], [1, 1], 1, nhwc)
    torch.library.opcheck(torch.ops.hpcsweep.convolution.default, arguments)


def test_the_gradient_formula_is_right_in_float64(backend):
    """Against finite differences."""
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)

    nhwc = False

    def run(a, b):
        return torch.ops.hpcsweep.convolution(
            a, b, [1, 3, 5, 5], "cudnn", "winograd_nonfused", [1, 1], [1, 1], [1, 1], 1, nhwc
        )

    assert torch.autograd.gradcheck(run, (x, weight))
