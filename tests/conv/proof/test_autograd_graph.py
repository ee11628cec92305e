"""Which nodes of autograd's graph belong to a call, and the tensors in what networks return."""

from __future__ import annotations

import pytest
import torch

import tinynets
from hpcsweep.conv import swap
from hpcsweep.conv.proof.autograd_graph import nodes_between, tensors_in
from hpcsweep.conv.shape import ConvShape
from profiled import BACKEND


@pytest.mark.parametrize("algorithm", ["auto", "gemm", "fft", "winograd_nonfused", "direct"])
def test_a_call_is_all_nodes_between_its_output_and_its_input(algorithm: str) -> None:
    """One node for the framework's own convolution, several for one made of operators."""
    model = tinynets.Residual()
    x = torch.randn(2, 8, 8, 8, requires_grad=True) * 2
    swap.swap(model)
    calls = [("conv", ConvShape.of(model.conv, x))]
    swap.assign(model, calls, algorithm, "error", BACKEND)
    nodes = nodes_between(model.conv(x), [x])
    assert (len(nodes) == 1) == (algorithm in {"auto", "direct"})
    assert x.grad_fn not in nodes


def test_tensors_are_found_in_what_networks_return() -> None:
    """Alone, in tuples, in dicts, nested; anything else is passed over."""
    output = tinynets.Dicts().eval()(torch.zeros(1, 3, 4, 4))
    assert len(list(tensors_in(output))) == 2
    assert list(tensors_in((None, 3))) == []
