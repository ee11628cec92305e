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
    inputs = call.inputs
    outputs = call.outputs
    if conv is not None:
        # some pad before they convolve: then both sides of the convolution itself are told
        inputs = (conv.input_size,)
        outputs = (conv.output_size,)
    in_channels, in_h, in_w = _image(inputs)
    out_channels, out_h, out_w = _image(outputs)
    cells = LayerCells(
        layer=call.layer or call.op,
        op=call.op,
        unique_key=call.key,
        params=call.params,
        flops=call.flops,
        bytes_min=call.bytes_min,
        in_channels=in_channels,
        in_h=in_h,
        in_w=in_w,
        out_channels=out_channels,
        out_h=out_h,
        out_w=out_w,
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
    types = {"dtype": axes.get("dtype"), "amp": axes.get("amp")}
    for layer in layers:
        if limits.is_impossible({**types, **layer}, gpu):
            return True
    least = 0.0
    for call in shapes.calls:
        if call.flops:
            least += limits.least_ms({**types, **call_cells(call).filled()}, gpu)
    return median_ms < least


def _known_gpu(device: Device) -> gpus.Gpu | None:
    """Return the catalogue's figures of a GPU; None for one that it lacks, and for a CPU."""
    return gpus.by_device_name(device.name, device.units) if device.type == "cuda" else None


def _image(shapes: tuple[tuple[int, ...], ...]) -> tuple[int | None, int | None, int | None]:
    """Return channels, height and width of the first tensor, if it is an image or a vector."""
    first = shapes[0] if shapes else ()
    if len(first) == 4:
        return first[1:4]
    if len(first) == 2:
        return first[1], None, None
    return None, None, None


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
    tflops = shapes.flops / 1e12 / seconds
    gbs = None if shapes.bytes_min is None else shapes.bytes_min / 1e9 / seconds
    rates = WorkCells(achieved_tflops=tflops, achieved_gbs=gbs)
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
        pct_peak_compute=100 * tflops / peak if peak else None,
        pct_peak_bw=100 * gbs / gpu.bandwidth_gbs if gbs else gbs,
        peak_source=gpu.name,
    )
