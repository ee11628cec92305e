"""The points of the proof on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.gpu import points
from benchmarks.gpu.lab import SMALL, Options


@pytest.mark.parametrize(
    ("options", "sizes"),
    [(Options(), [224, 512, 368]), (Options(sizes=1), [224]), (SMALL, [32, 73])],
)
def test_sizes_begin_at_both_ends_and_are_small_where_a_host_computes(options, sizes):
    """Those of the shipped sweep on a GPU; a part of them tells about all."""
    assert [*points.sizes_of(options).values()] == sizes
