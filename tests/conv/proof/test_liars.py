"""Liars are caught, and honest runs of any shape, type and layout are not taken for liars."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from benchmarks import liars
from hpcsweep.conv import swap
from hpcsweep.conv.backend import choose
from hpcsweep.conv.proof import backward_pass, forward_pass
from hpcsweep.conv.reference.algorithms import FAMILIES
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure.workloads.inference import Inference

BACKEND = choose("cpu")
SOME = (
    "winograd: runs winograd_nonfused",
    "fft: runs gemm and all_of_it for show",
    "gemm: runs implicit_gemm and a_product for show",
    "winograd: lies in one layer",
    "fft: keeps the output of equal inputs, sniffs profiler and modes",
    "winograd: computes outside of torch",
    "fft: ignores the filters",
)


@pytest.fixture(scope="module")
def bench() -> Inference:
    """Return one bench for all."""
    return Inference("cpu")


@pytest.mark.parametrize("name", SOME)
def test_a_liar_is_caught(bench: Inference, name: str) -> None:
    """Measured as in a sweep: something is said against the row."""
    claimed, liar = liars.liars()[name]
    with liars.lying(liar):
        assert liars.said_against(liars.finding(bench, claimed, num_threads=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(liars.liars()) - set(SOME)))
def test_every_liar_is_caught(bench: Inference, name: str) -> None:
    """All of them."""
    test_a_liar_is_caught(bench, name)


@pytest.mark.parametrize(("claimed", "ran"), [("winograd", "gemm"), ("fft", "winograd")])
def test_a_liar_about_gradients_is_caught(claimed: str, ran: str) -> None:
    """Its forward pass is as it claims."""
    assert liars.gradient_liar(claimed, ran)


@pytest.mark.parametrize("axes", [{}, {"network": "wide", "cache_state": "rotated"}])
def test_an_honest_run_is_not_taken_for_a_liar(bench: Inference, axes: dict[str, str]) -> None:
    """Measured by the same code."""
    for algorithm in ("winograd_nonfused", "implicit_gemm"):
        assert liars.said_against(liars.finding(bench, algorithm, num_threads=1, **axes)) is None


def _drawn(draw: random.Random) -> tuple[nn.Conv2d, torch.Tensor, bool]:
    """Return a layer, an input for it, and whether under autocast."""
    groups, dtype = draw.choice([1, 1, 2, 4]), draw.choice([torch.float32] * 3 + [torch.float64])
    plain = draw.random() < 0.6
    layer = nn.Conv2d(
        groups * draw.choice([1, 3, 8]),
        groups * draw.choice([1, 5, 16]),
        draw.choice([1, 2, 3, 3, 3, 5, 5, 7, (1, 3)]),
        stride=1 if plain else draw.choice([1, 2, (2, 1)]),
        padding=draw.choice([0, 1, "same"]) if plain else draw.choice([0, 3]),
        dilation=1 if plain else draw.choice([1, 2]),
        groups=groups,
        bias=draw.random() < 0.5,
        padding_mode=draw.choice(["zeros", "zeros", "reflect", "replicate", "circular"]),
    )
    x = torch.randn(draw.choice([1, 2, 5]), layer.in_channels, draw.choice([15, 23, 40]), 17)
    if draw.random() < 0.3:
        x = x.contiguous(memory_format=torch.channels_last)
    if draw.random() < 0.2:
        dtype = torch.bfloat16
    autocast = dtype == torch.float32 and draw.random() < 0.3
    x = x.to(dtype).requires_grad_(draw.random() < 0.5)
    layer.weight.requires_grad_(not (x.requires_grad and draw.random() < 0.2))
    return layer.to(dtype), x[0] if draw.random() < 0.1 else x, autocast


@pytest.mark.parametrize(
    "seed",
    [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))],
)
@pytest.mark.parametrize("algorithm", [name for name in FAMILIES if name != "direct"])
def test_all_work_of_an_algorithm_is_accounted_for(algorithm: str, seed: int) -> None:
    """Drawn shapes: strides, dilations, groups, padding of all kinds, types, layouts, autocast."""
    layer, x, autocast = _drawn(random.Random(f"{algorithm} {seed}"))
    model = nn.Sequential(layer, nn.ReLU())
    swap.swap(model)

    def run() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(x)

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        shape = ConvShape.of(layer, x)
    picked = swap.assign(model, [("0", shape)], algorithm, "fallback", BACKEND)
    run()  # the first pass makes tables
    with torch.inference_mode(seed % 2 == 0):
        forward = forward_pass.prove(model, run, picked, BACKEND).calls
    backward = backward_pass.prove(model, lambda: run().float().sum().backward(), picked, BACKEND)
    assert [call.problem for call in (*forward, *backward)] == [None] * 2, shape.unique_key
