"""Convolution through the FFT, of the whole image or of tiles, in PyTorch operators.

Both use the overlap-save method; `fft` is the case of one tile that covers the image. A tile of S
samples yields S - kernel + 1 outputs each way; the others are wrapped around::

    tiles of the input --rfft2--> frequencies --+
                                                +--> per frequency (tiles x in_c) (in_c x out_c)
    filters --DFT of few samples--> frequencies-+                                 --irfft2--> output

A filter has `taps` samples among S*S/2 frequencies, so the cheapest way to its spectrum is a
product with that part of the DFT matrix. The result has the layout that the batched product wants.
This runs in blocks of frequencies, since all spectra of the filters (8 bytes x in_c x out_c for
each frequency) are larger than any cache.

Stride and dilation have to be 1, as in cuDNN. Its limits on image and filter sizes do not apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from hpcsweep.conv.backend import Operation, product
from hpcsweep.conv.reference.family import (
    BLOCK_BYTES,
    OperatorFamily,
    constant,
    join,
    needs_unit_steps,
    pad,
    pieces,
    tile_count,
    tiles,
)
from hpcsweep.conv.shape import ConvShape, Pair

# samples each way, as in the kernels of cuDNN (fft2d_r2c_32x32)
TILE: Final = 32
# of a block: fewer are a call for each, and more leave the cache with large filters
_FEWEST_FREQUENCIES = 2
_MOST_FREQUENCIES = 32


class Fft(OperatorFamily):
    """Transforms the whole padded image at once."""

    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Transform, multiply per frequency, transform back."""
        size = self._tile(shape)
        return _overlap_save(self._cut(x, shape, size), weight, shape, size)

    def unsupported(self, shape: ConvShape, device_type: str) -> str | None:  # noqa: ARG002
        """Refuse strides and dilations, which an FFT would compute and throw away."""
        return needs_unit_steps(shape, "FFT")

    def steps(self, shape: ConvShape) -> Iterator[Operation]:
        """Yield transforms there and back, and for each block the filters' spectra and products."""
        size = self._tile(shape)
        rows, columns = tile_count(shape, _step(shape, size))
        half = (size[0], size[1] // 2 + 1)
        count = shape.n * rows * columns
        yield Operation("aten::_fft_r2c", size)
        yield Operation("aten::_fft_c2r", half)
        for block in pieces(math.prod(half), _block(shape)):
            yield product(1, block, shape.taps, shape.out_c * shape.group_in)
            yield product(block * shape.groups, count, shape.group_in, shape.group_out)

    def _cut(self, x: Tensor, shape: ConvShape, size: Pair) -> Tensor:
        """Return the image as the one tile that there is, (n, in_c, 1, 1, *size)."""
        return pad(x, shape, *size)[:, :, None, None]

    def _tile(self, shape: ConvShape) -> Pair:
        height = shape.in_h + 2 * shape.pad_h
        width = shape.in_w + 2 * shape.pad_w
        return smooth(height), 2 * smooth(-(-width // 2))


class TiledFft(Fft):
    """Transforms tiles of 32x32, as cuDNN does.

    Filters of more than 16 samples get larger tiles; a smaller image is one tile of its own size.
    """

    def _tile(self, shape: ConvShape) -> Pair:
        height, width = super()._tile(shape)
        height = min(height, _power_of_two(shape.kernel_h))
        return height, min(width, _power_of_two(shape.kernel_w))

    def steps(self, shape: ConvShape) -> Iterator[Operation]:
        """Yield the same on windows, which one tile takes, too."""
        yield Operation("aten::unfold")
        yield from super().steps(shape)

    def _cut(self, x: Tensor, shape: ConvShape, size: Pair) -> Tensor:
        """Return overlapping tiles."""
        return tiles(x, shape, size, _step(shape, size))


def _overlap_save(cut: Tensor, weight: Tensor, shape: ConvShape, size: Pair) -> Tensor:
    height, width = _step(shape, size)
    spectrum = torch.fft.rfft2(cut)
    n, _, rows, columns, *frequencies = spectrum.shape
    spectrum = spectrum.unflatten(1, (shape.groups, shape.group_in))
    tiled = spectrum.permute(5, 6, 1, 0, 3, 4, 2)  # frequencies, groups, tiles, channels
    tiled = tiled.reshape(-1, shape.groups, n * rows * columns, shape.group_in)
    out = _multiply(tiled, weight, shape, size)
    out = out.view(*frequencies, shape.groups, n, rows, columns, shape.group_out)
    out = out.permute(3, 2, 6, 4, 5, 0, 1)  # images, groups, channels, tiles, frequencies
    # one name after the other, so that what was copied is freed
    image = torch.fft.irfft2(out, s=size)
    image = image[..., :height, :width]
    image = image.reshape(n, shape.out_c, rows, columns, height, width)
    return join(image.transpose(3, 4), shape)


def _multiply(tiled: Tensor, weight: Tensor, shape: ConvShape, size: Pair) -> Tensor:
    """Return the products of (frequencies, groups, tiles, in_c/g) with the filters' spectra."""
    dft = _dft(size, (shape.kernel_h, shape.kernel_w), tiled.dtype, weight.device)
    taps = weight.reshape(-1, shape.taps).t()
    taps = taps.to(tiled.dtype)
    block = _block(shape)
    products = []
    for part, matrix in zip(tiled.split(block), dft.split(block), strict=True):
        spectra = matrix.mm(taps)
        spectra = spectra.view(-1, shape.group_out, shape.group_in)  # frequencies and groups first
        spectra = spectra.transpose(1, 2)
        products.append(torch.bmm(part.flatten(0, 1), spectra))
    return torch.cat(products)


@constant
def _dft(size: Pair, kernel: Pair, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (frequencies, taps): its product with a filter is a conjugate spectrum.

    Conjugate, since a convolution layer computes a correlation.
    """
    taps = math.prod(kernel)
    impulses = torch.eye(taps, dtype=torch.float64).view(taps, *kernel)
    spectra = torch.fft.rfft2(impulses, s=size)
    spectra = spectra.conj().resolve_conj()
    spectra = spectra.flatten(1, 2).t().contiguous()
    return spectra.to(device, dtype)


def _power_of_two(kernel: int) -> int:
    """Return a tile of which at least half is output."""
    return max(TILE, 1 << (2 * kernel - 1).bit_length())


def smooth(size: int) -> int:
    """Return the next size without prime factors above 7: FFTs of others are slow."""
    while True:
        factor = size
        for prime in (2, 3, 5, 7):
            while factor % prime == 0:
                factor //= prime
        if factor == 1:
            return size
        size += 1


def _step(shape: ConvShape, size: Pair) -> Pair:
    height, width = size
    return height - shape.kernel_h + 1, width - shape.kernel_w + 1


def _block(shape: ConvShape) -> int:
    """Return how many frequencies of the filters fit into a block."""
    item = max(shape.itemsize, 4)  # reduced types are computed in float32
    each = 2 * shape.out_c * shape.group_in * item  # two numbers make a complex one
    return max(_FEWEST_FREQUENCIES, min(_MOST_FREQUENCIES, BLOCK_BYTES // each))
