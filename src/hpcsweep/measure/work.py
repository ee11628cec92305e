"""Columns on work: sizes and operations of layer calls, and a pass's share of the device's peak.

A multiply-add counts as two operations (`flops_convention` 2mac), and only convolutions and matrix
products count, as in torch's FlopCounterMode: ResNet-50 at 224 has 8.178e9. Tools that count
multiply-adds once, or add normalisation and pooling, report 4.09 to 4.13e9.

`bytes_min` are the bytes of a pass in which every layer reads its input and weights once and writes
its output once, as does a convolution or product between layers. With caches a pass may move less,
with most algorithms it moves more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcsweep.catalog import gpus, limits
from hpcsweep.catalog.columns import Row
from hpcsweep.catalog.row_records import LayerCells, WorkCells

if TYPE_CHECKING:
    from torch import nn

    from hpcsweep.measure.machine.rig import Device
    from hpcsweep.measure.shape_pass import LayerCall, Shapes


def call_cells(call: LayerCall) -> LayerCells:
    """Return the layer columns on a call's sizes and work."""
    conv = call.conv
    # some pad before they convolve: then both sides of the convolution itself are told
    into = _image(call.inputs if conv is None else (conv.input_size,))
    out = _image(call.outputs if conv is None else (conv.output_size,))
    cells = LayerCells(
        layer=call.layer or call.op,
        op=call.op,
        unique_key=call.key,
        params=call.params,
        flops=call.flops,
        bytes_min=call.bytes_min,
        in_channels=into[0],
        in_h=into[1],
        in_w=into[2],
        out_channels=out[0],
        out_h=out[1],
        out_w=out[2],
    )
    if conv is None:
        return cells
    return cells | LayerCells(
        kernel_size=_short(conv.kernel_h, conv.kernel_w),
        stride=_short(*conv.stride),
        padding=_short(*conv.padding),
        kernel_h=conv.kernel_h,
        kernel_w=conv.kernel_w,
        stride_h=conv.stride_h,
        stride_w=conv.stride_w,
        pad_h=conv.pad_h,
        pad_w=conv.pad_w,
        dilation_h=conv.dilation_h,
        dilation_w=conv.dilation_w,
        groups=conv.groups,
        bias=conv.bias,
    )


def is_impossible(
    median_ms: float, layers: Sequence[Row], shapes: Shapes, axes: Mapping[str, Any], device: Device
) -> bool:
    """Say whether a pass, or one of its layers, took less than the GPU could need at its peak."""
    gpu = _known_gpu(device)
    if gpu is None:
        return False
    types = {name: axes.get(name) for name in ("dtype", "amp")}
    calls = ({**types, **call_cells(call).filled()} for call in shapes.calls if call.flops)
    least = sum(limits.least_ms(cells, gpu) for cells in calls)
    timed = ({**types, **layer} for layer in layers)
    return median_ms < least or any(limits.is_impossible(each, gpu) for each in timed)


def _known_gpu(device: Device) -> gpus.Gpu | None:
    """Return the catalogue's figures of a GPU; None for one that it lacks, and for a CPU."""
    return gpus.by_device_name(device.name, device.units) if device.type == "cuda" else None


def _image(shapes: tuple[tuple[int, ...], ...]) -> tuple[int | None, int | None, int | None]:
    """Return channels, height and width of the first tensor, if it is an image or a vector."""
    first = shapes[0] if shapes else ()
    if len(first) == 4:
        return first[1:4]
    return (first[1] if len(first) == 2 else None), None, None


def _short(height: int, width: int) -> str:
    return str(height) if height == width else f"{height}x{width}"


def amount_cells(model: nn.Module, shapes: Shapes) -> WorkCells:
    """Return the columns on the work of a forward pass."""
    return WorkCells(
        params=sum(p.numel() for p in model.parameters()),
        flops=shapes.flops,
        macs=shapes.flops // 2,
        flops_convention="2mac",
        bytes_min=shapes.bytes_min,
        arith_intensity=shapes.flops / shapes.bytes_min if shapes.bytes_min else None,
    )


def rate_cells(
    shapes: Shapes,
    median_ms: float,
    axes: Mapping[str, Any],
    device: Device,
    *,
    tensor_cores: bool = True,
) -> WorkCells:
    """Return the columns on the rates of a forward pass that takes `median_ms`.

    Without `tensor_cores`, TF32 and half types have the peak of float32, in which they multiply.
    The shares of the dense peaks are empty for a device that is in no table.
    """
    seconds = median_ms / 1000
    flop_rate = shapes.flops / seconds
    byte_rate = None if shapes.bytes_min is None else shapes.bytes_min / seconds
    rates = WorkCells(
        achieved_tflops=flop_rate / 1e12,
        achieved_gbs=None if byte_rate is None else byte_rate / 1e9,
    )
    gpu = _known_gpu(device)
    if gpu is None:
        return rates
    dtype = axes["dtype"]
    tf32 = axes["tf32"]
    if not tensor_cores:
        dtype = "float64" if dtype == "float64" else "float32"
        tf32 = False
    peak = gpu.peak(dtype, tf32=tf32)
    return rates | WorkCells(
        pct_peak_compute=100 * flop_rate / (peak * 1e12) if peak else None,
        pct_peak_bw=byte_rate and 100 * byte_rate / (gpu.bandwidth_gbs * 1e9),
        peak_source=gpu.name,
    )
