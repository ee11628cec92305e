"""Pieces of work, their roofs, their labels, and the reader of profilers' tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hpcsweep.analysis.roofline import roofs
from hpcsweep.analysis.roofline.roofs import Roofs, Source, labels, roofs_of, shortened
from hpcsweep.catalog.gpus import DEVICES, GPUS
from hpcsweep.errors import UsageError


def held(flops, moved, seconds, bounds):
    """Return pieces below their roofs."""
    table = roofs.table_of(pd.DataFrame(flops), id="0", name="k", bytes=moved, seconds=seconds)
    return bounds.held_against(table)


def test_the_roof_is_the_lower_of_memory_and_compute():
    """A piece's share is the least time that it can take over the time it took."""
    roofs = Roofs(1e12, "x", {"fp32": 1e13})
    found = held({"fp32": [1e9, 1e11]}, [1e9, 1e9], [2e-3, 4e-2], roofs)
    assert found["bound"].tolist() == ["memory", "compute"]
    assert found["pct_of_roof"].tolist() == pytest.approx([50, 25])
    assert not found["above_roof"].any()


def test_units_that_work_side_by_side_are_not_added():
    """Tensor cores and FP32 pipes have peaks of their own; the slower one bounds."""
    roofs = Roofs(1e12, "x", {"fp32": 1e13, "tf32 tensor": 1e14})
    found = held({"fp32": [1e10], "tf32 tensor": [1e11]}, [0], [1e-3], roofs)
    assert found["pct_of_roof"].tolist() == pytest.approx([100])
    assert found["flop_per_byte"].isna().all()


@pytest.mark.parametrize("gpu", DEVICES, ids=lambda gpu: gpu.name)
def test_every_device_of_the_table_has_its_dense_roofs(gpu):
    """Units without a figure have no roof; MI250 is one die."""
    roofs = roofs_of(gpu)
    assert roofs.peak("fp32") == gpu.fp32_tflops * 1e12
    assert roofs.peak("float32") == (gpu.fp32_matrix_tflops or gpu.fp32_tflops) * 1e12
    assert roofs.bandwidth == gpu.bandwidth_gbs * 1e9
    if gpu.tf32_tflops is None:
        with pytest.raises(UsageError, match="give --peak-compute"):
            roofs.peak("tf32 tensor")


def test_mi250_is_one_of_two_dies():
    """A module's peak would halve every share."""
    assert roofs_of(GPUS["mi250"]).bandwidth == 1638e9


FILE = Path("x.csv")


def test_rows_are_labelled_with_their_lines():
    """Lines that are no part of the table are empty; cells stay text, commas included."""
    rows = Source(FILE, ["", '"a","b"', "", '"1","2,3"', "", '"","n/a"'], 1).table()
    assert list(rows.columns) == ["a", "b"]
    assert list(rows.index) == ["x.csv, line 4", "x.csv, line 6"]
    assert rows.to_numpy().tolist() == [["1", "2,3"], ["", "n/a"]]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1", "x.csv, line 3: 1 of 2 cells: the export was cut"),
        ("1,2,3", "Expected 2 fields in line 3, saw 3: the export was cut"),
        ('"1","2', "x.csv: unexpected end of data: the export was cut"),
        ('"1"x,2', "the export was cut"),
    ],
)
def test_a_row_that_does_not_fit_the_header_is_refused(row, words):
    """Half of a table is no table."""
    with pytest.raises(UsageError) as told:
        Source(FILE, ["a,b", "", row]).table()
    assert words in str(told.value)


KERNEL = (
    "void at::native::implicit_convolve_sgemm<float, (int)128, (bool)0, at::Array<char *, {}>>"
    "(int, const T1 *, void (*)(int))"
)


def test_long_texts_lose_their_middle():
    """Both ends tell names apart; the width is kept to the character."""
    assert shortened("abc", 3) == "abc"
    assert shortened("a" * 20 + "b" * 20, 11) == "aaaaa...bbb"
    assert [len(shortened("x" * 99, width)) for width in range(8, 60)] == list(range(8, 60))


def test_a_kernel_is_labelled_without_what_every_kernel_has():
    """Return type, namespaces, casts and parameters."""
    name = KERNEL.format(2)
    label = "implicit_convolve_sgemm<float, 128, 0, at::Array<char *, 2>>"
    assert labels([name], 80) == {name: label}
    assert labels(["(anonymous namespace)::k(int)", "sgemm"], 80) == {
        "(anonymous namespace)::k(int)": "k",
        "sgemm": "sgemm",
    }


def test_labels_differ_where_what_is_left_of_names_does_not():
    """Otherwise two kernels would look like one."""
    names = ["void a::k<1>(int)", "void b::k<1>(int)", "void c::k<1>(float)"]
    assert list(labels(names, 20).values()) == ["k<1>", "k<1> #2", "k<1> #3"]
