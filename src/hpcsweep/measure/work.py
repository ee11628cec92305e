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

if TYPE_CHECKING:
    from torch import nn

    from hpcsweep.measure.machine.provenance import Device
    from hpcsweep.measure.shape_pass import LayerCall, Shapes


def call_cells(call: LayerCall) -> Row:
    """Return the layer columns on a call's sizes and work."""
    cells: Row = {
        "layer": call.layer or call.op,
        "op": call.op,
        "unique_key": call.key,
        "params": call.params,
        "flops": call.flops,
        "bytes_min": call.bytes_min,
        **_image_cells(call.inputs, "in"),
        **_image_cells(call.outputs, "out"),
    }
    conv = call.conv
    if conv is None:
        return cells
    # some pad before they convolve: then both sides of the convolution itself are told
    cells |= _image_cells((conv.input_size,), "in") | _image_cells((conv.output_size,), "out")
    names = ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")
    for name in (*names, "dilation_h", "dilation_w", "groups", "bias"):
        cells[name] = getattr(conv, name)
    cells["kernel_size"] = _short(conv.kernel_h, conv.kernel_w)
    cells["stride"] = _short(*conv.stride)
    cells["padding"] = _short(*conv.padding)
    return cells


def is_impossible(
    row: Row, layers: Sequence[Row], shapes: Shapes, axes: Mapping[str, Any], device: Device
) -> bool:
    """Say whether a pass, or one of its layers, took less than the GPU could need at its peak."""
    gpu = _known_gpu(device)
    if gpu is None:
        return False
    types = {name: axes.get(name) for name in ("dtype", "amp")}
    calls = ({**types, **call_cells(call)} for call in shapes.calls if call.flops)
    least = sum(limits.least_ms(cells, gpu) for cells in calls)
    timed = ({**types, **layer} for layer in layers)
    return row["median_ms"] < least or any(limits.is_impossible(each, gpu) for each in timed)


def _known_gpu(device: Device) -> gpus.Gpu | None:
    """Return the catalogue's figures of a GPU; None for one that it lacks, and for a CPU."""
    return gpus.by_device_name(device.name, device.units) if device.type == "cuda" else None


def _image_cells(shapes: tuple[tuple[int, ...], ...], side: str) -> Row:
    """Return channels, height and width of the first tensor, if it is an image or a vector."""
    if not shapes or len(shapes[0]) not in {2, 4}:
        return {}
    names = (f"{side}_channels", f"{side}_h", f"{side}_w")
    return dict(zip(names, shapes[0][1:], strict=False))


def _short(height: int, width: int) -> str:
    return str(height) if height == width else f"{height}x{width}"


def amount_cells(model: nn.Module, shapes: Shapes) -> Row:
    """Return the columns on the work of a forward pass."""
    return {
        "params": sum(p.numel() for p in model.parameters()),
        "flops": shapes.flops,
        "macs": shapes.flops // 2,
        "flops_convention": "2mac",
        "bytes_min": shapes.bytes_min,
        "arith_intensity": shapes.flops / shapes.bytes_min if shapes.bytes_min else None,
    }


def rate_cells(
    shapes: Shapes,
    median_ms: float,
    axes: Mapping[str, Any],
    device: Device,
    *,
    tensor_cores: bool = True,
) -> Row:
    """Return the columns on the rates of a forward pass that takes `median_ms`.

    Without `tensor_cores`, TF32 and half types have the peak of float32, in which they multiply.
    The shares of the dense peaks are empty for a device that is in no table.
    """
    seconds = median_ms / 1000
    dtype = axes["dtype"]
    tf32 = axes["tf32"]
    flop_rate = shapes.flops / seconds
    row: Row = {"achieved_tflops": flop_rate / 1e12}
    byte_rate = None if shapes.bytes_min is None else shapes.bytes_min / seconds
    if byte_rate is not None:
        row["achieved_gbs"] = byte_rate / 1e9
    gpu = _known_gpu(device)
    if gpu is None:
        return row
    if not tensor_cores:
        dtype = "float64" if dtype == "float64" else "float32"
        tf32 = False
    peak = gpu.peak(dtype, tf32=tf32)
    return row | {
        "pct_peak_compute": 100 * flop_rate / (peak * 1e12) if peak else None,
        "pct_peak_bw": byte_rate and 100 * byte_rate / (gpu.bandwidth_gbs * 1e9),
        "peak_source": gpu.name,
    }
