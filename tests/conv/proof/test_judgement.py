"""A claim is compared with what ran: the true one holds, every other is found out."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from hpcsweep.conv import swap
from hpcsweep.conv.backend import Expected, Operation, choose, product
from hpcsweep.conv.proof import backward_pass, forward_pass
from hpcsweep.conv.proof.evidence import Evidence, Seen, Source
from hpcsweep.conv.proof.judgement import contradiction, other_work
from hpcsweep.conv.reference.reference_backend import FAMILIES
from hpcsweep.conv.shape import ConvShape
from profiled import forward_proof, step_proof

BACKEND = choose("cpu")
OPERATORS = [name for name in FAMILIES if name != "direct"]  # those made of torch's operators
WORK = [
    (product(2, 8, 36, 400), Operation("aten::bmm", (2, 8, 36, 400))),
    (product(2, 8, 36, 400), Operation("aten::mm", (2, 8, 36, 400))),
    (Operation("aten::unfold"), Operation("aten::unfold")),
]


@pytest.mark.parametrize("claimed", OPERATORS)
@pytest.mark.parametrize("ran", [*OPERATORS, "direct", "auto"])
def test_a_false_claim_about_a_forward_pass_is_caught(ran: str, claimed: str) -> None:
    """Whatever ran, it passes for no other: not for its tiled or fused kin, nor the framework's."""
    first, second, *_ = forward_proof(ran, claimed).calls
    assert (first.problem is None) == (second.problem is None) == (ran == claimed)
    if ran == "auto":  # the silent fallback, which is what all this is for
        assert first.problem == "ran aten::conv2d"


@pytest.mark.parametrize("claimed", OPERATORS)
@pytest.mark.parametrize("ran", ["direct", "auto"])
def test_gradients_of_the_framework_pass_for_no_algorithm_s(ran: str, claimed: str) -> None:
    """In the first layer, too, which has a gradient of its filters alone."""
    first, second, *_ = step_proof(ran, claimed)
    assert first.problem == "filter: ran aten::convolution_backward"
    assert second.problem == "data: ran aten::convolution_backward"


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        ({WORK[0][0], Operation("aten::unfold")}, None),
        ({product(2, 400, 36, 8), Operation("aten::unfold")}, None),
        ({WORK[0][0]}, "ran aten::unfold"),
        ({Operation("aten::unfold")}, "ran aten::mm[2,8,36,400]"),
        (
            {WORK[0][0], product(2, 8, 36, 400, adds=True), Operation("aten::unfold")},
            "did not run added product[2,8,36,400]",
        ),
    ],
)
def test_what_tells_algorithms_apart_is_compared_by_sizes(
    work: set[Operation], problem: str | None
) -> None:
    """Nothing of another algorithm, nothing missing; the order of operands is free."""
    assert other_work(WORK, [Expected(work=work)]) == problem
    assert other_work(WORK, [Expected()]) is None


def test_gradients_may_run_what_either_needs() -> None:
    """A call's two gradients are looked at together."""
    ways = [Expected(work={name}) for name in dict(WORK)]
    assert other_work(WORK, ways) is None
    assert other_work(WORK, ways[:1]) == "ran aten::unfold"


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        (Expected(must=(("*mm",),)), None),
        (Expected(must=(("aten::unfold", "aten::b*"),)), None),
        (Expected(must=(("aten::unfold",),)), "no aten::unfold"),
        (Expected(must_not=("*bmm",)), "ran aten::bmm"),
        (Expected(must=(("*implicit_gemm*",),)), None),  # a kernel's name counts, too
        (Expected(must_not=("*gemm*",)), "ran ampere_implicit_gemm"),
        (Expected(kernels=(("*bmm",),)), "no *bmm"),  # only a kernel proves a kernel
    ],
)
def test_the_first_thing_that_does_not_fit_is_the_problem(
    expected: Expected, problem: str | None
) -> None:
    """Names that must be there, and names that must not."""
    seen = Seen(operators=["aten::add", "aten::bmm"], kernels=["ampere_implicit_gemm"])
    assert contradiction(seen, expected) == problem


def test_copies_and_fillings_are_no_kernels_that_prove_or_disprove() -> None:
    """A trace that has nothing else has lost the kernels."""
    filled = Seen(library_calls=["cudnnConvolutionForward:fft"], kernels=["Memset (Device)"])
    assert contradiction(filled, Expected(kernels=(("*fft*",),))) is None
    assert Evidence("a", filled).source is Source.API


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
@pytest.mark.parametrize("algorithm", OPERATORS)
def test_an_algorithm_is_proven_on_shapes_of_all_kinds(algorithm: str, seed: int) -> None:
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
