"""What an algorithm of the reference back-end is: how it computes, and what proves that it did.

A new algorithm is a subclass of `OperatorFamily` with three methods (`convolve`, `expected`,
`gradients`), an entry in `reference.algorithms.FAMILIES`, and its name in `catalog.ALGORITHMS`. One
whose operators all have known sizes lists them instead, as steps (`AccountedFamily`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from hpcsweep.conv import operators
from hpcsweep.conv.backend import Direction, Expected
from hpcsweep.conv.operators import Operation, Patterns
from hpcsweep.conv.shape import NHWC, ConvShape, layout_of

Ways = tuple[Direction, ...]

DATA: Final[Ways] = (Direction.DATA,)
FILTER: Final[Ways] = (Direction.FILTER,)
BOTH: Final[Ways] = (Direction.DATA, Direction.FILTER)
_SUMS: Final[Patterns] = ("aten::sum", "aten::mul", "aten::mul_", "aten::neg")  # of a bias, scaling
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


@dataclass(frozen=True)
class Step:
    """An operation that runs so many times, and each time the given ones in gradients."""

    operation: Operation
    times: int = 1
    backward: tuple[tuple[Operation, Ways], ...] = ()

    @classmethod
    def product(
        cls,
        sizes: tuple[int, int, int, int],
        left: Ways = (),
        right: Ways = (),
        *,
        times: int = 1,
        adds: bool = False,
    ) -> Step:
        """Return (batch, m, k, n), whose operands depend on input or filters; () is neither.

        The gradient of the left operand is a product over n, that of the right one over m.
        """
        batch, m, k, n = sizes
        of_left = operators.product(batch, m, n, k)
        of_right = operators.product(batch, k, m, n)
        backward = (of_left, left), (of_right, right)
        return cls(operators.product(*sizes, adds=adds), times, backward)

    @classmethod
    def plain(cls, name: str, times: int = 1, backward: str = "") -> Step:
        """Return an operator without sizes; its gradient, if named, is of the input."""
        return cls(Operation(name), times, ((Operation(backward), DATA),) if backward else ())


class AccountedFamily(OperatorFamily):
    """An algorithm that says which operators compute, how often, and on what sizes."""

    @abstractmethod
    def steps(self, shape: ConvShape) -> Iterable[Step]:
        """Return all operations of a forward call that compute, without the bias."""

    def expected(self, shape: ConvShape) -> Expected:
        """Want the steps, the bias added, and nothing else."""
        work = Counter[Operation]()
        for step in self.steps(shape):
            work[step.operation] += step.times
        if shape.bias:
            work[Operation("aten::add")] += 1
        return Expected(work=work)

    def gradients(self, shape: ConvShape) -> dict[Direction, Expected]:
        """Want what autograd makes of the steps: for each gradient, and what both share."""
        found = {ways: Counter[Operation]() for ways in (DATA, FILTER, BOTH)}
        for step in self.steps(shape):
            for operation, ways in step.backward:
                if ways:
                    found[ways][operation] += step.times
        return {
            way: Expected(work=found[way,], shared=found[BOTH], also=_SUMS)
            for way in (Direction.DATA, Direction.FILTER)
        }


def needs_unit_steps(shape: ConvShape, who: str) -> str | None:
    """Return why a transform cannot do a shape whose stride or dilation is not 1."""
    for name, (down, across) in (("stride", shape.stride), ("dilation", shape.dilation)):
        if (down, across) != (1, 1):
            return f"{name} {down}x{across}: {who} needs 1x1"
    return None
