"""The machine is watched by a piece of work that is always the same."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
import torch

from hpcsweep.measure.checks import control
from hpcsweep.measure.checks.control import ControlCheck, _Usage
from hpcsweep.measure.machine.rig import Rig


@pytest.fixture(autouse=True)
def quiet_machine():
    """Let the control say what it finds: here it is what is tested."""


@pytest.fixture
def scripted(monkeypatch):
    """Return a control whose convolution takes the milliseconds that a test says."""
    times: list[float] = []
    found = ControlCheck(Rig())
    monkeypatch.setattr(control, "_median_ms", lambda _work: times.pop(0))
    monkeypatch.setattr(control, "_host", lambda: (1.0, 0.0))
    monkeypatch.setattr(control, "_used", lambda: _Usage(0.0, 0.0, 0.0, 0.0, 0.0))
    found.begin(None)
    return found, times


def told(check):
    """Return the cells of the control, and the names of its flags."""
    cells, flags = check.measured()
    return cells, [flag.name for flag, is_raised in flags.items() if is_raised]


def test_the_control_is_measured_whatever_the_point_asked_for():
    """Threads of the point stay as they were, and so does the framework."""
    found = ControlCheck(Rig())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cells, _ = told(found)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert cells.control_ms > 0 < cells.control_host_ms
    assert cells.control_shift_pct is None


def _tensors():
    gc.collect()
    return {id(each): each for each in gc.get_objects() if type(each) is torch.Tensor}


def test_between_points_the_control_holds_no_memory():
    """On a GPU its operands take 24.5 MiB, which would be in the peak of every point."""
    before = _tensors()
    found = ControlCheck(Rig())
    assert _tensors().keys() <= before.keys()
    found.begin(None)
    told(found)
    assert _tensors().keys() <= before.keys()


def test_a_shift_is_flagged_with_its_size(scripted):
    """A tenth where controls usually differ by a percent; not before there are five."""
    found, times = scripted
    times += [1.0, 1.01, 1.0, 0.99, 1.0, 1.1]
    flags = [told(found) for _ in range(6)]
    assert [raised for _, raised in flags] == [[]] * 5 + [["machine_shift"]]
    assert flags[-1][0].control_shift_pct == pytest.approx(10.0)


def test_the_usual_time_is_also_that_of_earlier_workers(scripted):
    """Their times come with the request, and go on to the next."""
    found, times = scripted
    found.history = [1.0, 1.01, 1.0, 0.99, 1.0]
    times += [1.1]
    assert told(found)[1] == ["machine_shift"]
    assert found.history == [1.0, 1.01, 1.0, 0.99, 1.0, 1.1]


def test_a_machine_that_always_varies_has_no_shift(scripted):
    """Ten percent up and down is what is usual here."""
    found, times = scripted
    times += [1.0, 1.1, 0.9, 1.05, 0.95, 1.12]
    assert [told(found)[1] for _ in range(6)] == [[]] * 6


def test_a_control_far_above_its_best_is_contention(scripted):
    """Twice as long: others compute here, too."""
    found, times = scripted
    times += [1.0, 2.1]
    assert [told(found)[1] for _ in range(2)] == [[], ["contended"]]


def test_waiting_for_a_cpu_is_contention():
    """Four processes that never wait, on each CPU that this one may use."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(4 * len(os.sched_getaffinity(0)))
    ]
    try:
        found = ControlCheck(Rig())
        found.begin(None)
        sum(range(5_000_000))
        cells, flags = told(found)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert cells.switches_per_s > 0
    assert cells.waited_pct > 10
    assert (cells.cpu_util_pct or 100) > 50  # some containers count nothing
    assert "contended" in flags


def test_switches_that_cost_no_time_are_no_contention(monkeypatch):
    """As on a machine that is quiet but for what the kernel itself does; the loop waits apart."""
    found = ControlCheck(Rig())
    monkeypatch.setattr(control, "_host", lambda: (1.0, 0.0))
    used = iter([_Usage(0.0, 0.0, 0.0, 0.0, 0.0), _Usage(1.0, 300.0, 0.001, 0.03, 0.4)])
    monkeypatch.setattr(control, "_used", lambda: next(used))
    found.begin(None)
    cells, flags = told(found)
    assert (cells.switches_per_s, cells.waited_pct, flags) == (300.0, pytest.approx(3.0), [])
    assert cells.cpu_util_pct == pytest.approx(40)
