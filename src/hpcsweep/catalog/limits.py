"""Which times cannot be: shorter than the GPU of the row could need at its peak.

No algorithm multiplies less than it must. A direct one, or one by matrix products, has a product
for each filter tap that lies on the image. Winograd's F(m, r) has m + r - 1 products for m outputs
of r taps (Winograd, "Arithmetic Complexity of Computations", 1980). An FFT of real numbers has half
as many complex products as points, of three real ones each, and more points than outputs: one and a
half products per output, however large the filter is. A stride of s leaves filters of r / s taps.

The peak is that of any unit that may take the type, so a time below is a mistake of a unit, a clock
or a shape. Nothing is known of a device without a sheet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final

from hpcsweep.catalog import SUMS_PLAIN, algorithms_adding, gpus
from hpcsweep.catalog.columns import IMPOSSIBLE
from hpcsweep.catalog.gpus import Gpu

Cells = Mapping[str, Any]

_EVERY_TAP: Final = algorithms_adding(SUMS_PLAIN)
_TILE: Final = 9  # the largest of a library: cuDNN's F(5x5,5x5); rounding grows with it
_COMPLEX: Final = 1.5  # real products of a complex one, 3, by the half of the points
_OF_A_PASS: Final = 5 * 5 / _COMPLEX  # larger filters have strides, or a channel each
# boards of one name differ, and clocks rise above the boost of the sheet
_MARGIN: Final = 1.25
_SPARSE: Final = 2.0  # 2:4 sparsity, of chips that have TF32; the sheets have dense rates
# a cache that all cores share has at most 8 times the rate of the memory (L4, RX 6800 XT)
_CACHE: Final = 16.0
_LATENCY_MS: Final = 1e-4  # a load takes 200 cycles, even from a cache; at 2 GHz
_MUCH_MS: Final = 0.01  # at the peak: a launch is no longer most of it
_SIZES: Final = ("in", "out", "kernel", "stride", "pad", "dilation")
# by torch's names of types, and by those of the axis `amp`
_HALF: Final = {"float16", "bfloat16", "fp16", "bf16"}
_TIMES: Final = ("median_ms", "mean_ms", "min_ms")


def is_impossible(cells: Cells, gpu: Gpu | None = None) -> bool:
    """Say whether a row, of a layer call or a pass, has a shorter time than its GPU could need.

    The GPU is that of the cells unless it is given.
    """
    if IMPOSSIBLE in str(cells.get("flags") or "").split(";"):
        return True
    gpu = gpu or sheet(cells.get("device_name"), cells.get("gpu") or cells.get("device"))
    if gpu is None:
        return False
    ms = _time(cells)
    plain = _plain_ms(cells, gpu)
    # most rows take longer than the definition would: then what saves products need not be known
    return ms < _rest_ms(cells, gpu) or (ms < plain and ms < plain / _saves(cells))


def reached(cells: Cells) -> float:
    """Return the share of the peak that a time reaches; 0 of little work, or an unknown device."""
    gpu = sheet(cells.get("device_name"), cells.get("gpu"))
    plain = _plain_ms(cells, gpu) if gpu else 0.0
    return plain / _time(cells) if plain > _MUCH_MS else 0.0


def _time(cells: Cells) -> float:
    for name in _TIMES:
        time = number(cells, name)
        if time:
            return time
    return math.inf


def least_ms(cells: Cells, gpu: Gpu) -> float:
    """Return the milliseconds that a convolution call, or a pass, needs on a GPU at least."""
    return max(_rest_ms(cells, gpu), _plain_ms(cells, gpu) / _saves(cells))


@cache
def sheet(device_name: str | None, gpu: str | None) -> Gpu | None:
    """Return the sheet of a device, by its name or by that of the axis `gpu`."""
    return gpus.by_device_name(device_name or "") or gpus.sheet(gpu or "")


def _plain_ms(cells: Cells, gpu: Gpu) -> float:
    """Return what the products of the definition need at the peak."""
    amp = str(cells.get("amp"))
    peak = _peak(gpu, amp if amp in _HALF else str(cells.get("dtype")))
    flops = number(cells, "flops")
    if cells.get("direction") == "backward":
        flops /= 2  # of both gradients, and perhaps one alone was needed
    return flops / (1e9 * peak * _MARGIN) if peak else 0.0


def _rest_ms(cells: Cells, gpu: Gpu) -> float:
    """Return what moving the operands needs, and any launch; other layers may do nothing."""
    if not (number(cells, "flops") or str(cells.get("op")).startswith("conv")):
        return 0.0
    if number(cells, "stride_h") > 1 or number(cells, "stride_w") > 1:
        return _LATENCY_MS  # some of the input may not be read
    moved = number(cells, "bytes_min") / (1e6 * gpu.bandwidth_gbs * _CACHE)
    return max(moved, _LATENCY_MS)


@cache
def _peak(gpu: Gpu, dtype: str) -> float:
    """Return the rate of the fastest unit that may take a type, TFLOP/s; 0 for an unknown type.

    What has no unit for half precision multiplies in float32.
    """
    tensor: tuple[float | None, ...] = ()
    if dtype == "float32":
        tensor = (gpu.tf32_tflops,)
    if dtype in _HALF:
        tensor = (gpu.fp16_tflops, gpu.bf16_tflops, gpu.fp32_tflops, gpu.fp32_matrix_tflops)
    sparse = _SPARSE if gpu.tf32_tflops else 1.0
    fastest = max((rate for rate in tensor if rate), default=0.0)
    return max(gpu.peak(dtype) or 0.0, sparse * fastest)


def _saves(cells: Cells) -> float:
    """Return how many times fewer products than the definition an algorithm may do."""
    height = number(cells, "kernel_h")
    width = number(cells, "kernel_w")
    if not height or not width:
        return _OF_A_PASS
    named = str(cells.get("algorithm_used") or cells.get("algorithm") or "")
    names = re.split(r"\+| or ", named)
    every_tap = 1 / (_on_image(cells, "h") * _on_image(cells, "w"))
    if _EVERY_TAP.issuperset(names):
        return every_tap
    down = math.ceil(height / (number(cells, "stride_h") or 1.0))
    across = math.ceil(width / (number(cells, "stride_w") or 1.0))
    winograd = _winograd(down) * _winograd(across)
    if all(name.startswith("winograd") for name in names):
        return winograd
    fft = max(down * across / _COMPLEX, 1.0)
    return max(winograd, fft, every_tap)


@cache
def _winograd(taps: int) -> float:
    """Return how many times fewer products the best tile has; a long filter is cut in parts."""
    longest = min(taps, _TILE)
    return max(length * (_TILE - length + 1) / _TILE for length in range(1, longest + 1))


def _on_image(cells: Cells, side: str) -> float:
    """Return the share of filter taps, of all outputs, that lie on the image, not on its border."""
    names = [f"{name}_{side}" for name in _SIZES]
    known = [cells.get(name) for name in names]
    if None in known or "" in known:
        return 1 / number(cells, f"kernel_{side}")  # one tap of each output
    return _share(tuple(int(number(cells, name)) for name in names))


@lru_cache(maxsize=10_000)  # a table repeats few sizes many times
def _share(sizes: tuple[int, ...]) -> float:
    image, outputs, taps, stride, pad, dilation = sizes
    on_image = 0
    for tap in range(min(taps, image + 2 * pad)):
        offset = tap * dilation - pad
        first = max(0, -(offset // stride))  # the first output whose tap is not before the image
        last = min(outputs - 1, (image - 1 - offset) // stride)
        on_image += max(0, last - first + 1)
    return max(on_image, 1) / (outputs * taps)


def number(cells: Cells, name: str) -> float:
    """Return a positive cell, of a row or of a table's text; 0 for any other."""
    try:
        value = float(cells.get(name) or 0.0)
    except (TypeError, ValueError):
        return 0.0
    return value if 0 < value < math.inf else 0.0
