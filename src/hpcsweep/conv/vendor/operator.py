"""The operators `hpcsweep::convolution*`: an explicit algorithm as torch sees it.

A vendor's library is called through addresses, which torch's profiler, autograd, fake tensors and
graphs know nothing of. As operators the calls have a name in traces, so that their kernels are told
apart per layer; a shape function; and a gradient. They serve every back-end of `ENGINES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMESPACE: Final = "hpcsweep"
CONVOLUTION: Final = "hpcsweep::convolution"

_GEOMETRY: Final = (
    "str backend, str algorithm, int[2] stride, int[2] padding, int[2] dilation, int groups, "
    "bool nhwc"
)
_SCHEMAS: Final = {
    "convolution": f"(Tensor x, Tensor weight, {_GEOMETRY}) -> Tensor",
    "convolution_data_gradient": (
        f"(Tensor grad, Tensor weight, SymInt[] size, {_GEOMETRY}) -> Tensor"
    ),
    "convolution_filter_gradient": (
        f"(Tensor grad, Tensor x, SymInt[] size, {_GEOMETRY}) -> Tensor"
    ),
}


class Engine(Protocol):
    """Computes the three convolutions of a layer with a named algorithm.

    `geometry` is algorithm, stride, padding, dilation, groups, and whether tensors are NHWC;
    `size` is that of the result.
    """

    def forward_of(self, x: Tensor, weight: Tensor, *geometry: Any) -> Tensor:  # noqa: ANN401
        """Return the output of a layer."""
        ...

    def data_gradient(
        self,
        grad: Tensor,
        weight: Tensor,
        size: Sequence[int],
        *geometry: Any,  # noqa: ANN401
    ) -> Tensor:
        """Return the gradient of the input."""
        ...

    def filter_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        size: Sequence[int],
        *geometry: Any,  # noqa: ANN401
    ) -> Tensor:
        """Return the gradient of the filters."""
        ...


ENGINES: Final[dict[str, Engine]] = {}

_library: Final = torch.library.Library(NAMESPACE, "DEF")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema)


def _convolution(x: Tensor, weight: Tensor, backend: str, *geometry: Any) -> Tensor:  # noqa: ANN401
    return ENGINES[backend].forward_of(x, weight, *geometry)


def _data_gradient(
    grad: Tensor,
    weight: Tensor,
    size: Sequence[int],
    backend: str,
    *geometry: Any,  # noqa: ANN401
) -> Tensor:
    return ENGINES[backend].data_gradient(grad, weight, size, *geometry)


def _filter_gradient(
    grad: Tensor,
    x: Tensor,
    size: Sequence[int],
    backend: str,
    *geometry: Any,  # noqa: ANN401
) -> Tensor:
    return ENGINES[backend].filter_gradient(grad, x, size, *geometry)


for _device in ("CPU", "CUDA"):
    _library.impl("convolution", _convolution, _device)
    _library.impl("convolution_data_gradient", _data_gradient, _device)
    _library.impl("convolution_filter_gradient", _filter_gradient, _device)


def empty(like: Tensor, size: Sequence[int], *, nhwc: bool) -> Tensor:
    """Return a tensor to write a result to, made in its layout: converting it would be a kernel."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=layout)


@torch.library.register_fake("hpcsweep::convolution", lib=_library)
def _fake(  # noqa: PLR0913, PLR0917 - a convolution has so many
    x: Tensor,
    weight: Tensor,
    backend: str,  # noqa: ARG001
    algorithm: str,  # noqa: ARG001
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,  # noqa: ARG001
    nhwc: bool,  # noqa: FBT001
) -> Tensor:
    spatial = [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i]
        + 1
        for i in range(2)
    ]
    return empty(x, (x.shape[0], weight.shape[0], *spatial), nhwc=nhwc)


@torch.library.register_fake("hpcsweep::convolution_data_gradient", lib=_library)
def _fake_data(grad: Tensor, _weight: Tensor, size: Sequence[int], *geometry: Any) -> Tensor:  # noqa: ANN401
    return empty(grad, size, nhwc=geometry[-1])


@torch.library.register_fake("hpcsweep::convolution_filter_gradient", lib=_library)
def _fake_filter(grad: Tensor, _x: Tensor, size: Sequence[int], *geometry: Any) -> Tensor:  # noqa: ANN401
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


torch.library.register_autograd(CONVOLUTION, _backward, setup_context=_keep, lib=_library)
