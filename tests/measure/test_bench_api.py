"""What becomes of a point besides a row."""

from __future__ import annotations

import pytest

from hpcsweep.measure.bench_api import Measurement, OutOfMemory


@pytest.mark.parametrize(
    ("peak", "limit", "detail", "text"),
    [
        (3 << 29, 1 << 32, "", "out of memory (peak 1.50 GiB, limit 4.00 GiB)"),
        (None, 1 << 30, "at once", "out of memory (peak unknown, limit 1.00 GiB): at once"),
    ],
)
def test_running_out_of_memory_says_how_much_there_was(peak, limit, detail, text):
    """What is unknown is called so."""
    error = OutOfMemory(peak, limit, detail)
    assert str(error) == text
    assert (error.peak, error.limit) == (peak, limit)


def test_the_worker_gets_a_row_alone_where_there_is_nothing_else():
    """No layers, no raw times, no proof."""
    done = Measurement({"n": 1})
    assert (done.layers, done.samples, done.proof) == ([], [], None)
