"""The operators `hpcsweep::convolution*`: an explicit algorithm as torch sees it.

A vendor's library is called with addresses, so torch's profiler, autograd and fake tensors know
nothing of the call. As an operator it has a name in traces, so that kernels can be attributed to
a layer; a shape function; and a gradient. The operators serve every back-end in `ENGINES`.

The operands are input and filters, or a gradient of the output and the other of these two; `size`
is that of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from hpcsweep.conv.backend import Direction
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape

NAMES: Final[Mapping[Direction, str]] = {
    Direction.FORWARD: "hpcsweep::convolution",
    Direction.DATA: "hpcsweep::convolution_data_gradient",
    Direction.FILTER: "hpcsweep::convolution_filter_gradient",
}
_SCHEMA: Final = (
    "(Tensor first, Tensor second, SymInt[] size, str backend, str algorithm, int[2] stride, "
    "int[2] padding, int[2] dilation, int groups, bool nhwc) -> Tensor"
)

# back-ends by the name that an operator is given
ENGINES: Final[dict[str, Any]] = {}
_library: Final = torch.library.Library("hpcsweep", "DEF")


def shape_of(
    dtype: torch.dtype, x: Sequence[int], weight: Sequence[int], geometry: tuple[Any, ...]
) -> ConvShape:
    """Return the shape of an operator's arguments, without its bias, which torch adds."""
    stride, padding, dilation, groups, nhwc = geometry
    return ConvShape(
        *(x[0], x[1], x[2], x[3], weight[0], weight[2], weight[3]),
        *(stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1]),
        groups,
        dtype=str(dtype).removeprefix("torch."),
        layout=NHWC if nhwc else NCHW,
    )


def empty(like: Tensor, size: Sequence[int], *, nhwc: bool) -> Tensor:
    """Return a tensor to write a result to, made in its layout: converting it would be a kernel."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=layout)


def _compute(
    way: Direction,
    first: Tensor,
    second: Tensor,
    size: Sequence[int],
    backend: str,
    *how: Any,  # noqa: ANN401
) -> Tensor:
    result: Tensor = ENGINES[backend].compute(way, first, second, size, *how)
    return result


def _fake(first: Tensor, _second: Tensor, size: Sequence[int], *how: Any) -> Tensor:  # noqa: ANN401
    return empty(first, size, nhwc=how[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401, ARG001
    x, weight, _, *ctx.how = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    x, weight = ctx.saved_tensors
    ops = torch.ops.hpcsweep
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    of_x = of_weight = None
    if wants_x:
        of_x = ops.convolution_data_gradient(grad, weight, x.shape, *ctx.how)
    if wants_weight:
        of_weight = ops.convolution_filter_gradient(grad, x, weight.shape, *ctx.how)
    return (of_x, of_weight, None, *(None for _ in ctx.how))


for _way, _name in NAMES.items():
    _library.define(_name.partition("::")[2] + _SCHEMA)
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, partial(_compute, _way), _device)
    torch.library.register_fake(_name, _fake, lib=_library)
torch.library.register_autograd(
    NAMES[Direction.FORWARD], _backward, setup_context=_keep, lib=_library
)
