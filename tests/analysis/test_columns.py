"""Names of columns: units, times and rates."""

from __future__ import annotations

import pytest

from hpcsweep.analysis import columns
from hpcsweep.catalog.columns import OVERALL_COLUMNS


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("median_ms", "median (ms)"),
        ("wall_s", "wall (s)"),
        ("pct_peak_compute", "peak compute (%)"),
        ("achieved_tflops", "achieved (TFLOP/s)"),
        ("input_size", "input size (pixels)"),
        ("mem_peak_bytes", "mem peak (bytes)"),
        ("params", "params"),
    ],
)
def test_axes_are_labelled_with_units(column, words):
    """From the suffix, as docs/results.md says."""
    assert columns.label(column) == words


def test_times_and_rates_are_told_apart():
    """No column is both, and counts are neither."""
    assert not [c for c in OVERALL_COLUMNS if columns.is_time(c) and columns.is_rate(c)]
    assert columns.is_time("forward_ms")
    assert columns.is_rate("throughput_sps")
    assert not columns.is_time("params")
