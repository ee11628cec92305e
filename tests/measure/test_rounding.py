"""Bounds on rounding: what honest arithmetic stays within, and what does not."""

from __future__ import annotations

import copy
import math
from collections import UserDict, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from hpcsweep.conv import choice
from hpcsweep.conv.reference import Reference
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.tensors import tensors_in
from hpcsweep.measure import rounding
from hpcsweep.measure.rounding import Arithmetic, is_wrong


class Pair(NamedTuple):
    """Two outputs."""

    first: object
    second: object


def test_tensors_are_found_wherever_an_output_has_them():
    """Containers, records, and plain objects, also in slots; but no parameters of a module."""

    @dataclass(slots=True)
    class Record:
        scores: torch.Tensor
        more: object = None

    x = torch.ones(1)
    told = SimpleNamespace(boxes=[x], name="text", layer=nn.Linear(1, 1))
    told.itself = told
    for output in (
        x, [x], (x,), {"a": x}, UserDict(a=x), deque([x]), Pair(x, None), Record(x), told,
        Record("no", Record(x)), {"deep": [Pair({"x": Record(x)}, 3)]},
    ):  # fmt: skip
        assert list(tensors_in(output)) == [x]
    assert list(tensors_in([None, 3, "text", nn.Linear(1, 1), torch.relu])) == []


def judged(layer, x, output, *, used="auto", device="cpu", **about):
    """Return the verdict of a call's output."""
    with torch.inference_mode():
        chosen = choice.LayerChoice("layer", ConvShape.of(layer, x), used, used, "reference")
        how = Arithmetic.of(chosen, device, **{"tf32": False, "casts": False, **about})
        return rounding.of_call(layer, x, output, how)


LAYERS = {
    "deep": (nn.Conv2d(512, 8, 3, padding=1, bias=False), (1, 512, 7, 7)),
    "pointwise": (nn.Conv2d(64, 64, 1, bias=False), (2, 64, 9, 9)),
    "strided stem": (nn.Conv2d(3, 16, 7, stride=2, padding=3), (1, 3, 33, 31)),
    "depthwise": (nn.Conv2d(32, 32, 5, padding=2, groups=32), (1, 32, 8, 8)),
    "groups, dilated": (nn.Conv2d(16, 24, 3, dilation=2, groups=4), (2, 16, 13, 13)),
    "circular": (nn.Conv2d(8, 9, 3, padding=2, padding_mode="circular"), (1, 8, 9, 9)),
    "one image": (nn.Conv2d(8, 9, 3), (8, 9, 9)),
}
KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def outputs(layer, x):
    """Yield what each algorithm that can gives for a layer."""
    call, reference = ConvShape.of(layer, x), Reference()
    yield "auto", layer(x)
    if layer.padding_mode == "zeros" and x.dim() == 4:
        for used in ("gemm", "implicit_gemm", "fft", "fft_tiling", "winograd", "winograd_nonfused"):
            if not reference.unsupported(used, call):
                yield used, reference.forward(used, x, layer.weight, layer.bias, call)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", LAYERS)
