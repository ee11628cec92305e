"""Winograd's minimal filtering F(2x2, 3x3) in PyTorch operators.

An output tile of 2x2 comes from an input tile of 4x4 with 16 instead of 36 multiplications per pair
of channels. All three transforms are linear; with a tile as a column each is one matrix product
with a Kronecker square, and what remains is a batch of small GEMMs::

    input tiles d   (16, in_c x tiles)      V = (BT (x) BT) d
    filters g       (16, out_c x in_c)      U = (G (x) G) g
    products        16 x (out_c, in_c) (in_c, tiles)
    output tiles    (4, out_c x tiles)      (AT (x) AT) (U V); not fused: rows, then columns

`winograd` does this block by block so that a block's transforms never leave the cache ("fused"), as
cuDNN's kernel of that name; `winograd_nonfused` makes three passes over whole tensors with one
batched product. Filters are 3x3, stride and dilation 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from hpcsweep.conv.backend import Operation, product
from hpcsweep.conv.reference.family import (
    BLOCK_BYTES,
    OperatorFamily,
    cat,
    constant,
    join,
    needs_unit_steps,
    pieces,
    tile_count,
    tiles,
)
from hpcsweep.conv.shape import ConvShape

Matrix = tuple[tuple[float, ...], ...]
# of a tile each way, F(2x2, 3x3); larger tiles multiply less, and lose digits
OUTPUTS: Final = 2
_STEP: Final = (OUTPUTS, OUTPUTS)
_SIDE: Final = 4  # of an input tile
_POINTS: Final = _SIDE * _SIDE
# Lavin and Gray 2016, section 4.1: y = AT ((G g) * (BT d))
AT: Final = ((1, 1, 1, 0), (0, 1, -1, -1))
G: Final = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
BT: Final = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
# of a block: a product with fewer columns does little for its call
_FEWEST_TILES = 64


class Winograd(OperatorFamily):
    """Transforms, multiplies and transforms back a block of tile rows at a time."""

    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Run block by block, so that what is transformed stays in the cache."""
        filters = weight.reshape(-1, shape.taps).t()
        filters = _squared(G, weight.dtype, weight.device) @ filters
        filters = filters.view(-1, shape.group_out, shape.group_in)
        every = tiles(x, shape, (_SIDE, _SIDE), _STEP)
        blocks = every.split(self._rows(shape), dim=2)
        image = cat([self._block(tile, filters, shape) for tile in blocks], 2)
        return join(image, shape)

    def _block(self, tile: Tensor, filters: Tensor, shape: ConvShape) -> Tensor:
        """Convolve tiles (n, in_c, rows, columns, 4, 4) to (n, out_c, rows, 2, columns, 2)."""
        n, _, rows, columns, *_ = tile.shape
        flat = tile.permute(4, 5, 1, 0, 2, 3)  # points, channels, images, tiles
        flat = flat.reshape(_POINTS, -1)
        inputs = _squared(BT, filters.dtype, filters.device) @ flat
        matrices = inputs.view(len(filters), shape.group_in, n * rows * columns)
        products = torch.bmm(filters, matrices)
        image = self._back(products.view(_POINTS, -1))
        image = image.view(OUTPUTS, OUTPUTS, shape.out_c, n, rows, columns)
        return image.permute(3, 2, 4, 0, 5, 1)

    def unsupported(self, shape: ConvShape, device_type: str) -> str | None:  # noqa: ARG002
        """Refuse other filters, strides and dilations."""
        if (shape.kernel_h, shape.kernel_w) != (3, 3):
            return f"kernel {shape.kernel_h}x{shape.kernel_w}: needs 3x3"
        return needs_unit_steps(shape, "Winograd")

    def steps(self, shape: ConvShape) -> Iterator[Operation]:
        """Yield the filters' transform, windows, and for each block a product and transforms."""
        rows, columns = tile_count(shape, _STEP)
        filters = shape.out_c * shape.group_in
        yield product(1, _POINTS, shape.taps, filters)
        yield Operation("aten::unfold")
        for count in pieces(rows, self._rows(shape)):
            across = shape.n * count * columns
            yield product(1, _POINTS, _POINTS, shape.in_c * across)
            yield product(_POINTS * shape.groups, shape.group_out, shape.group_in, across)
            yield from self._back_steps(shape.out_c * across)

    def _back_steps(self, values: int) -> Iterator[Operation]:
        yield product(1, OUTPUTS**2, _POINTS, values)

    def _back(self, products: Tensor) -> Tensor:
        """Transform (16, values) back to (4, values)."""
        return _squared(AT, products.dtype, products.device) @ products

    def _rows(self, shape: ConvShape) -> int:
        """Return how many rows of tiles make a block: about `BLOCK_BYTES`, but no tiny product."""
        _, columns = tile_count(shape, _STEP)
        across = shape.n * columns
        item = max(shape.itemsize, 4)  # reduced types are computed in float32
        each = _POINTS * (shape.in_c + shape.out_c) * item
        most_tiles = max(_FEWEST_TILES, BLOCK_BYTES // each)
        return max(1, most_tiles // across)


class NonfusedWinograd(Winograd):
    """Transforms all filters and all tiles, multiplies once, transforms all products back."""

    def _rows(self, shape: ConvShape) -> int:
        return tile_count(shape, _STEP)[0]

    def _back_steps(self, values: int) -> Iterator[Operation]:
        yield product(1, OUTPUTS, _SIDE, _SIDE * values)
        yield product(OUTPUTS, OUTPUTS, _SIDE, values)

    def _back(self, products: Tensor) -> Tensor:
        """Transform the rows of whole tensors back, then the columns."""
        output = _matrix(AT, products.dtype, products.device)
        rows = output @ products.view(_SIDE, -1)
        rows = rows.view(OUTPUTS, _SIDE, -1)
        return torch.bmm(output.expand(OUTPUTS, -1, -1), rows)


@constant
def _matrix(rows: Matrix, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=dtype, device=device)


@constant
def _squared(rows: Matrix, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the Kronecker square of a matrix."""
    matrix = _matrix(rows, dtype, device)
    return torch.kron(matrix, matrix)
