"""Operands, truth and allocations for the tests of reference algorithms."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpcsweep.catalog import ALGORITHMS, SUMS_FFT, SUMS_WINOGRAD
from hpcsweep.conv.reference import FAMILIES, Reference
from hpcsweep.conv.shape import ConvShape

BACKEND = Reference("cpu")
EVERY = tuple(FAMILIES)
OPERATORS = tuple(name for name in EVERY if name != "direct")  # made of torch's operators
TRANSFORMS = tuple(name for name in OPERATORS if ALGORITHMS[name].sums in {SUMS_FFT, SUMS_WINOGRAD})
PLAIN = ConvShape(2, 6, 17, 20, 4, 3, 3, pad_h=1, pad_w=1)


def operands(
    shape: ConvShape, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return a random input, filter and bias; the same for the same shape."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(shape.input_size, generator=generator)
    weight = torch.randn(shape.filter_size, generator=generator)
    bias = torch.randn(shape.out_c, generator=generator) if shape.bias else None
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def truth(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: ConvShape
) -> torch.Tensor:
    """Return the framework's result in float64."""
    exact = None if bias is None else bias.double()
    geometry = (shape.stride, shape.padding, shape.dilation, shape.groups)
    return nn.functional.conv2d(x.double(), weight.double(), exact, *geometry)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest deviation over the largest value wanted."""
    return ((found.double() - wanted).abs().max() / wanted.abs().max()).item()


class Allocations(TorchDispatchMode):
    """Notes the bytes of every tensor that an operator newly allocates."""

    def __init__(self, *operands: torch.Tensor) -> None:
        """Begin with what is there already."""
        super().__init__()
        self.sizes: list[int] = []
        self.known = {tensor.untyped_storage().data_ptr() for tensor in operands}
        self.kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.known:
                self.known.add(storage.data_ptr())
                self.kept.append(tensor)  # so that no address is used twice
                self.sizes.append(storage.nbytes())
        return out
