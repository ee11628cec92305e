"""The steps of an algorithm, and what autograd makes of them."""

from __future__ import annotations

from hpcsweep.conv import operators
from hpcsweep.conv.backend import Way
from hpcsweep.conv.operators import Operation
from hpcsweep.conv.reference import steps
from hpcsweep.conv.reference.steps import BOTH, DATA, FILTER
from hpcsweep.conv.shape import ConvShape


def test_the_gradients_of_a_product_are_products_over_its_other_sizes() -> None:
    """Each for who needs it; what both need counts apart, and a bias is one addition."""
    work = [
        steps.product((2, 3, 4, 5), FILTER, DATA, times=2),
        steps.product((1, 6, 7, 8), right=BOTH),
        steps.plain("aten::unfold", 2, "aten::unfold_backward"),
    ]
    found = steps.gradients(work)
    windows = Operation("aten::unfold_backward")
    assert found[Way.DATA].work == {operators.product(2, 4, 3, 5): 2, windows: 2}
    assert found[Way.FILTER].work == {operators.product(2, 3, 5, 4): 2}
    assert found[Way.DATA].shared == found[Way.FILTER].shared == {operators.product(1, 7, 6, 8): 1}
    forward = steps.expected(work, ConvShape(1, 1, 4, 4, 1, 3, 3, bias=True)).work
    assert forward
    assert forward[Operation("aten::add")] == 1
    assert forward[operators.product(2, 5, 4, 3)] == 2
