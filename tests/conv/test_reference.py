"""The reference back-end: laws that hold for every algorithm.

Random shapes are in `properties/test_conv_numerics.py`; here are the cases with a name.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from hpcsweep import catalog
from hpcsweep.conv.backend import UnknownAlgorithm
from hpcsweep.conv.reference import Reference
from hpcsweep.conv.shape import ConvShape
from references import BACKEND, EVERY, OPERATORS, PLAIN, TRANSFORMS, error, operands, truth

conv2d = nn.functional.conv2d


def test_every_algorithm_of_the_taxonomy_is_implemented() -> None:
    """But for what lets others choose."""
    assert {*EVERY, *catalog.CHOOSING} == set(catalog.ALGORITHMS)


def test_an_algorithm_that_is_not_implemented_is_refused() -> None:
    """`auto` is the framework's, never a back-end's."""
    with pytest.raises(UnknownAlgorithm):
        BACKEND.unsupported("auto", PLAIN)


@pytest.mark.parametrize("block", [1, 1 << 30])
@pytest.mark.parametrize("algorithm", ["implicit_precomp_gemm", "fft", "winograd"])
@pytest.mark.parametrize("n", [1, 7])
def test_the_size_of_a_block_does_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, block: int, n: int
) -> None:
    """Many blocks, the last one shorter, or one that holds everything."""
    for module in ("gemm", "fft", "winograd"):
        monkeypatch.setattr(f"hpcsweep.conv.reference.{module}.BLOCK_BYTES", block)
    monkeypatch.setattr("hpcsweep.conv.reference.gemm._FEWEST_PIXELS", 50 if block == 1 else 1)
    monkeypatch.setattr("hpcsweep.conv.reference.winograd._FEWEST_TILES", 1)
    shape = ConvShape(n, 4, 13, 9, 6, 3, 3, pad_h=1, pad_w=1, groups=2)
    x, weight, bias = operands(shape)
    found = BACKEND.forward(algorithm, x, weight, bias, shape)
    assert error(found, truth(x, weight, bias, shape)) < 2e-6


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("last", [(True, False), (False, True), (True, True)])
def test_channels_last_in_is_channels_last_out(algorithm: str, last: tuple[bool, bool]) -> None:
    """As in the framework: one operand is enough."""
    x, weight, bias = operands(PLAIN)
    layouts = [torch.channels_last if each else torch.contiguous_format for each in last]
    x, weight = (t.contiguous(memory_format=m) for t, m in zip((x, weight), layouts, strict=True))
    found = BACKEND.forward(algorithm, x, weight, bias, PLAIN)
    framework = conv2d(x, weight, None, 1, 1)
    assert found.stride() == framework.stride()
    assert error(found, truth(x, weight, bias, PLAIN)) < 2e-6


@pytest.mark.parametrize("algorithm", OPERATORS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-14), (torch.bfloat16, 1e-2), (torch.float16, 1e-3)]
)
def test_other_types_come_out_as_they_went_in(
    algorithm: str, dtype: torch.dtype, bound: float
) -> None:
    """Reduced ones lose what rounding the result loses, since sums are kept in float32."""
    shape = ConvShape(1, 64, 12, 12, 8, 3, 3, pad_h=1, pad_w=1, dtype=str(dtype)[6:])
    assert BACKEND.unsupported(algorithm, shape) is None
    x, weight, bias = operands(shape, dtype)
    found = BACKEND.forward(algorithm, x, weight, bias, shape)
    assert found.dtype == dtype
    assert error(found, truth(x, weight, bias, shape)) < bound


@pytest.mark.parametrize("algorithm", EVERY)
def test_autograd_goes_through(algorithm: str) -> None:
    """Gradients of input, filter and bias against the framework's in float64."""
    shape = ConvShape(2, 4, 9, 8, 6, 3, 3, pad_h=1, pad_w=1, groups=2, bias=True)
    if BACKEND.unsupported(algorithm, shape):
        shape = replace(shape, groups=1)
    leaves = [t.requires_grad_() for t in operands(shape) if t is not None]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    x, weight, bias = leaves
    pull = torch.randn(2, 6, 9, 8, generator=torch.Generator().manual_seed(3))
    BACKEND.forward(algorithm, x, weight, bias, shape).backward(pull)
    truth(*exact, shape).backward(pull.double())
    for found, wanted in zip(leaves, exact, strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert error(found.grad, wanted.grad) < 5e-6


@pytest.mark.parametrize("algorithm", OPERATORS)
@pytest.mark.parametrize("learns", ["x", "weight"])
def test_gradients_are_right_where_one_operand_learns(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, learns: str
) -> None:
    """Blocks must not share memory then: autograd keeps the other operand of every product."""
    monkeypatch.setattr("hpcsweep.conv.reference.fft._MOST_FREQUENCIES", 7)
    shape = ConvShape(1, 4, 20, 20, 6, 3, 3)
    x, weight, _ = operands(shape)
    leaf = {"x": x, "weight": weight}[learns].requires_grad_()
    exact = {"x": x.detach().double(), "weight": weight.detach().double()}
    exact[learns].requires_grad_()
    BACKEND.forward(algorithm, x, weight, None, shape).square().sum().backward()
    truth(exact["x"], exact["weight"], None, shape).square().sum().backward()
    wanted = exact[learns].grad
    assert leaf.grad is not None
    assert wanted is not None
    assert error(leaf.grad, wanted) < 5e-6


@pytest.mark.parametrize("algorithm", OPERATORS)
def test_a_first_call_in_inference_mode_does_not_spoil_training(algorithm: str) -> None:
    """Cached tensors must not be born in inference mode: autograd refuses those for good."""
    shape = ConvShape(1, 2, 11, 13, 3, 3, 3, dtype="float64")  # nobody else's: a cache miss
    x, weight, _ = operands(shape, torch.float64)
    with torch.inference_mode():
        BACKEND.forward(algorithm, x, weight, None, shape)
    weight.requires_grad_()
    BACKEND.forward(algorithm, x, weight, None, shape).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("algorithm", TRANSFORMS)
@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (ConvShape(1, 3, 9, 9, 4, 3, 3, 2, 2), "stride 2x2"),
        (ConvShape(1, 3, 9, 9, 4, 3, 3, 1, 2), "stride 1x2"),
        (ConvShape(1, 3, 9, 9, 4, 3, 3, dilation_h=2, dilation_w=2), "dilation 2x2"),
    ],
)
def test_transforms_want_stride_and_dilation_one(
    algorithm: str, shape: ConvShape, reason: str
) -> None:
    """The reason is a few words that start with what is in the way."""
    assert (BACKEND.unsupported(algorithm, shape) or "").startswith(reason)


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize(
    "shape",
    [
        ConvShape(0, 3, 9, 9, 4, 3, 3),
        ConvShape(1, 3, 2, 9, 4, 3, 3),
        ConvShape(1, 3, 9, 9, 4, 3, 3, dtype="complex64"),
    ],
    ids=["no_image", "filter_larger_than_image", "complex"],
)
def test_nothing_sensible_to_compute_is_a_reason_not_a_crash(
    algorithm: str, shape: ConvShape
) -> None:
    """The framework then gives its own result, or its own error."""
    assert BACKEND.unsupported(algorithm, shape)


def test_direct_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong device, wrong type, wrong CPU, wrong build."""
    double = ConvShape(1, 3, 9, 9, 4, 3, 3, dtype="float64")
    assert BACKEND.unsupported("direct", double) == "oneDNN has no float64"
    assert Reference("cuda").unsupported("direct", PLAIN) == "oneDNN does not run on cuda"
    for dtype, probe in (("bfloat16", "bf16"), ("float16", "fp16")):
        shape = ConvShape(1, 3, 9, 9, 4, 3, 3, dtype=dtype)
        name = f"_is_mkldnn_{probe}_supported"
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: False)
        assert BACKEND.unsupported("direct", shape) == f"this CPU has no {dtype} for oneDNN"
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: True)
        assert BACKEND.unsupported("direct", shape) is None
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert BACKEND.unsupported("direct", PLAIN) == "this torch build has no oneDNN"
