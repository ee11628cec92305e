"""What an algorithm of the reference back-end is: how it computes, and what proves that it did.

A new algorithm is a subclass of `OperatorFamily` with three methods (`convolve`, `expected`,
`gradients`), an entry in `reference.algorithms.FAMILIES`, and its name in `catalog.ALGORITHMS`. One
whose telling operators have known sizes lists them instead, as steps (`AccountedFamily`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final

import torch
from torch import Tensor

from hpcsweep.conv import operators
from hpcsweep.conv.backend import Direction, Expected
from hpcsweep.conv.operators import Operation
from hpcsweep.conv.shape import NHWC, ConvShape, layout_of

Ways = tuple[Direction, ...]
Step = tuple[Operation, Ways]  # an operation, and the directions in which it runs

FORWARD: Final[Ways] = (Direction.FORWARD,)
DATA: Final[Ways] = (Direction.DATA,)
FILTER: Final[Ways] = (Direction.FILTER,)
BOTH: Final[Ways] = (Direction.DATA, Direction.FILTER)
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
    def gradients(self, shape: ConvShape) -> dict[Direction, Expected]:
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


def product(
    sizes: tuple[int, int, int, int], left: Ways = (), right: Ways = (), *, adds: bool = False
) -> list[Step]:
    """Return (batch, m, k, n), whose operands depend on input or filters; () is neither.

    The gradient of the left operand is a product over n, that of the right one over m.
    """
    batch, m, k, n = sizes
    return [
        (operators.product(*sizes, adds=adds), FORWARD),
        (operators.product(batch, m, n, k), left),
        (operators.product(batch, k, m, n), right),
    ]


def plain(name: str, gradient: str) -> list[Step]:
    """Return an operator without sizes, and its gradient of the input."""
    return [(Operation(name), FORWARD), (Operation(gradient), DATA)]


class AccountedFamily(OperatorFamily):
    """An algorithm that says which operators tell it from others, and on what sizes."""

    @abstractmethod
    def steps(self, shape: ConvShape) -> Iterable[Step]:
        """Return the telling operations of a call, each with the directions in which it runs."""

    def expected(self, shape: ConvShape) -> Expected:
        """Want the steps, and no other operation that tells."""
        return self._work(shape, Direction.FORWARD)

    def gradients(self, shape: ConvShape) -> dict[Direction, Expected]:
        """Want what autograd makes of the steps, for each gradient."""
        return {way: self._work(shape, way) for way in BOTH}

    def _work(self, shape: ConvShape, way: Direction) -> Expected:
        return Expected(work={operation for operation, ways in self.steps(shape) if way in ways})


def needs_unit_steps(shape: ConvShape, who: str) -> str | None:
    """Return why a transform cannot do a shape whose stride or dilation is not 1."""
    for name, (down, across) in (("stride", shape.stride), ("dilation", shape.dilation)):
        if (down, across) != (1, 1):
            return f"{name} {down}x{across}: {who} needs 1x1"
    return None
