"""The three GEMM families, as cuDNN names them, in PyTorch operators.

All take any stride, padding, dilation and number of groups. They differ in how the patches of the
image get into the matrix product::

    gemm                   all patches are copied into one matrix (im2col), then one product
    implicit_gemm          no patches: one product per filter tap, accumulated in place
    implicit_precomp_gemm  patches are gathered block by block through precomputed indices

A product is per image and group: (out_c/g, in_c/g * taps) x (in_c/g * taps, pixels).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hpcsweep.conv.backend import Operation, product
from hpcsweep.conv.reference.family import (
    BLOCK_BYTES,
    OperatorFamily,
    cat,
    constant,
    pad_fully,
    pieces,
)
from hpcsweep.conv.shape import ConvShape

# of a block: a product with fewer columns does little for its call, and uses few of the cores; more
# would leave the cache where images have many channels
_FEWEST_PIXELS = 256


class Gemm(OperatorFamily):
    """Copies every patch into a matrix, then multiplies; 1x1 filters multiply the image itself."""

    one_sum = True

    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Run one product per image and group."""
        filters = weight.reshape(shape.groups, shape.group_out, -1)
        patches = _windows(pad_fully(x, shape), shape)
        patches = patches.permute(0, 1, 4, 5, 2, 3)  # taps before pixels, as the filters have them
        matrices = patches.reshape(shape.n, shape.groups, -1, shape.pixels)
        return torch.matmul(filters, matrices).reshape(shape.output_size)

    def steps(self, shape: ConvShape) -> list[Operation]:
        """Return windows, and one product over channels and taps at once."""
        batch = shape.n * shape.groups
        inner = shape.group_in * shape.taps
        multiplied = product(batch, shape.group_out, inner, shape.pixels)
        return [Operation("aten::unfold"), multiplied]


def _windows(padded: Tensor, shape: ConvShape) -> Tensor:
    """Return what each output pixel's filter meets: a view (n, c, out_h, out_w, *kernel)."""
    reach_h = (shape.kernel_h - 1) * shape.dilation_h + 1
    reach_w = (shape.kernel_w - 1) * shape.dilation_w + 1
    windows = padded.unfold(2, reach_h, shape.stride_h)
    windows = windows.unfold(3, reach_w, shape.stride_w)
    return windows[..., :: shape.dilation_h, :: shape.dilation_w]


class ImplicitGemm(OperatorFamily):
    """Sums one matrix product per filter tap over the shifted (and strided) image."""

    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Accumulate in place."""
        x = pad_fully(x, shape)
        filters = weight.reshape(shape.groups, shape.group_out, shape.group_in, *weight.shape[2:])
        batch = shape.n * shape.groups
        out: Tensor | None = None
        for i in range(shape.kernel_h):
            for j in range(shape.kernel_w):
                tap = filters[..., i, j].contiguous()
                tap = tap.expand(shape.n, -1, -1, -1)
                tap = tap.reshape(batch, shape.group_out, shape.group_in)
                image = _shifted(x, shape, i, j)
                image = image.reshape(batch, shape.group_in, shape.pixels)
                if out is None:
                    out = torch.bmm(tap, image)
                else:
                    out.baddbmm_(tap, image)
        assert out is not None  # noqa: S101 - a filter has at least one tap
        return out.view(shape.output_size)

    def steps(self, shape: ConvShape) -> list[Operation]:
        """Return one product per tap over the channels alone; all but the first add."""
        sizes = shape.n * shape.groups, shape.group_out, shape.group_in, shape.pixels
        steps = [product(*sizes)]
        if shape.taps > 1:
            steps.append(product(*sizes, adds=True))
        return steps


def _shifted(x: Tensor, shape: ConvShape, i: int, j: int) -> Tensor:
    """Return the pixels of a padded image that filter tap (i, j) meets, as a view."""
    top = i * shape.dilation_h
    left = j * shape.dilation_w
    bottom = top + (shape.out_h - 1) * shape.stride_h + 1
    right = left + (shape.out_w - 1) * shape.stride_w + 1
    return x[:, :, top : bottom : shape.stride_h, left : right : shape.stride_w]


class PrecomputedGemm(OperatorFamily):
    """Gathers patches through cached indices, a block of output pixels at a time.

    The image is first copied with its channels innermost, so that one index gathers a whole pixel.
    A block is some pixels of one image, or all pixels of some images. The whole im2col matrix never
    exists.
    """

    one_sum = True

    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Run one product per block and group."""
        pixels, images = _block(shape)
        rows = pad_fully(x, shape)
        rows = rows.permute(0, 2, 3, 1).contiguous()
        filters = weight.reshape(shape.groups, shape.group_out, shape.group_in, shape.taps)
        filters = filters.transpose(2, 3)
        filters = filters.reshape(shape.groups, shape.group_out, -1)
        # of the geometry alone: networks have few of those, and many shapes
        alike = replace(shape, n=1, in_c=1, out_c=1, groups=1, bias=False, dtype="float32")
        index = _gather_index(alike, images, x.device)
        out = [
            _gathered_product(part, filters, index[: len(part)], pixels, shape)
            for part in rows.split(images)
        ]
        return cat(out, 0).view(shape.output_size)

    def steps(self, shape: ConvShape) -> Iterator[Operation]:
        """Yield a gather and a product over channels and taps at once for each block."""
        pixels, images = _block(shape)
        inner = shape.group_in * shape.taps
        yield Operation("aten::index_select")
        for count in pieces(shape.n, images):
            for part in pieces(shape.pixels, pixels):
                yield product(shape.groups, shape.group_out, inner, count * part)


def _gathered_product(
    rows: Tensor, filters: Tensor, index: Tensor, block: int, shape: ConvShape
) -> Tensor:
    """Convolve some images (m, h, w, in_c) to (m, out_c, pixels); index is (m, pixels, taps)."""
    flat = rows.reshape(-1, shape.in_c)
    out = []
    for part in index.split(block, dim=1):
        images, pixels, _ = part.shape
        patches = flat.index_select(0, part.reshape(-1))
        patches = patches.view(images * pixels, shape.taps, shape.groups, shape.group_in)
        matrix = patches.permute(2, 1, 3, 0)  # groups, taps, channels, pixels
        matrix = matrix.reshape(shape.groups, -1, images * pixels)
        image = torch.bmm(filters, matrix)
        image = image.view(shape.out_c, images, pixels)
        out.append(image.transpose(0, 1))
    return cat(out, 2)


def _block(shape: ConvShape) -> tuple[int, int]:
    """Return (pixels, images) of a block: about `BLOCK_BYTES` of patches."""
    patch = shape.in_c * shape.taps * shape.itemsize
    pixels = max(_FEWEST_PIXELS, BLOCK_BYTES // patch)
    return pixels, max(1, min(shape.n, pixels // shape.pixels))


@constant
def _gather_index(shape: ConvShape, images: int, device: torch.device) -> Tensor:
    """Return which padded pixel each (image, output pixel, tap) reads."""
    height = shape.in_h + 2 * shape.pad_h
    width = shape.in_w + 2 * shape.pad_w
    pixels = torch.arange(images * height * width)
    index = _windows(pixels.view(images, 1, height, width), shape)
    index = index.reshape(images, shape.pixels, shape.taps)
    return index.to(device, torch.int32)
