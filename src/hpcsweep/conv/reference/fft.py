"""Convolution through the FFT, of the whole image or of tiles, in PyTorch operators.

Both use the overlap-save method; `fft` is the case of one tile that covers the image. A tile of S
samples yields S - kernel + 1 outputs each way; the others are wrapped around::

    tiles of the input --rfft2--> frequencies --+
                                                +--> per frequency (tiles x in_c) (in_c x out_c)
    filters --DFT of few samples--> frequencies-+                                 --irfft2--> output

The product of all frequencies is one batched matrix product of complex numbers, computed with real
ones: [re; im] of the tiles times [re | im] of the filters holds the four partial products. For the
few tiles of a small batch this is about twice as fast as a complex product.

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

from hpcsweep.conv.operators import Operation
from hpcsweep.conv.reference.family import (
    BLOCK_BYTES,
    BOTH,
    DATA,
    FILTER,
    FORWARD,
    AccountedFamily,
    Step,
    constant,
    join,
    needs_unit_steps,
    pad,
    parts,
    plain,
    product,
    tile_count,
    tiles,
)
from hpcsweep.conv.shape import ConvShape

TILE: Final = 32
_FEWEST_FREQUENCIES = 2
_MOST_FREQUENCIES = 32


class Fft(AccountedFamily):
    """Transforms the whole padded image at once."""

    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Transform, multiply per frequency, transform back."""
        size = self._tile(shape)
        return _overlap_save(self._cut(x, shape, size), weight, shape, size)

    def unsupported(self, shape: ConvShape, device_type: str) -> str | None:  # noqa: ARG002
        """Refuse strides and dilations, which an FFT would compute and throw away."""
        return needs_unit_steps(shape, "FFT")

    def workspace_bytes(self, shape: ConvShape) -> int:
        """Return the bytes of all spectra of a call."""
        return _spectra_bytes(shape, self._tile(shape))

    def steps(self, shape: ConvShape) -> Iterator[Step]:
        """Yield transforms there and back, and for each block the filters' spectra and products."""
        size = self._tile(shape)
        rows, columns = tile_count(shape, _step(shape, size))
        half = (size[0], size[1] // 2 + 1)
        count = shape.n * rows * columns
        yield Operation("aten::_fft_r2c", size), FORWARD + BOTH
        yield Operation("aten::_fft_c2r", half), FORWARD
        yield Operation("aten::_fft_c2c", size), DATA
        for block in parts(math.prod(half), _block(shape)):
            spectra = 1, 2 * block, shape.taps, shape.out_c * shape.group_in
            yield from product(spectra, right=FILTER)
            sizes = block * shape.groups, 2 * count, shape.group_in, 2 * shape.group_out
            yield from product(sizes, DATA, FILTER)

    def _cut(self, x: Tensor, shape: ConvShape, size: tuple[int, int]) -> Tensor:
        """Return the image as the one tile that there is, (n, in_c, 1, 1, *size)."""
        return pad(x, shape, *size)[:, :, None, None]

    def _tile(self, shape: ConvShape) -> tuple[int, int]:
        height = shape.in_h + 2 * shape.pad_h
        width = shape.in_w + 2 * shape.pad_w
        return smooth(height), 2 * smooth(-(-width // 2))


class TiledFft(Fft):
    """Transforms tiles of 32x32, as cuDNN does.

    Filters of more than 16 samples get larger tiles; a smaller image is one tile of its own size.
    """

    def _tile(self, shape: ConvShape) -> tuple[int, int]:
        height, width = super()._tile(shape)
        return min(height, _power_of_two(shape.kernel_h)), min(width, _power_of_two(shape.kernel_w))

    def steps(self, shape: ConvShape) -> Iterator[Step]:
        """Yield the same on windows, which one tile takes, too."""
        yield from plain("aten::unfold", "aten::unfold_backward")
        yield from super().steps(shape)

    def _cut(self, x: Tensor, shape: ConvShape, size: tuple[int, int]) -> Tensor:
        """Return overlapping tiles."""
        return tiles(x, shape, size, _step(shape, size))


def _overlap_save(cut: Tensor, weight: Tensor, shape: ConvShape, size: tuple[int, int]) -> Tensor:
    step = _step(shape, size)
    rows, columns = tile_count(shape, step)
    spectrum = torch.fft.rfft2(cut)
    product = _multiply(_tile_matrices(spectrum, shape), weight, shape, size)
    frequencies = (size[0], size[1] // 2 + 1)
    product = product.view(*frequencies, shape.groups, shape.n, rows, columns, shape.group_out)
    product = product.permute(3, 2, 6, 4, 5, 0, 1)
    image = torch.fft.irfft2(product, s=size)[..., : step[0], : step[1]]
    image = image.reshape(shape.n, shape.out_c, rows, columns, *step).transpose(3, 4)
    return join(image, shape)


def _tile_matrices(spectrum: Tensor, shape: ConvShape) -> Tensor:
    """Return (frequencies, groups, 2 * tiles, in_c/g): real rows first, then imaginary ones."""
    n, _, rows, columns, *frequencies = spectrum.shape
    parts = torch.view_as_real(spectrum.resolve_conj())
    parts = parts.view(n, shape.groups, shape.group_in, rows, columns, *frequencies, 2)
    parts = parts.permute(5, 6, 1, 7, 0, 3, 4, 2)
    return parts.reshape(-1, shape.groups, 2 * n * rows * columns, shape.group_in)


def _multiply(tile_rows: Tensor, weight: Tensor, shape: ConvShape, size: tuple[int, int]) -> Tensor:
    """Return the complex products, (frequencies, groups, tiles, out_c/g)."""
    taps = weight.reshape(-1, shape.taps).t()
    dft = _dft(size, (shape.kernel_h, shape.kernel_w), weight.dtype, weight.device)
    block = _block(shape)
    spectra = _Spectra(taps, 2 * block)
    products = [
        _product(rows, spectra.of(matrix.flatten(0, 1)), shape)
        for rows, matrix in zip(tile_rows.split(block), dft.split(block), strict=True)
    ]
    quarters = torch.cat(products).view(*tile_rows.shape[:2], 2, -1, 2, shape.group_out)
    (re_re, re_im), (im_re, im_im) = (half.unbind(3) for half in quarters.unbind(2))
    return torch.complex(re_re - im_im, re_im + im_re)


class _Spectra:
    """The filters' spectra, block by block in the same memory, unless autograd may keep them.

    New memory for every block would cost more than the product, since the system maps it page by
    page.
    """

    def __init__(self, taps: Tensor, most: int) -> None:
        self._taps = taps
        kept = torch.is_grad_enabled()
        self._memory = None if kept else taps.new_empty(most, taps.shape[1])

    def of(self, matrix: Tensor) -> Tensor:
        """Return the spectra that rows of the DFT matrix give; valid until the next call."""
        if self._memory is None:
            return matrix.mm(self._taps)
        return torch.mm(matrix, self._taps, out=self._memory[: len(matrix)])


def _product(tile_rows: Tensor, filters: Tensor, shape: ConvShape) -> Tensor:
    """Multiply (f, g, 2 tiles, in_c/g) with the filters' spectra, (f * 2, out_c * in_c/g)."""
    filters = filters.view(-1, 2, shape.groups, shape.group_out, shape.group_in).transpose(1, 2)
    columns = filters.reshape(-1, 2 * shape.group_out, shape.group_in).transpose(1, 2)
    return torch.bmm(tile_rows.flatten(0, 1), columns)


@constant
def _dft(
    size: tuple[int, int], kernel: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return (frequencies, [cos, sin], taps): its product with a filter is a conjugate spectrum.

    Conjugate, since a convolution layer computes a correlation.
    """
    taps = math.prod(kernel)
    impulses = torch.eye(taps, dtype=torch.float64).view(taps, *kernel)
    spectra = torch.view_as_real(torch.fft.rfft2(impulses, s=size).conj().resolve_conj())
    return spectra.flatten(1, 2).permute(1, 2, 0).contiguous().to(device, dtype)


def _power_of_two(kernel: int) -> int:
    """Return a tile of which at least half is output."""
    return max(TILE, 1 << (2 * kernel - 1).bit_length())


def smooth(size: int) -> int:
    """Return the next size without prime factors above 7: FFTs of others are slow."""
    while True:
        rest = size
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1


def _step(shape: ConvShape, size: tuple[int, int]) -> tuple[int, int]:
    return size[0] - shape.kernel_h + 1, size[1] - shape.kernel_w + 1


def _block(shape: ConvShape) -> int:
    """Return how many frequencies of the filters fit into a block."""
    each = 2 * shape.out_c * shape.group_in * max(shape.itemsize, 4)
    return max(_FEWEST_FREQUENCIES, min(_MOST_FREQUENCIES, BLOCK_BYTES // each))


def _spectra_bytes(shape: ConvShape, size: tuple[int, int]) -> int:
    """Return the bytes of the spectra of input, output and one block of filters, and the DFT's."""
    rows, columns = tile_count(shape, _step(shape, size))
    frequencies = size[0] * (size[1] // 2 + 1)
    images = shape.n * rows * columns * (shape.in_c + shape.out_c) * frequencies
    filters = shape.out_c * shape.group_in * min(frequencies, _block(shape))
    return 2 * max(shape.itemsize, 4) * (images + filters + frequencies * shape.taps)
