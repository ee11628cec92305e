"""What an algorithm of the reference back-end is: how it computes, and what proves that it did.

A new algorithm is a subclass of `OperatorFamily` with three methods (`convolve`, `expected`,
`gradients`), an entry in `reference.backend.FAMILIES`, and its name in `catalog.ALGORITHMS`. One
whose operators all have known sizes lists them instead (`AccountedFamily`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final

import torch
from torch import Tensor

from hpcsweep.conv.backend import Expected, Way
from hpcsweep.conv.reference import steps
from hpcsweep.conv.reference.steps import Step
from hpcsweep.conv.shape import NHWC, ConvShape, layout_of

_REDUCED: Final = (torch.float16, torch.bfloat16)


class Family(ABC):
    """One algorithm of the reference back-end."""

    def unsupported(self, shape: ConvShape, device_type: str) -> str | None:  # noqa: ARG002
        """Return None if the algorithm can do the shape there, else the reason in a few words."""
        return None

    def workspace_bytes(self, shape: ConvShape) -> int | None:  # noqa: ARG002
        """Return the bytes that the algorithm keeps besides operands and result; None: unknown."""
        return None

    @abstractmethod
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvShape) -> Tensor:
        """Convolve, in the layout and type that the framework would give the output."""

    @abstractmethod
    def expected(self, shape: ConvShape) -> Expected:
        """Return what the profiler must see in such a call."""

    @abstractmethod
    def gradients(self, shape: ConvShape) -> dict[Way, Expected]:
        """Return what the profiler must see in each gradient of such a call."""


class OperatorFamily(Family):
    """An algorithm made of PyTorch operators, which autograd goes through.

    `one_sum` says that a single matrix product does all additions of an output value. GEMMs
    accumulate in float32, so such a family computes in the operands' reduced type. The others
    compute in float32 and round once. On a CPU, float16 is always computed in float32, since a
    float16 GEMM is tens of times slower there.
    """

    one_sum: ClassVar[bool] = False

    @abstractmethod
    def convolve(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Return the output without bias, in the operands' type."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvShape) -> Tensor:
        """Convolve in a type that keeps sums exact enough, add the bias, round to the input's."""
        dtype = self._working_dtype(x)
        out = self.convolve(x.to(dtype), weight.to(dtype), shape)
        if bias is not None:
            out = out + bias.to(dtype).view(-1, 1, 1)
        last = layout_of(x, weight) == NHWC
        layout = torch.channels_last if last else torch.contiguous_format
        return out.to(x.dtype).contiguous(memory_format=layout)

    def _working_dtype(self, x: Tensor) -> torch.dtype:
        if x.dtype not in _REDUCED:
            return x.dtype
        slow = x.dtype == torch.float16 and x.device.type == "cpu"
        return x.dtype if self.one_sum and not slow else torch.float32


class AccountedFamily(OperatorFamily):
    """An algorithm that says which operators compute, how often, and on what sizes."""

    @abstractmethod
    def steps(self, shape: ConvShape) -> Iterable[Step]:
        """Return all operations of a forward call that compute, without the bias."""

    def expected(self, shape: ConvShape) -> Expected:
        """Want the steps, and nothing else."""
        return steps.expected(self.steps(shape), shape)

    def gradients(self, shape: ConvShape) -> dict[Way, Expected]:
        """Want what autograd makes of the steps."""
        return steps.gradients(self.steps(shape))


def needs_unit_steps(shape: ConvShape, who: str) -> str | None:
    """Return why a transform cannot do a shape whose stride or dilation is not 1."""
    for name, (down, across) in (("stride", shape.stride), ("dilation", shape.dilation)):
        if (down, across) != (1, 1):
            return f"{name} {down}x{across}: {who} needs 1x1"
    return None
