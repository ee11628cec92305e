"""The operators `hpcsweep::convolution*`: an explicit algorithm as torch sees it.

A vendor's library is called with addresses, so torch's profiler, autograd and fake tensors know
nothing of the call. As an operator it has a name in traces, so that kernels can be attributed to
a layer; a shape function; and a gradient. The operators serve every back-end in `ENGINES`.

`geometry` is algorithm, stride, padding, dilation, groups, and whether tensors are NHWC; `size` is
that of the result of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from hpcsweep.conv.backend import Direction
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape

NAMES: Final[Mapping[Direction, str]] = {
    Direction.FORWARD: "hpcsweep::convolution",
    Direction.DATA: "hpcsweep::convolution_data_gradient",
    Direction.FILTER: "hpcsweep::convolution_filter_gradient",
}
_GEOMETRY: Final = (
    "str backend, str algorithm, int[2] stride, int[2] padding, int[2] dilation, int groups, "
    "bool nhwc"
)
_OPERANDS: Final[Mapping[Direction, str]] = {
    Direction.FORWARD: "Tensor x, Tensor weight",
    Direction.DATA: "Tensor grad, Tensor weight, SymInt[] size",
    Direction.FILTER: "Tensor grad, Tensor x, SymInt[] size",
}


class Engine(Protocol):
    """What runs the calls of the operators."""

    def compute(
        self,
        way: Direction,
        first: Tensor,
        second: Tensor,
        size: Sequence[int] | None,
        algorithm: str,
        *steps: Any,  # noqa: ANN401 - stride, padding, dilation, groups, whether NHWC
    ) -> Tensor:
        """Return the result of a convolution, or of one of its gradients, which has a `size`."""


ENGINES: Final[dict[str, Engine]] = {}  # by the name that an operator is given
_library: Final = torch.library.Library("hpcsweep", "DEF")


def shape_of(
    dtype: torch.dtype, x: Sequence[int], weight: Sequence[int], geometry: tuple[Any, ...]
) -> ConvShape:
    """Return the shape of an operator's arguments, without its bias, which torch adds."""
    _, stride, padding, dilation, groups, nhwc = geometry
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


def _forward(x: Tensor, weight: Tensor, backend: str, *geometry: Any) -> Tensor:  # noqa: ANN401
    return ENGINES[backend].compute(Direction.FORWARD, x, weight, None, *geometry)


def _fake_forward(x: Tensor, weight: Tensor, _: str, *geometry: Any) -> Tensor:  # noqa: ANN401
    shape = shape_of(x.dtype, x.shape, weight.shape, geometry)
    return empty(x, shape.output_size, nhwc=geometry[-1])


def _gradient(way: Direction) -> Callable[..., Tensor]:
    def compute(
        grad: Tensor,
        second: Tensor,
        size: Sequence[int],
        backend: str,
        *geometry: Any,  # noqa: ANN401
    ) -> Tensor:
        return ENGINES[backend].compute(way, grad, second, size, *geometry)

    return compute


def _fake_gradient(grad: Tensor, _second: Tensor, size: Sequence[int], *geometry: Any) -> Tensor:  # noqa: ANN401
    return empty(grad, size, nhwc=geometry[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401, ARG001
    x, weight, *ctx.geometry = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    x, weight = ctx.saved_tensors
    ops = torch.ops.hpcsweep
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    of_x = of_weight = None
    if wants_x:
        of_x = ops.convolution_data_gradient(grad, weight, x.shape, *ctx.geometry)
    if wants_weight:
        of_weight = ops.convolution_filter_gradient(grad, x, weight.shape, *ctx.geometry)
    return (of_x, of_weight, *(None for _ in ctx.geometry))


def _register() -> None:
    for way, name in NAMES.items():
        _library.define(f"{name.partition('::')[2]}({_OPERANDS[way]}, {_GEOMETRY}) -> Tensor")
        forward = way is Direction.FORWARD
        for device in ("CPU", "CUDA"):
            _library.impl(name, _forward if forward else _gradient(way), device)
        fake = _fake_forward if forward else _fake_gradient
        torch.library.register_fake(name, fake, lib=_library)
    torch.library.register_autograd(
        NAMES[Direction.FORWARD], _backward, setup_context=_keep, lib=_library
    )


_register()
