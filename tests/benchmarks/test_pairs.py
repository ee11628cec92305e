"""What is timed in turns is compared pass by pass."""

from __future__ import annotations

import math

import pytest

from benchmarks import pairs


def test_a_ratio_is_that_of_neighbouring_passes():
    """A machine that becomes five times slower on the way hits both alike."""
    first = [1.0 + (at // 20) for at in range(100)]
    second = [0.8 * ms for ms in first]
    assert pairs.ratio(first, second) == pytest.approx((0.8, 0.8, 0.8))


def test_a_disturbed_pass_moves_no_pair():
    """A pair is that of two medians."""
    first = [2.0] * 100
    second = [3.0, 300.0, *([3.0] * 98)]
    assert pairs.ratio(first, second) == pytest.approx((1.5, 1.5, 1.5))


def test_with_too_few_pairs_there_is_no_interval():
    """As of any median."""
    middle, low, high = pairs.ratio([1.0] * 10, [2.0] * 10)
    assert middle == 2.0
    assert math.isnan(low)
    assert math.isnan(high)
