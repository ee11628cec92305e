"""Padding and sliding windows that the families of the reference back-end share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep.conv.shape import ConvShape

P = ParamSpec("P")
R = TypeVar("R")

# a block of work that stays in a core's second-level cache, roughly
BLOCK_BYTES = 1 << 22
# More than a network needs, since to make one within a pass is work that no algorithm accounts for;
# a sweep must not pile up those of sizes past.
_CONSTANTS = 128


def constant(make: Callable[P, R]) -> Callable[P, R]:
    """Cache tensors that depend on the shape alone.

    They are made outside of inference mode, even if the first caller is in it: a tensor made inside
    can never take part in autograd.
    """

    @functools.wraps(make)
    def ordinary(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(mode=False), torch.no_grad():
            return make(*args, **kwargs)

    return functools.lru_cache(maxsize=_CONSTANTS)(ordinary)  # type: ignore[return-value]


def pad(x: torch.Tensor, shape: ConvShape, height: int, width: int) -> torch.Tensor:
    """Return the zero-padded input, `height` x `width`, the shape's padding at top and left.

    The size may be more than the shape's own padding gives (tiles that hang over) or less (pixels
    that a stride never reaches).
    """
    bottom = height - shape.in_h - shape.pad_h
    right = width - shape.in_w - shape.pad_w
    if (shape.pad_w, right, shape.pad_h, bottom) == (0, 0, 0, 0):
        return x
    return F.pad(x, (shape.pad_w, right, shape.pad_h, bottom))


def pad_fully(x: torch.Tensor, shape: ConvShape) -> torch.Tensor:
    """Return the input with the shape's padding on all four sides."""
    return pad(x, shape, shape.in_h + 2 * shape.pad_h, shape.in_w + 2 * shape.pad_w)


def tiles(
    x: torch.Tensor, shape: ConvShape, size: tuple[int, int], step: tuple[int, int]
) -> torch.Tensor:
    """Return overlapping tiles that cover the output: a view (n, in_c, rows, columns, *size).

    Tile (i, j) starts at (i * step[0], j * step[1]) of the padded input and yields `step` output
    pixels each way.
    """
    rows, columns = tile_count(shape, step)
    x = pad(x, shape, (rows - 1) * step[0] + size[0], (columns - 1) * step[1] + size[1])
    return x.unfold(2, size[0], step[0]).unfold(3, size[1], step[1])


def tile_count(shape: ConvShape, step: tuple[int, int]) -> tuple[int, int]:
    """Return how many tiles cover the output, down and across."""
    return -(-shape.out_h // step[0]), -(-shape.out_w // step[1])


def join(y: torch.Tensor, shape: ConvShape) -> torch.Tensor:
    """Lay output tiles (n, out_c, rows, height, columns, width) side by side and crop."""
    n, out_c, rows, height, columns, width = y.shape
    image = y.reshape(n, out_c, rows * height, columns * width)
    return image[:, :, : shape.out_h, : shape.out_w]


def cat(blocks: list[torch.Tensor], dim: int) -> torch.Tensor:
    """Join blocks of work; a single one is not copied."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim)


def parts(total: int, most: int) -> list[int]:
    """Return the sizes of the pieces that `Tensor.split` makes."""
    return [min(most, total - done) for done in range(0, total, most)]
