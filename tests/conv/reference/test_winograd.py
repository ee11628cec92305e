"""The Winograd families: exact matrices, cuDNN's limits, the known savings."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from hpcsweep.conv import operators
from hpcsweep.conv.reference import winograd
from hpcsweep.conv.shape import ConvShape
from references import BACKEND


@pytest.mark.parametrize(
    ("algorithm", "kernel", "reason"),
    [
        ("winograd", (3, 3), None),
        ("winograd", (5, 5), "kernel 5x5: needs 3x3"),
        ("winograd", (1, 1), "kernel 1x1: needs 3x3"),
        ("winograd_nonfused", (3, 3), None),
        ("winograd_nonfused", (5, 5), None),
        ("winograd_nonfused", (3, 5), "kernel 3x5: needs 3x3 or 5x5"),
    ],
)
def test_winograd_takes_the_filters_that_it_takes_in_cudnn(
    algorithm: str, kernel: tuple[int, int], reason: str | None
) -> None:
    """3x3; the non-fused form also 5x5."""
    assert BACKEND.unsupported(algorithm, ConvShape(1, 3, 9, 9, 4, *kernel)) == reason


@pytest.mark.parametrize(
    ("outputs", "taps", "points"),
    [(2, 3, winograd.POINTS[3]), (2, 5, winograd.POINTS[5]), (1, 3, (0, 1))],
)
def test_toom_cook_matrices_are_exact(
    outputs: int, taps: int, points: tuple[Fraction, ...]
) -> None:
    """AT ((G g) * (BT d)) is the correlation, in rational numbers, for all unit vectors."""
    at, g, bt = winograd.toom_cook(outputs, taps, [Fraction(p) for p in points])
    for tap, sample in product(range(taps), range(outputs + taps - 1)):
        products = [g_row[tap] * b_row[sample] for g_row, b_row in zip(g, bt, strict=True)]
        found = [sum(a * p for a, p in zip(row, products, strict=True)) for row in at]
        assert found == [Fraction(sample == out + tap) for out in range(outputs)]


def test_winograd_saves_the_multiplications_that_it_is_known_for() -> None:
    """16 instead of 36 per tile of F(2x2, 3x3), 36 instead of 100 of F(2x2, 5x5)."""
    for taps, points in ((3, 16), (5, 36)):
        shape = ConvShape(1, 2, 12, 12, 3, taps, taps)
        tiles = (shape.out_h // 2) ** 2
        work = BACKEND.expected("winograd_nonfused", shape).work
        assert work
        batched = {operation for operation in work if operation.sizes[:1] == (points,)}
        assert batched == {operators.product(points, 3, 2, tiles)}
