"""Peak memory of a point."""

from __future__ import annotations

import sys

import psutil
import pytest
import torch

from hpcsweep.measure.machine import peak_memory
from hpcsweep.measure.machine.peak_memory import MemoryWatch
from measuring import CPU

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def _resettable():
    watch = MemoryWatch()
    watch.reset()
    return watch.source == "vm_hwm"


@linux
def test_the_peak_covers_what_was_used_and_given_back():
    """200 MB that are gone by the time of asking are in the peak."""
    watch = MemoryWatch()
    watch.reset()
    before = watch.peak()
    torch.ones(50_000_000)
    assert watch.peak() - before > (150 << 20 if watch.source == "vm_hwm" else -1)


@linux
def test_a_new_point_forgets_the_peak_of_the_last():
    """Where the kernel's mark can be reset, a large point does not mark the small ones after it."""
    if not _resettable():
        pytest.skip("this kernel does not let us reset the high-water mark")
    watch = MemoryWatch()
    watch.reset()
    torch.ones(50_000_000)
    large = watch.peak()
    watch.reset()
    assert watch.peak() < large - (100 << 20)


def test_where_the_mark_cannot_be_reset_the_process_peak_is_named(monkeypatch):
    """The source says that it is the whole process's maximum."""

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(peak_memory.Path, "write_text", refuse)
    watch = MemoryWatch()
    watch.reset()
    assert watch.source == "max_rss"
    assert watch.peak() > 10 << 20


@linux
def test_the_limit_is_what_this_process_may_use():
    """At most the machine's memory, at least what is in use."""
    watch = MemoryWatch()
    assert watch.peak() < watch.limit() <= psutil.virtual_memory().total


@linux
def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch):
    """A job's memory limit is below the machine's; "max" and version 1's huge number are none."""
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "huge").write_text("9223372036854771712\n")
    (tmp_path / "real").write_text("1073741824\n")
    numbers = [peak_memory.limit_in(tmp_path / name) for name in ("max", "huge", "real", "absent")]
    assert numbers == [None, None, 1 << 30, None]
    monkeypatch.setattr(peak_memory, "control_group_limit", lambda: 1 << 30)
    assert MemoryWatch().limit() == 1 << 30


def test_the_columns_name_their_source():
    """Peak, limit and where they come from go together."""
    watch = peak_memory.watch(CPU)
    watch.reset()
    cells = peak_memory.cells(watch)
    assert cells.mem_peak_bytes > 0
    assert cells.mem_source in {"vm_hwm", "max_rss"}