@torch.inference_mode()
def test_honest_convolutions_stay_within_their_bounds(name, dtype):
    """In every algorithm, on images that are large or small, with a mean, and dark in one half.

    Squares of small numbers vanish in float32, and the smallest numbers themselves.
    """
    layer = copy.deepcopy(LAYERS[name][0]).to(dtype)
    extreme = () if dtype == torch.float16 else (1e12, 1e-25, 1e-38)
    for scale in (1.0, 1e-3, 300.0, *extreme):
        x = torch.randn(LAYERS[name][1]).relu_() * scale + scale
        x[..., : x.shape[-1] // 2] = 0
        for used, output in outputs(layer, x.to(dtype)):
            assert judged(layer, x.to(dtype), output, used=used).excess < 1


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("filters", ["sorted", "laplacian", "half", "positive", "spiky"])
@torch.inference_mode()
def test_filters_whose_partial_sums_are_larger_than_the_whole_are_no_alarm(filters, dtype):
    """On a bright image, too, where what is added first is far from what remains."""
    layer = nn.Conv2d(256, 8, 3, padding=1, bias=False)
    weight = torch.randn(8, 256 * 9)
    weight = {
        "sorted": weight.sort(1)[0],
        "laplacian": torch.tensor([-1.0] * 4 + [8] + [-1] * 4).repeat(8, 256),
        "half": weight.abs() * torch.linspace(1, -1, 256 * 9).sign(),
        "positive": weight.abs(),
        "spiky": weight**5,
    }[filters]
    layer.weight.copy_(weight.view(8, 256, 3, 3))
    layer, x = layer.to(dtype), (1 + 0.01 * torch.rand(1, 256, 9, 9)).to(dtype)
    for used, output in outputs(layer, x):
        assert judged(layer, x, output, used=used).excess < 1


def dropped(layer, x, *at):
    """Return the output of a layer with some of its filters' values missing."""
    weight = layer.weight.clone()
    weight[at] = 0
    return layer._conv_forward(x, weight, layer.bias)


def rounded(layer, x, to):
    """Return the output of a layer that rounds its operands first."""
    weight = layer.weight.to(to).to(x.dtype)
    return layer._conv_forward(x.to(to).to(x.dtype), weight, layer.bias)


FAULTS = {
    "a tap": lambda layer, x: dropped(layer, x, ..., 0, 2),
    "a tap of one channel": lambda layer, x: dropped(layer, x, 3, ..., 0, 0),
    "an input channel": lambda layer, x: dropped(layer, x, slice(None), 5),
    "channels swapped": lambda layer, x: layer(x)[:, [1, 0, *range(2, 64)]],
    "a corner": lambda layer, x: layer(x).index_fill(3, torch.tensor([0]), 0.0),
    "not a number": lambda layer, x: layer(x).masked_fill(layer(x) > 0.5, math.nan),
    "zeros": lambda layer, x: layer(x) * 0,
}
FINE = {
    "a single weight": lambda layer, x: dropped(layer, x, 7, 300, 1, 1),
    "operands in bfloat16": lambda layer, x: rounded(layer, x, torch.bfloat16),
    "operands in float16": lambda layer, x: rounded(layer, x, torch.float16),  # TF32's precision
    "a channel a little too large": lambda layer, x: (
        layer(x) * (1 + 1e-3 * torch.eye(64)[9, :, None, None])
    ),
    "sums in bfloat16": lambda layer, x: (
        sum(
            (dropped(layer, x, slice(None), slice(i, None)).bfloat16() for i in (256, 512)), 0
        ).float()
        / 2
    ),
}


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        *((FAULTS[name], dtype) for name in FAULTS for dtype in KINDS),
        *((fault, torch.float32) for fault in FINE.values()),
    ],
)
@torch.inference_mode()
def test_a_layer_that_is_slightly_wrong_is_caught(fault, dtype):
    """In a layer with sums of 4608 products are found in each value."""
    torch.manual_seed(1)
    layer = nn.Conv2d(512, 64, 3, padding=1).to(dtype)
    x = torch.randn(1, 512, 9, 9).relu_().to(dtype)
    assert is_wrong(judged(layer, x, fault(layer, x).to(dtype)))


@torch.inference_mode()
def test_complex_convolutions_are_compared_as_complex():
    """An error of the imaginary part alone is an error."""
    layer = nn.Conv2d(4, 8, 3, padding=1, dtype=torch.complex64)
    x = torch.randn(1, 4, 9, 9, dtype=torch.complex64)
    assert judged(layer, x, layer(x)).excess < 1
    assert is_wrong(judged(layer, x, layer(x) + 0.001j))
    assert is_wrong(judged(layer, x, layer(x).real))


def test_what_a_gpu_may_do_is_allowed_for():
    """Rounded operands if they are asked for, larger Winograd tiles if a library may choose."""
    torch.manual_seed(0)
    layer, x = nn.Conv2d(64, 64, 3, padding=1), torch.randn(1, 64, 14, 14)
    tf32 = rounded(layer, x, torch.float16)
    assert judged(layer, x, tf32, device="cuda", tf32=True).excess < 1
    assert is_wrong(judged(layer, x, tf32, device="cuda"))
    assert is_wrong(judged(layer, x, tf32, device="cpu", tf32=True))
    call = ConvShape.of(layer, x)
    kind = {"tf32": False, "casts": False}
    growths = [
        Arithmetic.of(choice.LayerChoice("", call, used, used, ""), "cuda", **kind).growth
        for used in ("gemm", "fft", "winograd", "auto", "heuristic")
    ]
    assert growths[0] == 1
    assert growths[1:] == 4 * [pytest.approx(46.26, abs=0.01)]
