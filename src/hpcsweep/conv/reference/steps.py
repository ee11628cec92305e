"""The steps of an algorithm that compute, and what they are in gradients: what evidence must show.

A family lists the steps of a forward call. What autograd makes of them follows: of the product
(m, k) (k, n) the gradient of the left operand is a product over n, that of the right one over m. It
is needed by the gradient of the input (`Way.DATA`), of the filters, or both, as its operand is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from hpcsweep.conv import operators
from hpcsweep.conv.backend import Expected, Way
from hpcsweep.conv.operators import Operation, Patterns
from hpcsweep.conv.shape import ConvShape
from hpcsweep.records import dataclass

Ways = tuple[Way, ...]

DATA: Final[Ways] = (Way.DATA,)
FILTER: Final[Ways] = (Way.FILTER,)
BOTH: Final[Ways] = (Way.DATA, Way.FILTER)
_SUMS: Final[Patterns] = ("aten::sum", "aten::mul", "aten::mul_", "aten::neg")  # of a bias, scaling


@dataclass(frozen=True)
class Step:
    """An operation that runs so many times, and each time the given ones in gradients."""

    operation: Operation
    times: int = 1
    backward: tuple[tuple[Operation, Ways], ...] = ()


def product(
    sizes: tuple[int, int, int, int],
    left: Ways = (),
    right: Ways = (),
    *,
    times: int = 1,
    adds: bool = False,
) -> Step:
    """Return (batch, m, k, n), whose operands depend on input or filters; () is neither."""
    batch, m, k, n = sizes
    backward = (operators.product(batch, m, n, k), left), (operators.product(batch, k, m, n), right)
    return Step(operators.product(*sizes, adds=adds), times, backward)


def plain(name: str, times: int = 1, backward: str = "") -> Step:
    """Return an operator without sizes; its gradient, if named, is of the input."""
    return Step(Operation(name), times, ((Operation(backward), DATA),) if backward else ())


def expected(steps: Iterable[Step], shape: ConvShape) -> Expected:
    """Return what a forward call must show: all of it, the bias added, and nothing else."""
    work = Counter[Operation]()
    for step in steps:
        work[step.operation] += step.times
    if shape.bias:
        work[Operation("aten::add")] += 1
    return Expected(work=work)


def gradients(steps: Iterable[Step]) -> dict[Way, Expected]:
    """Return what each gradient must show, and what both share."""
    found = {ways: Counter[Operation]() for ways in (DATA, FILTER, BOTH)}
    for step in steps:
        for operation, ways in step.backward:
            if ways:
                found[ways][operation] += step.times
    return {
        way: Expected(work=found[way,], shared=found[BOTH], also=_SUMS)
        for way in (Way.DATA, Way.FILTER)
    }
