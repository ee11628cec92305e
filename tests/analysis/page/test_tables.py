"""The tables of a page."""

from __future__ import annotations

import pandas as pd
import pytest

import manypoints
from hpcsweep.analysis import dataset
from hpcsweep.analysis.page import frames, tables

SMALL = manypoints.SWEEP.replace("num: 50", "num: 3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a sweep of two GPUs, of which some points ran out of memory."""
    return dataset.read(manypoints.collected(tmp_path_factory.mktemp("tables"), SMALL))


def texts(table):
    """Return what a reader sees."""
    return [[text for text, _ in row] for row in table.rows]


def test_every_point_has_a_row_measured_or_not(data):
    """A cell without a value is empty."""
    every = pd.concat([data.rows, data.failed])
    table = tables.points(every, frames.layout(data.rows))
    heads = [name for name, _ in table.heads]
    rows = [dict(zip(heads, row, strict=True)) for row in texts(table)]
    assert len(rows) == len(every)
    assert heads[:5] == ["gpu", "model", "algorithm", "input_size", "status"]
    failed = [row for row in rows if row["status"] == "oom"]
    assert len(failed) == 4
    assert {row["median_ms"] for row in failed} == {""}
    assert {row["algorithm"] for row in failed} == {"fft"}


def test_failures_are_counted_with_their_reason(data):
    """As in the report."""
    ((status, reason, points, _first),) = texts(tables.failures(data))
    assert (status, points) == ("oom", "4")
    assert "out of memory" in reason


def test_each_gpu_has_a_column_of_its_environment(data):
    """Device, node, versions: whatever is known."""
    table = tables.environment(data.rows)
    assert [head for _, head in table.heads] == ["", "h100", "v100"]
    rows = {row[0]: row[1:] for row in texts(table)}
    assert rows["device name"] == ["NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB"]
    assert rows["driver version"] == ["550.54", "550.54"]


def test_flags_have_their_meaning_and_a_count():
    """Also those that only explain."""
    rows = pd.DataFrame({"flags": ["noisy;fallback", "noisy", None, ""]})
    assert texts(tables.flags(rows)) == [
        ["noisy", "relative IQR above 10 %", "2"],
        ["fallback", "some convolutions ran another algorithm than the requested one", "1"],
    ]
