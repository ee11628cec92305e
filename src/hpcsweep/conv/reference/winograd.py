"""Winograd's minimal filtering, F(2x2, 3x3) and F(2x2, 5x5), in PyTorch operators.

An output tile of 2x2 comes from an input tile of (r+1)x(r+1) with (r+1)^2 instead of 4 r^2
multiplications per pair of channels. All three transforms are linear; with a tile as a column each
is one matrix product with a Kronecker square, and what remains is a batch of small GEMMs::

    input tiles d   (points, in_c x tiles)   V = (BT (x) BT) d
    filters g       (points, out_c x in_c)   U = (G (x) G) g
    products        points x (out_c, in_c) (in_c, tiles)
    output tiles    (4, out_c x tiles)       (AT (x) AT) (U V); not fused: rows, then columns

The matrices follow from the interpolation points (Toom-Cook), so they are derived, not typed in.
`winograd` does this block by block so that a block's transforms never leave the cache ("fused"), as
cuDNN's kernel of that name; `winograd_nonfused` makes three passes over whole tensors with one
batched product. Stride and dilation have to be 1; 3x3, and 5x5 where not fused: cuDNN's rules too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar, Final

import torch
from torch import Tensor

from hpcsweep.conv.reference.family import (
    BOTH,
    DATA,
    FILTER,
    AccountedFamily,
    Step,
    needs_unit_steps,
    plain,
    product,
)
from hpcsweep.conv.reference.windows import (
    BLOCK_BYTES,
    cat,
    constant,
    join,
    parts,
    tile_count,
    tiles,
)
from hpcsweep.conv.shape import ConvShape

Matrix = list[list[Fraction]]

OUTPUTS: Final = 2
# Interpolation points by number of filter taps; the point at infinity is always the last one.
POINTS: Final = {
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    # half the rounding error of the textbook choice 0, 1, -1, 2, -2
    5: (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-2)),
}
_FEWEST_TILES = 64


class Winograd(AccountedFamily):
    """Transforms, multiplies and transforms back a block of tile rows at a time."""

    kernels: ClassVar[tuple[int, ...]] = (3,)

    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Run block by block, so that what is transformed stays in the cache."""
        filters = _transform_filters(weight, shape)
        size = OUTPUTS + shape.kernel_h - 1
        every = tiles(x, shape, (size, size), (OUTPUTS, OUTPUTS))
        blocks = every.split(self._rows(shape), dim=2)
        return join(cat([self._block(tile, filters, shape) for tile in blocks], 2), shape)

    def _block(self, tile: Tensor, filters: Tensor, shape: ConvShape) -> Tensor:
        """Convolve tiles (n, in_c, rows, columns, s, s) to (n, out_c, rows, 2, columns, 2)."""
        _, _, inputs = _transforms(shape.kernel_h, filters.dtype, filters.device)
        n, _, rows, columns, *size = tile.shape
        flat = tile.permute(4, 5, 1, 0, 2, 3).reshape(size[0] * size[1], -1)
        matrices = (inputs @ flat).view(len(filters), shape.group_in, n * rows * columns)
        products = torch.bmm(filters, matrices).view(size[0] * size[1], -1)
        image = self._back(products, shape.kernel_h)
        image = image.view(OUTPUTS, OUTPUTS, shape.out_c, n, rows, columns)
        return image.permute(3, 2, 4, 0, 5, 1)

    def unsupported(self, shape: ConvShape, device_type: str) -> str | None:  # noqa: ARG002
        """Refuse other filters, strides and dilations."""
        if shape.kernel_h != shape.kernel_w or shape.kernel_h not in self.kernels:
            sizes = " or ".join(f"{size}x{size}" for size in self.kernels)
            return f"kernel {shape.kernel_h}x{shape.kernel_w}: needs {sizes}"
        return needs_unit_steps(shape, "Winograd")

    def workspace_bytes(self, shape: ConvShape) -> int:
        """Return the bytes of the transformed filters and of one block of tiles, in and out."""
        rows, columns = tile_count(shape, (OUTPUTS, OUTPUTS))
        tile_total = min(rows, self._rows(shape)) * columns
        filters = shape.out_c * shape.group_in
        per_point = shape.n * tile_total * (shape.in_c + shape.out_c) + filters
        return _points(shape) * per_point * max(shape.itemsize, 4)

    def steps(self, shape: ConvShape) -> Iterator[Step]:
        """Yield the filters' transform, windows, and for each block a product and transforms."""
        points = _points(shape)
        (rows, columns) = tile_count(shape, (OUTPUTS, OUTPUTS))
        filters = shape.out_c * shape.group_in
        yield from product((1, points, shape.taps, filters), right=FILTER)
        yield from plain("aten::unfold", "aten::unfold_backward")
        for count in parts(rows, self._rows(shape)):
            across = shape.n * count * columns
            yield from product((1, points, points, shape.in_c * across), right=DATA)
            sizes = points * shape.groups, shape.group_out, shape.group_in, across
            yield from product(sizes, FILTER, DATA)
            yield from self._back_steps(shape.out_c * across, points)

    def _back_steps(self, values: int, points: int) -> Iterator[Step]:
        yield from product((1, OUTPUTS**2, points, values), right=BOTH)

    def _back(self, products: Tensor, taps: int) -> Tensor:
        """Transform (points, values) back to (4, values)."""
        return _transforms(taps, products.dtype, products.device)[0] @ products

    def _rows(self, shape: ConvShape) -> int:
        """Return how many rows of tiles make a block: about `BLOCK_BYTES`, but no tiny product."""
        _, columns = tile_count(shape, (OUTPUTS, OUTPUTS))
        across = shape.n * columns
        each = _points(shape) * (shape.in_c + shape.out_c) * max(shape.itemsize, 4)
        return max(1, max(_FEWEST_TILES, BLOCK_BYTES // each) // across)


class NonfusedWinograd(Winograd):
    """Transforms all filters and all tiles, multiplies once, transforms all products back."""

    kernels = (3, 5)

    def _rows(self, shape: ConvShape) -> int:
        return tile_count(shape, (OUTPUTS, OUTPUTS))[0]

    def _back_steps(self, values: int, points: int) -> Iterator[Step]:
        side = math.isqrt(points)
        yield from product((1, OUTPUTS, side, side * values), right=BOTH)
        yield from product((OUTPUTS, OUTPUTS, side, values), right=BOTH)

    def _back(self, products: Tensor, taps: int) -> Tensor:
        """Transform the rows of whole tensors back, then the columns."""
        output = _output_transform(taps, products.dtype, products.device)
        rows = (output @ products.view(output.shape[1], -1)).view(OUTPUTS, output.shape[1], -1)
        return torch.bmm(output.expand(OUTPUTS, -1, -1), rows)


def toom_cook(outputs: int, taps: int, points: Sequence[Fraction]) -> tuple[Matrix, Matrix, Matrix]:
    """Return (AT, G, BT) of F(outputs, taps): y = AT ((G g) * (BT d)), exact.

    `points` are outputs + taps - 2 different numbers; the point at infinity comes on top.
    """
    count = outputs + taps - 1
    norms = [math.prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    output = [[p**k for p in points] + [Fraction(k == outputs - 1)] for k in range(outputs)]
    filters = [[p**k / norm for k in range(taps)] for p, norm in zip(points, norms, strict=True)]
    filters.append([Fraction(k == taps - 1) for k in range(taps)])
    inputs = [_polynomial([q for q in points if q != p], count) for p in points]
    return output, filters, [*inputs, _polynomial(points, count)]


def _polynomial(roots: Sequence[Fraction], length: int) -> list[Fraction]:
    """Return the coefficients of prod (x - root), lowest first, padded with zeros."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        scaled = [*coefficients, Fraction(0)]
        coefficients = [a - root * b for a, b in zip(shifted, scaled, strict=True)]
    return coefficients + [Fraction(0)] * (length - len(coefficients))


@constant
def _transforms(
    taps: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the Kronecker squares of AT, G and BT."""
    matrices = map(_tensor, toom_cook(OUTPUTS, taps, POINTS[taps]))
    output, filters, inputs = (torch.kron(m, m).to(device, dtype) for m in matrices)
    return output, filters, inputs


@constant
def _output_transform(taps: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return AT itself."""
    return _tensor(toom_cook(OUTPUTS, taps, POINTS[taps])[0]).to(device, dtype)


def _tensor(matrix: Matrix) -> Tensor:
    return torch.tensor([[float(value) for value in row] for row in matrix], dtype=torch.float64)


def _transform_filters(weight: Tensor, shape: ConvShape) -> Tensor:
    """Return U, (points * groups, out_c/g, in_c/g)."""
    _, matrix, _ = _transforms(shape.kernel_h, weight.dtype, weight.device)
    transformed = matrix @ weight.reshape(-1, shape.taps).t()
    return transformed.view(-1, shape.group_out, shape.group_in)


def _points(shape: ConvShape) -> int:
    return (OUTPUTS + shape.kernel_h - 1) ** 2
