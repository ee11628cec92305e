"""The FFT families: tiles without seams, sizes that are fast to transform."""

from __future__ import annotations

import pytest

from hpcsweep.conv.reference import fft
from hpcsweep.conv.shape import ConvShape
from references import BACKEND, error, operands, truth


@pytest.mark.parametrize(
    ("size", "kernel"),
    [
        (size, kernel)
        for size in ((33, 65), (31, 30), (70, 12), (60, 61))
        for kernel in ((3, 3), (1, 1), (16, 17), (1, 31))
        if kernel[0] <= size[0] and kernel[1] <= size[1]
    ],
)
def test_tiles_of_an_fft_meet_without_a_seam(
    size: tuple[int, int], kernel: tuple[int, int]
) -> None:
    """Images just around multiples of a tile's outputs, filters up to larger tiles."""
    shape = ConvShape(1, 2, *size, 3, *kernel)
    x, weight, bias = operands(shape)
    found = BACKEND.forward("fft_tiling", x, weight, bias, shape)
    assert error(found, truth(x, weight, bias, shape)) < 2e-6


def test_fft_sizes_have_small_prime_factors_only() -> None:
    """Never smaller than asked, and never far above."""
    for size in range(1, 600):
        smooth = fft.smooth(size)
        assert size <= smooth <= size * 1.15
        rest = smooth
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        assert rest == 1
