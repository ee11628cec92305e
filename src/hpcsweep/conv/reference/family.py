"""What an algorithm of operators is: how it computes, and what proves that it did.

Below stand the padding, the windows and the cached constants that the algorithms share.

A new algorithm is a subclass of `OperatorFamily` with two methods (`convolve`, and `steps` or
`expected`), an entry in `FAMILIES` of this package, and its row in `catalog/algorithms.csv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import ClassVar, Final, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep.conv.backend import FRAMEWORK_BACKWARD, FRAMEWORK_FORWARD, Expected, Operation
from hpcsweep.conv.shape import NHWC, ConvShape, Pair, layout_of

P = ParamSpec("P")
R = TypeVar("R")
# types whose sums lose digits unless they are kept in float32
_REDUCED: Final = (torch.float16, torch.bfloat16)


class OperatorFamily:
    """An algorithm made of PyTorch operators, which autograd goes through.

    `one_sum` says that a single matrix product does all additions of an output value. GEMMs
    accumulate in float32, so such a family computes in the operands' reduced type. The others
    compute in float32 and round once. On a CPU, float16 is always computed in float32, since a
    float16 GEMM is tens of times slower there.
    """

    one_sum: ClassVar[bool] = False

    def unsupported(self, shape: ConvShape, device_type: str) -> str | None:  # noqa: ARG002
        """Return None if the algorithm can do the shape there, else the reason in a few words."""
        return None

    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Return the output without bias, in the operands' type."""
        raise NotImplementedError

    def steps(self, shape: ConvShape) -> Iterable[Operation]:
        """Return the operations of a call that tell the algorithm from others, by their sizes."""
        raise NotImplementedError

    def expected(self, shape: ConvShape) -> Expected:
        """Want the steps, and no other operation that tells."""
        return Expected(work={*self.steps(shape)}, must_not=FRAMEWORK_FORWARD)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvShape) -> Tensor:
        """Convolve in a type that keeps sums exact enough, add the bias, round to the input's."""
        dtype = x.dtype
        is_slow = dtype == torch.float16 and x.device.type == "cpu"
        if dtype in _REDUCED and (is_slow or not self.one_sum):
            dtype = torch.float32
        out = self.convolve(x.to(dtype), weight.to(dtype), shape)
        if bias is not None:
            out = out + bias.to(dtype).view(-1, 1, 1)
        layout = torch.contiguous_format
        if layout_of(x, weight) == NHWC:
            layout = torch.channels_last
        return out.to(x.dtype).contiguous(memory_format=layout)

    def gradient(self) -> Expected:
        """Return what the profiler must see in a gradient: here, what autograd makes of it."""
        return Expected(must_not=(FRAMEWORK_BACKWARD,))


def needs_unit_steps(shape: ConvShape, who: str) -> str | None:
    """Return why a transform cannot do a shape whose stride or dilation is not 1."""
    if shape.stride != (1, 1):
        return f"stride {shape.stride_h}x{shape.stride_w}: {who} needs 1x1"
    if shape.dilation != (1, 1):
        return f"dilation {shape.dilation_h}x{shape.dilation_w}: {who} needs 1x1"
    return None


# A block of work that stays in the caches of a core, roughly. Smaller blocks are more calls of
# torch's operators, each of which costs microseconds; larger ones go to memory and back.
BLOCK_BYTES = 1 << 22
# More than a network needs, since to make one within a pass is work that no algorithm accounts for;
# a sweep must not pile up those of sizes past.
_CONSTANTS = 128


def constant(make: Callable[P, R]) -> Callable[P, R]:
    """Cache tensors that depend on the shape alone.

    They are made outside of inference mode, even if the first caller is in it: a tensor made inside
    can never take part in autograd.
    """

    @wraps(make)
    def ordinary(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(mode=False), torch.no_grad():
            return make(*args, **kwargs)

    return lru_cache(maxsize=_CONSTANTS)(ordinary)  # type: ignore[return-value]


def pad(x: Tensor, shape: ConvShape, height: int, width: int) -> Tensor:
    """Return the zero-padded input, `height` x `width`, the shape's padding at top and left.

    The size may be more than the shape's own padding gives (tiles that hang over) or less (pixels
    that a stride never reaches).
    """
    bottom = height - shape.in_h - shape.pad_h
    right = width - shape.in_w - shape.pad_w
    padding = (shape.pad_w, right, shape.pad_h, bottom)
    return x if padding == (0, 0, 0, 0) else F.pad(x, padding)


def pad_fully(x: Tensor, shape: ConvShape) -> Tensor:
    """Return the input with the shape's padding on all four sides."""
    height = shape.in_h + 2 * shape.pad_h
    width = shape.in_w + 2 * shape.pad_w
    return pad(x, shape, height, width)


def tiles(x: Tensor, shape: ConvShape, size: Pair, step: Pair) -> Tensor:
    """Return overlapping tiles that cover the output: a view (n, in_c, rows, columns, *size).

    Tile (i, j) starts at (i * step[0], j * step[1]) of the padded input and yields `step` output
    pixels each way.
    """
    height, width = size
    down, across = step
    rows, columns = tile_count(shape, step)
    x = pad(x, shape, (rows - 1) * down + height, (columns - 1) * across + width)
    x = x.unfold(2, height, down)
    return x.unfold(3, width, across)


def tile_count(shape: ConvShape, step: Pair) -> Pair:
    """Return how many tiles cover the output, down and across."""
    down, across = step
    return -(-shape.out_h // down), -(-shape.out_w // across)  # rounded up


def join(y: Tensor, shape: ConvShape) -> Tensor:
    """Lay output tiles (n, out_c, rows, height, columns, width) side by side and crop."""
    n, out_c, rows, height, columns, width = y.shape
    image = y.reshape(n, out_c, rows * height, columns * width)
    return image[:, :, : shape.out_h, : shape.out_w]


def cat(blocks: list[Tensor], dim: int) -> Tensor:
    """Join blocks of work; a single one is not copied."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim)


def pieces(total: int, most: int) -> list[int]:
    """Return the sizes of the pieces that `Tensor.split` makes."""
    return [min(most, total - done) for done in range(0, total, most)]
