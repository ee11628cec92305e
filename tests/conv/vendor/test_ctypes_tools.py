"""What both C interfaces share: descriptors, strides, the search for a library."""

from __future__ import annotations

import gc

import pytest

from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.vendor import ctypes_tools, operator
from hpcsweep.conv.vendor.backend import VendorBackend
from hpcsweep.conv.vendor.cudnn import Cudnn
from hpcsweep.conv.vendor.miopen import Miopen
from standins import EXPLICIT


@pytest.mark.parametrize("vendor", ["cudnn", "miopen"])
def test_descriptors_are_given_back(fake, fake_miopen, vendor):
    """Nothing lives on when a back-end is gone, but the handle of the thread."""
    library, driver = {"cudnn": (fake, Cudnn), "miopen": (fake_miopen, Miopen)}[vendor]
    before = library.live()
    one = VendorBackend(driver(lambda: library.library), "cpu")
    for algorithm in EXPLICIT:
        one.unsupported(algorithm, ConvShape(1, 4, 16, 16, 4, 3, 3))
    assert library.live() > before + 4
    del one
    operator.ENGINES.clear()
    gc.collect()
    assert library.live() <= before + 1


def test_strides_follow_the_layout():
    """Of a tensor with 2 images of 3 channels, 4 x 5 pixels."""
    assert ctypes_tools.strides((2, 3, 4, 5), "nchw") == (60, 20, 5, 1)
    assert ctypes_tools.strides((2, 3, 4, 5), "nhwc") == (60, 1, 15, 3)


def test_the_first_library_that_loads_is_taken_and_the_last_error_told():
    """What was tried before does not hide where the search ended."""

    def load(path):
        if path != "good":
            raise LibraryUnusable(path)
        return path.upper()

    assert ctypes_tools.first_usable(["bad", "good", "never"], load) == "GOOD"
    with pytest.raises(LibraryUnusable, match=r"^worse$"):
        ctypes_tools.first_usable(["bad", "worse"], load)
