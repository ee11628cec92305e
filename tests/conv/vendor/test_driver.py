"""Problems, and the handles of a library."""

from __future__ import annotations

import threading

import pytest

from hpcsweep.conv.backend import Way
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.vendor.cudnn import Cudnn
from hpcsweep.conv.vendor.driver import Problem

SHAPE = ConvShape(2, 4, 9, 8, 6, 3, 5, groups=2)
X, FILTERS, Y = (2, 4, 9, 8), (6, 2, 3, 5), (2, 6, 7, 4)


@pytest.mark.parametrize(
    ("way", "sizes"),
    [
        (Way.FORWARD, (X, FILTERS, Y)),
        (Way.DATA, (Y, FILTERS, X)),
        (Way.FILTER, (Y, X, FILTERS)),
    ],
)
def test_a_problem_knows_the_sizes_of_its_operands_and_its_result(way, sizes):
    """In the order of a plan's run; one of the three are the filters."""
    problem = Problem(way, "gemm", SHAPE, "nchw", tf32=False)
    assert problem.sizes == sizes
    assert problem.sizes[problem.filters_at] == FILTERS


def test_each_thread_and_device_has_a_handle_of_its_own(fake):
    """Handles are made once, and set to the stream of each call."""
    driver, found = Cudnn(lambda: fake.library), []

    def ask():
        found.append([driver.handle(device, stream=device).value for device in (0, 1, 0)])

    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    for first, second, again in found:
        assert first == again != second
    assert not {*found[0]} & {*found[1]}
    assert fake.calls.count("cudnnSetStream") == 6
