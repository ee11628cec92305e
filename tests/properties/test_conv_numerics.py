"""Laws of convolution: whatever the shape, every algorithm gives what float64 gives.

The bounds are for float32, as largest deviation over the largest sum of magnitudes (the output that
inputs and filters without signs would have): an output may cancel to nothing, its rounding does
not. Over 12,000 shapes drawn as below the worst was 3e-7 in every family; the bound leaves a factor
of about three.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from hpcsweep.conv.reference import FAMILIES, Reference
from hpcsweep.conv.shape import ConvShape

BACKEND = Reference("cpu")
BOUND = 1e-6


@st.composite
def geometries(draw: st.DrawFn) -> ConvShape:
    """Draw any convolution that has at least one output pixel."""
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 5), (2, 3), (4, 1), (7, 7)]))
    pads = [draw(st.integers(0, 4)) for _ in range(2)]
    dilations = [draw(st.sampled_from([1, 1, 2, 3])) for _ in range(2)]
    sizes = [
        draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), d * (k - 1) + 40))
        for k, p, d in zip(kernel, pads, dilations, strict=True)
    ]
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    return ConvShape(
        draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 6)),
        *sizes,
        groups * draw(st.integers(1, 6)),
        *kernel,
        draw(st.sampled_from([1, 1, 2, 3])),
        draw(st.sampled_from([1, 1, 2, 3])),
        *pads,
        *dilations,
        groups,
        draw(st.booleans()),
    )


@st.composite
def dense(draw: st.DrawFn) -> ConvShape:
    """Draw a convolution that the transforms can do, too."""
    return replace(draw(geometries()), stride_h=1, stride_w=1, dilation_h=1, dilation_w=1)


def square(shape: ConvShape, size: int) -> ConvShape:
    """Return the shape with square filters, and an image that they fit into."""
    height, width = shape.in_h + size, shape.in_w + size
    return replace(shape, kernel_h=size, kernel_w=size, in_h=height, in_w=width)


def framework(x: torch.Tensor, weight: torch.Tensor, shape: ConvShape) -> torch.Tensor:
    """Return what the framework makes of a shape without bias."""
    stride, padding = (shape.stride_h, shape.stride_w), (shape.pad_h, shape.pad_w)
    dilation = (shape.dilation_h, shape.dilation_w)
    return nn.functional.conv2d(x, weight, None, stride, padding, dilation, shape.groups)


def deviation(algorithm: str, x: torch.Tensor, weight: torch.Tensor, shape: ConvShape) -> float:
    """Return how far an algorithm is from float64, as the module's docstring says."""
    found = BACKEND.forward(algorithm, x, weight, None, shape)
    exact = framework(x.double(), weight.double(), shape)
    assert found.shape == exact.shape == (shape.n, shape.out_c, shape.out_h, shape.out_w)
    # where filters meet nothing but padding all of it is zero, and has to be exactly that
    scale = framework(x.double().abs(), weight.double().abs(), shape).max().clamp(min=1e-300)
    return ((found.double() - exact).abs().max() / scale).item()


def drawn(shape: ConvShape, seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a random input and filter."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape.n, shape.in_c, shape.in_h, shape.in_w, generator=g, dtype=dtype)
    taps = (shape.kernel_h, shape.kernel_w)
    return x, torch.randn(shape.out_c, shape.group_in, *taps, generator=g, dtype=dtype)


# what each can do: the GEMM families anything, transforms stride and dilation one, Winograd 3x3
SHAPES = {
    **dict.fromkeys(("direct", "gemm", "implicit_gemm", "implicit_precomp_gemm"), geometries()),
    **dict.fromkeys(("fft", "fft_tiling"), dense()),
    **dict.fromkeys(("winograd", "winograd_nonfused"), dense().map(lambda shape: square(shape, 3))),
}


@pytest.mark.parametrize("algorithm", SHAPES)
@given(data=st.data(), seed=st.integers(0, 1 << 30))
def test_an_algorithm_agrees_with_float64_on_every_shape_that_it_can_do(
    algorithm: str, data: st.DataObject, seed: int
) -> None:
    """And refuses none of them: any padding, filter and number of groups."""
    shape = data.draw(SHAPES[algorithm])
    assert BACKEND.unsupported(algorithm, shape) is None
    assert deviation(algorithm, *drawn(shape, seed, torch.float32), shape) < BOUND


@pytest.mark.parametrize("algorithm", [name for name in FAMILIES if name != "direct"])
@given(shape=dense(), seed=st.integers(0, 1 << 30))
def test_in_float64_nothing_but_rounding_is_left(
    algorithm: str, shape: ConvShape, seed: int
) -> None:
    """A wrong index would be of the size of the output, not of its last digits."""
    shape = replace(square(shape, 3), dtype="float64")
    assume(BACKEND.unsupported(algorithm, shape) is None)
    assert deviation(algorithm, *drawn(shape, seed, torch.float64), shape) < 1e-14


@given(shape=geometries())
def test_shapes_that_differ_have_keys_that_differ(shape: ConvShape) -> None:
    """And the same shape, made again, has the same key."""
    other = replace(shape, n=shape.n + 1)
    assert replace(shape).unique_key == shape.unique_key != other.unique_key
