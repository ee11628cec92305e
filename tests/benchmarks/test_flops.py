"""Operations are those that torch's counter counts."""

from __future__ import annotations

import pytest

from benchmarks import flops


def _at_length(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "batch", "height", "width"),
    [
        ("alexnet", 3, 97, 131),
        ("squeezenet1_1", 5, 31, 47),
        ("mixed (transposed, 1-D, 3-D, functional)", 3, 75, 75),  # grouped and dilated, too
        ("vit of two layers", 2, 75, 75),
        _at_length("resnext50_32x4d", 1, 75, 75),
        _at_length("mobilenet_v3_small", 2, 97, 97),
        _at_length("shufflenet_v2_x0_5", 1, 33, 90),
        _at_length("vit_b_32", 2, 224, 224),
    ],
)
def test_operations_are_those_of_torchs_counter(name, batch, height, width):
    """In total, of convolutions, of matrix products, and layer by layer: the same integers."""
    shapes, differ, counted = flops.compared(name, batch, height, width)
    assert not differ
    assert shapes.flops == sum(counted.values()) > 0
