"""A network's distinct convolutions, and a call of each with each algorithm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its own habit

from hpcsweep import catalog
from hpcsweep.conv import backend as backends
from hpcsweep.conv.shape import NHWC, ConvShape
from hpcsweep.measure import model_builder, switches
from hpcsweep.measure.shape_pass import shape_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.gpu.lab import Options
    from hpcsweep.conv.backend import Backend

EXPLICIT: Final = tuple(name for name in catalog.ALGORITHMS if name not in catalog.CHOOSING)
AGAIN: Final = "auto again"  # the control
# what no ResNet has: a large filter, a batch, a depthwise layer
_MORE: Final = (
    ConvShape(1, 64, 56, 56, 64, 5, 5, 1, 1, 2, 2),
    ConvShape(8, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1),
    ConvShape(1, 96, 28, 28, 96, 3, 3, 1, 1, 1, 1, groups=96),
)


def kinds(options: Options) -> dict[str, ConvShape]:
    """Return the network's distinct convolutions, and some more, by key."""
    network = model_builder.build_float32(options.model, enliven=False)
    image = torch.randn(1, 3, options.size, options.size)
    shapes = [shape for _, shape in shape_pass(network, image).convolutions]
    distinct = {shape.unique_key: shape for shape in (*shapes, *_MORE)}
    return dict(list(distinct.items())[: options.shapes])


def full_precision() -> None:
    """Switch TF32 and autotuning off, as for every point that does not ask for them."""
    switches.apply(catalog.axis_defaults("inference"))


def calls(shape: ConvShape, device_type: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Return the framework's own call twice, and one of each algorithm that can do the shape."""
    backend: Backend = backends.choose(device_type)
    x, weight = operands(shape, device_type)
    own = partial(
        F.conv2d,
        *(x, weight, None),
        *((shape.stride_h, shape.stride_w), (shape.pad_h, shape.pad_w)),
        *((shape.dilation_h, shape.dilation_w), shape.groups),
    )
    yield catalog.AUTO, own
    yield AGAIN, own
    for name in EXPLICIT:
        if backend.unsupported(name, shape) is None:
            yield name, partial(backend.forward, name, x, weight, None, shape)


def of_type(shape: ConvShape, dtype: str) -> ConvShape:
    """Return the same convolution in another type; `tf32` is float32 with a switch."""
    return replace(shape, dtype="float32" if dtype == "tf32" else dtype, bias=False)


def layer_of(shape: ConvShape, weight: torch.Tensor) -> nn.Conv2d:
    """Return a layer that has these filters, and no bias."""
    layer = nn.Conv2d(
        *(shape.in_c, shape.out_c, (shape.kernel_h, shape.kernel_w), shape.stride, shape.padding),
        *(shape.dilation, shape.groups),
        bias=False,
        device="meta",
    )
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def operands(shape: ConvShape, device_type: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a random input and random filters."""
    dtype = getattr(torch, shape.dtype)
    layout = torch.channels_last if shape.layout == NHWC else torch.contiguous_format
    sizes = (
        (shape.n, shape.in_c, shape.in_h, shape.in_w),
        (shape.out_c, shape.group_in, shape.kernel_h, shape.kernel_w),
    )
    drawn = (torch.randn(size, device=device_type).to(dtype) for size in sizes)
    x, weight = (tensor.contiguous(memory_format=layout) for tensor in drawn)
    return x, weight
