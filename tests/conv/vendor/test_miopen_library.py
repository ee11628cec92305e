"""MIOpen's C interface: structures as the header has them, other versions refused."""

from __future__ import annotations

import ctypes

import pytest

from hpcsweep import environment
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.vendor import miopen_library
from hpcsweep.conv.vendor.miopen_library import MiopenLibrary, Solution


def test_a_solution_has_the_headers_size():
    """Float, size_t, uint64 and an enum, as a C compiler lays them out on 64 bits."""
    assert ctypes.sizeof(Solution) == 32
    assert [getattr(Solution, name).offset for name, _ in Solution._fields_] == [0, 8, 16, 24]


def test_another_major_version_is_refused(fake_miopen):
    """Before anything is timed."""
    fake_miopen.version(7)
    with pytest.raises(LibraryUnusable, match=r"MIOpen 7\.3\.0, not 2 or 3"):
        MiopenLibrary(fake_miopen.library.path)


def test_a_library_that_is_missing_is_told(tmp_path, monkeypatch):
    """With the loader's own words."""
    monkeypatch.setenv(environment.MIOPEN, str(tmp_path / "libMIOpen.so.1"))
    miopen_library.load.cache_clear()
    with pytest.raises(LibraryUnusable, match="MIOpen cannot be loaded"):
        miopen_library.load()
    miopen_library.load.cache_clear()
