"""The Winograd families: exact matrices, cuDNN's limits, the known savings."""

from __future__ import annotations

from itertools import product

import pytest

from hpcsweep.conv import backend
from hpcsweep.conv.reference import winograd
from hpcsweep.conv.shape import ConvShape
from references import BACKEND


@pytest.mark.parametrize(
    ("algorithm", "kernel", "reason"),
    [
        ("winograd", (3, 3), None),
        ("winograd", (5, 5), "kernel 5x5: needs 3x3"),
        ("winograd_nonfused", (3, 3), None),
        ("winograd_nonfused", (3, 5), "kernel 3x5: needs 3x3"),
    ],
)
def test_winograd_takes_the_filters_that_it_is_written_for(
    algorithm: str, kernel: tuple[int, int], reason: str | None
) -> None:
    """3x3 alone."""
    assert BACKEND.unsupported(algorithm, ConvShape(1, 3, 9, 9, 4, *kernel)) == reason


def test_the_matrices_are_exact() -> None:
    """AT ((G g) * (BT d)) is the correlation for all unit vectors; the numbers are dyadic."""
    for tap, sample in product(range(3), range(4)):
        products = [g[tap] * b[sample] for g, b in zip(winograd.G, winograd.BT, strict=True)]
        found = [sum(a * p for a, p in zip(row, products, strict=True)) for row in winograd.AT]
        assert found == [sample == out + tap for out in range(2)]


def test_winograd_saves_the_multiplications_that_it_is_known_for() -> None:
    """16 instead of 36 per tile of F(2x2, 3x3)."""
    shape = ConvShape(1, 2, 12, 12, 3, 3, 3)
    tiles = (shape.out_h // 2) ** 2
    work = BACKEND.expected("winograd_nonfused", shape).work
    assert work
    batched = {operation for operation in work if operation.sizes[:1] == (16,)}
    assert batched == {backend.product(16, 3, 2, tiles)}
