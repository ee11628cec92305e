"""How much work a pass is, and what part of the device's peak it reached.

A multiply-add counts as two operations (`flops_convention` 2mac), and convolutions and matrix
products count, nothing else: torch's own FlopCounterMode, so ResNet-50 at 224 has 8.178e9. Tools
that count multiply-adds once, or add normalisation and pooling, say 4.09 to 4.13e9.

`bytes_min` is what a pass must move if every layer reads its input and weights once and writes
its output once; caches make it less, and most algorithms make it more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import nn

from hpcsweep.catalog import gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcsweep.catalog.columns import Row
    from hpcsweep.measure.machine.provenance import Device
    from hpcsweep.measure.shape_pass import Shapes

    Sizes = tuple[tuple[int, ...], ...]

CONVENTION = "2mac"


def analytic_flops(module: nn.Module, inputs: Sizes, outputs: Sizes) -> int | None:
    """Return the operations of a convolution or linear layer; None for any other module."""
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        per_output = math.prod(module.kernel_size) * module.in_channels // module.groups
        return 2 * math.prod(outputs[0]) * per_output
    if isinstance(module, nn.Linear):
        return 2 * math.prod(inputs[0]) * module.out_features
    return None


def cells(
    shapes: Shapes,
    params: int,
    median_ms: float,
    axes: Mapping[str, Any],
    device: Device,
) -> Row:
    """Return the work columns of a point."""
    seconds = median_ms / 1000
    flop_rate, byte_rate = shapes.flops / seconds, shapes.bytes_min / seconds
    return {
        "params": params,
        "flops": shapes.flops,
        "macs": shapes.flops // 2,
        "flops_convention": CONVENTION,
        "bytes_min": shapes.bytes_min,
        "arith_intensity": shapes.flops / shapes.bytes_min if shapes.bytes_min else None,
        "achieved_tflops": flop_rate / 1e12,
        "achieved_gbs": byte_rate / 1e9,
        **_peak_cells(flop_rate, byte_rate, axes, device),
    }


def _peak_cells(flop_rate: float, byte_rate: float, axes: Mapping[str, Any], device: Device) -> Row:
    """Return shares of the dense peaks; nothing where the device is in no table."""
    gpu = gpus.by_device_name(device.name, device.units)
    if gpu is None:
        return {}
    peak = gpu.peak(axes["dtype"], tf32=axes["tf32"])
    return {
        "pct_peak_compute": 100 * flop_rate / (peak * 1e12) if peak else None,
        "pct_peak_bw": 100 * byte_rate / (gpu.bandwidth_gbs * 1e9),
        "peak_source": gpu.name,
    }
