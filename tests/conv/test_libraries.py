"""Descriptors, strides and the search for a library; problems, and the handles of a library."""

from __future__ import annotations

import gc
import threading

import pytest

from hpcsweep.conv import libraries
from hpcsweep.conv.backend import Direction, LibraryUnusable
from hpcsweep.conv.libraries import Problem, library_backend
from hpcsweep.conv.libraries.cudnn import Cudnn
from hpcsweep.conv.libraries.miopen import Miopen
from hpcsweep.conv.shape import ConvShape
from standins import EXPLICIT

SHAPE = ConvShape(2, 4, 9, 8, 6, 3, 5, groups=2)
X, FILTERS, Y = (2, 4, 9, 8), (6, 2, 3, 5), (2, 6, 7, 4)


@pytest.mark.parametrize("vendor", ["cudnn", "miopen"])
def test_descriptors_are_given_back(fake, fake_miopen, vendor):
    """Nothing lives on when a back-end is gone, but the handle of the thread."""
    library, driver = {"cudnn": (fake, Cudnn), "miopen": (fake_miopen, Miopen)}[vendor]
    before = library.live()
    one = driver(lambda: library.library, "cpu")
    for algorithm in EXPLICIT:
        one.unsupported(algorithm, ConvShape(1, 4, 16, 16, 4, 3, 3))
    assert library.live() > before + 4
    del one
    library_backend.ENGINES.clear()
    gc.collect()
    assert library.live() <= before + 1


def test_strides_follow_the_layout():
    """Of a tensor with 2 images of 3 channels, 4 x 5 pixels."""
    assert libraries.strides((2, 3, 4, 5), "nchw") == (60, 20, 5, 1)
    assert libraries.strides((2, 3, 4, 5), "nhwc") == (60, 1, 15, 3)


def test_the_first_library_that_loads_is_taken_and_the_last_error_told():
    """What was tried before does not hide where the search ended."""

    def load(path):
        if path != "good":
            raise LibraryUnusable(path)
        return path.upper()

    assert libraries.first_usable(["bad", "good", "never"], load) == "GOOD"
    with pytest.raises(LibraryUnusable, match=r"^worse$"):
        libraries.first_usable(["bad", "worse"], load)


@pytest.mark.parametrize(
    ("way", "sizes"),
    [
        (Direction.FORWARD, (X, FILTERS, Y)),
        (Direction.DATA, (Y, FILTERS, X)),
        (Direction.FILTER, (Y, X, FILTERS)),
    ],
)
def test_a_problem_knows_the_sizes_of_its_operands_and_its_result(way, sizes):
    """In the order of a plan's run; one of the three are the filters."""
    problem = Problem(way, "gemm", SHAPE, "nchw", tf32=False)
    assert problem.sizes == sizes
    assert problem.sizes[problem.filters_at] == FILTERS


def test_each_thread_and_device_has_a_handle_of_its_own(fake):
    """Handles are made once, and set to the stream of a call that is not the one before's."""
    driver, found = Cudnn(lambda: fake.library), []

    def ask():
        found.append([driver.handles.get(device, stream=device).value for device in (0, 1, 0)])
        driver.handles.get(0, stream=7)

    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    for first, second, again in found:
        assert first == again != second
    assert not {*found[0]} & {*found[1]}
    # of each thread: one for each of two handles, and one for the other stream
    assert fake.calls.count("cudnnSetStream") == 6
