"""A time that a GPU cannot reach at its peak is told from one that is only good."""

from __future__ import annotations

from collections import Counter

import pytest

from hpcsweep.catalog import limits
from hpcsweep.conv.shape import ConvShape
from hpcsweep.importing import finddb, submission, table
from paths import FACTS

LARGE = ConvShape(64, 256, 56, 56, 256, 3, 3, 1, 1, 1, 1)


def row(shape=LARGE, **cells):
    """Return the layer row of a convolution on a V100."""
    return {**submission.work_cells(shape), "gpu": "v100", "direction": "forward", **cells}


def seconds_at_peak(shape=LARGE, tflops=15.7):
    """Return what the definition needs, in milliseconds."""
    return submission.work_cells(shape)["flops"] / tflops / 1e9


@pytest.mark.parametrize(
    ("algorithm", "saves"),
    [
        ("direct", 1.0),
        ("implicit_precomp_gemm", 1.0),
        ("winograd", 5.0625),  # F(6x6,3x3)
        ("winograd_nonfused", 5.0625),
        ("fft", 5.0),
        ("unknown", 5.0625),
        ("gemm or winograd", 5.0625),
    ],
)
def test_an_algorithm_may_be_as_fast_as_its_products_are_few(algorithm, saves):
    """Ten per cent above the peak is a clock; half of that time again is a mistake."""
    fast = seconds_at_peak() / saves
    assert not limits.is_impossible(row(algorithm_used=algorithm, median_ms=fast / 1.1))
    assert limits.is_impossible(row(algorithm_used=algorithm, median_ms=fast / 2.0))


def test_a_tile_of_a_library_is_no_mistake():
    """CuDNN's F(5x5,5x5) has 81 products for 625; an FFT of a large filter saves two thirds."""
    shape = ConvShape(64, 64, 56, 56, 64, 5, 5, 1, 1, 2, 2)
    ms = seconds_at_peak(shape) * 81 / 625
    assert not limits.is_impossible(row(shape, algorithm_used="winograd_nonfused", median_ms=ms))
    large = ConvShape(64, 64, 56, 56, 64, 11, 11, 1, 1, 5, 5)
    ms = seconds_at_peak(large) / 80
    assert not limits.is_impossible(row(large, algorithm_used="fft", median_ms=ms))
    strided = ConvShape(64, 64, 56, 56, 64, 11, 11, 4, 4, 5, 5)
    assert limits.is_impossible(
        row(strided, algorithm_used="fft", median_ms=seconds_at_peak(strided) / 80)
    )


def test_filter_taps_beside_the_image_need_no_product():
    """Of a 3x3 filter on one pixel, one tap lies on it; the formula counts nine."""
    pixel = ConvShape(4096, 4096, 1, 1, 4096, 3, 3, 1, 1, 1, 1)
    fast = row(pixel, algorithm_used="direct", median_ms=seconds_at_peak(pixel) / 9)
    assert not limits.is_impossible(fast)
    assert limits.is_impossible({**fast, "median_ms": fast["median_ms"] / 2})
    unknown = {**row(median_ms=seconds_at_peak() / 3, algorithm_used="direct"), "pad_h": ""}
    assert not limits.is_impossible(unknown)  # more of it may be border


def test_a_type_has_the_peak_of_the_fastest_unit_that_takes_it():
    """Tensor cores for half precision, and TF32; a chip without them computes it in float32."""
    half = ConvShape(*(64, 256, 56, 56, 256, 1, 1), dtype="float16")
    tensor = seconds_at_peak(half, 125.0)
    assert not limits.is_impossible(row(half, median_ms=tensor))
    assert limits.is_impossible(row(half, median_ms=tensor / 2))
    mixed = row(half, dtype="float32", amp="fp16", median_ms=tensor)
    assert not limits.is_impossible(mixed)
    assert limits.is_impossible({**mixed, "amp": "off"})
    tf32 = row(gpu="a100", median_ms=seconds_at_peak(tflops=156.0), algorithm_used="direct")
    assert not limits.is_impossible(tf32)
    slow = row(half, gpu="p4", median_ms=seconds_at_peak(half, 5.5))  # 0.086 TFLOP/s in halves
    assert not limits.is_impossible(slow)


@pytest.mark.parametrize("ms", [1e-6, 1e-9, 5e-324, "1e-300"])
def test_no_launch_ends_within_a_load(ms):
    """However small the convolution is, and whatever is known of it; the text of a table, too."""
    assert limits.is_impossible(row(ConvShape(1, 1, 4, 4, 1, 1, 1), median_ms=ms))
    assert limits.is_impossible(
        {"op": "convolution", "device_name": "Tesla V100-SXM2-16GB", "mean_ms": ms}
    )
    assert not limits.is_impossible({"op": "dropout", "gpu": "v100", "mean_ms": ms})


def test_bytes_cannot_be_faster_than_any_cache():
    """A convolution of few products moves its operands; with a stride it may not read them all."""
    thin = ConvShape(256, 64, 112, 112, 64, 1, 1, groups=64)
    assert limits.is_impossible(row(thin, median_ms=0.01))
    assert not limits.is_impossible(row(thin, median_ms=1.0))
    strided = ConvShape(256, 64, 112, 112, 64, 1, 1, 8, 8, groups=64)
    assert not limits.is_impossible(row(strided, median_ms=0.01))


def test_nothing_is_said_of_an_unknown_device_nor_of_no_time():
    """Without a sheet there is no peak; an empty, negative or broken cell is no time."""
    assert not limits.is_impossible(row(gpu="abacus", median_ms=1e-9))
    assert not limits.is_impossible(row(gpu="", median_ms=1e-9))
    for cell in (None, "", "nan", -1.0, 0, "inf", "x"):
        assert not limits.is_impossible(row(median_ms=cell))


def test_the_flag_of_a_row_is_believed():
    """Whoever flagged it knew the device."""
    assert limits.is_impossible({"flags": "foreign;impossible", "gpu": "abacus"})


def test_no_time_of_a_real_gpu_is_impossible():
    """Of four GPUs that MIOpen measured, three of NeuSight and three of DeepBench."""
    rows = []
    for path in (FACTS / "miopen").glob("*.bz2"):
        rows += finddb.read_rows(path, finddb.sweep_name(path), Counter())
    for path in (FACTS / "neusight").glob("*.gz"):
        rows += table.read_rows(path, table.read_columns("neusight"), "", Counter())
    deepbench = FACTS / "deepbench" / "convolutions.csv"
    rows += table.read_rows(deepbench, table.read_columns("deepbench"), "", Counter())
    assert len(rows) > 5000
    assert not [each for each in rows if limits.is_impossible(each)]
    far = [each for each in rows if limits.is_impossible({**each, "median_ms": 1e-6})]
    assert len(far) == len(rows)  # all have a sheet
