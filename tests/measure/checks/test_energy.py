"""The energy of a pass, by a counter that stands for a GPU's."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from fakenvml import FakeNvml
from hpcsweep.catalog import columns
from hpcsweep.catalog.checks.energy import EnergyCells
from hpcsweep.measure.checks import energy
from hpcsweep.measure.checks.energy import EnergyCheck, Update, Window
from hpcsweep.measure.machine import drivers
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.timing import clocks
from measuring import FakeDriver, point


class Metered(FakeDriver):
    """A GPU whose counter steps with the real clock; its power is another one."""

    def __init__(self, watts=500.0, step_s=0.1, sampled=500.0):
        """Need so much; the counter is updated after each step."""
        self.watts, self.step_s, self.sampled = watts, step_s, sampled

    def energy_j(self):
        """Return the counter."""
        return 7e6 + self.watts * self.step_s * (time.monotonic() // self.step_s)

    def read(self):
        """Return the power."""
        return drivers.Reading(power_w=self.sampled)


def window(joules, sampled, pass_s=1.0):
    """Return the updates of a second, in which a pass of a second needs so much."""
    return Window([Update(0.0, 0.0, None), Update(1.0, joules, sampled)], 0.0, pass_s)


@pytest.mark.parametrize("wanted", [True, False])
def test_energy_takes_passes_of_its_own_unless_it_is_not_wanted(monkeypatch, wanted):
    """They take longer than a short point does, and are not in its times."""
    asked = []

    def passes(_driver, run, wait, block):
        asked.append(block)
        run()
        wait()
        return window(0.5, None)

    monkeypatch.setattr(energy, "passes_with_counter", passes)
    row = on_device("inference", "cpu", Metered()).measure(point(measure={"energy": wanted})).row
    assert (len(asked), row.get("energy_j")) == ((1, 0.5) if wanted else (0, None))
    assert all(block >= 5 for block in asked)
    assert row["n"] == 4


def _energy_of(driver, capture, **axes):
    """Return the cells of a point whose host is slower than its device."""
    slow = SimpleNamespace(launch_bound=lambda _ms: True)
    times = SimpleNamespace(
        lanes=slow, summary=SimpleNamespace(median=1.0), run=lambda: pytest.fail("not the replay")
    )
    network = SimpleNamespace(point=point(**{"model": "resnet18", **axes}), step=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "capture", capture)
        return EnergyCheck(Rig("cpu", driver)).after(network, None, times).cells


def test_energy_where_the_host_is_slow_is_that_of_a_graphs_replay(monkeypatch):
    """Explicit algorithms cost the host more, and no energy: the method tells the two apart."""
    ran = []

    def passes(_driver, run, _wait, _block):
        run()
        return window(1.0, 1.0)

    monkeypatch.setattr(energy, "passes_with_counter", passes)
    cells = _energy_of(Metered(), lambda _run: lambda: ran.append("replay"))
    assert (cells.energy_j, cells.energy_method) == (1.0, "graph")
    assert ran == ["replay"]


@pytest.mark.parametrize(("sampled", "apart"), [(327.0, True), (200.0, False), (None, False)])
def test_a_counter_and_a_power_that_disagree_are_flagged(monkeypatch, sampled, apart):
    """Either may be wrong; both are in the row, whose times are good."""
    monkeypatch.setattr(energy, "passes_with_counter", lambda *_: window(187.0, sampled))
    row = on_device("inference", "cpu", Metered()).measure(point(measure={"energy": True})).row
    assert (row["energy_j"], row.get("energy_sampled_j")) == (187.0, sampled)
    assert ("energy_apart" in row["flags"]) is apart
    assert "energy_apart" not in columns.DOUBTFUL


def test_what_cannot_be_replayed_keeps_its_times_and_has_no_energy():
    """Too little memory, a graph already, one's own code, several inputs."""

    def refuse(_run):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def never(_run):
        pytest.fail("captured")

    none = EnergyCells(energy_method="launch_bound")
    assert _energy_of(Metered(), refuse) == none
    assert _energy_of(Metered(), never, launch="graph") == none
    assert _energy_of(Metered(), never, model="tinynets:Residual") == none
    assert _energy_of(Metered(), never, cache_state="rotated") == none


def test_a_gpu_without_a_counter_captures_nothing_and_keeps_its_times():
    """Slices, virtual and older GPUs: the cells are empty, and nobody is told of a slow host."""
    assert _energy_of(FakeDriver(), lambda _run: pytest.fail("captured")) is None
    row = on_device("inference", "cpu", FakeDriver()).measure(point(measure={"energy": True})).row
    flags = set(row["flags"].split(";")) - {"noisy", "very_noisy"}
    assert flags.isdisjoint(columns.DOUBTFUL)
    assert row["median_ms"] > 0
    assert row.get("energy_j") is row.get("energy_method") is None


@pytest.mark.parametrize(("median_ms", "other"), [(1.0, True), (4e3, True), (20.0, False)])
def test_energy_of_passes_at_another_pace_than_the_timed_ones_is_flagged(
    monkeypatch, median_ms, other
):
    """As where the GPU waits for the host in between: its energy is not that of a timed pass."""
    fast = SimpleNamespace(launch_bound=lambda _ms: False)
    times = SimpleNamespace(lanes=fast, summary=SimpleNamespace(median=median_ms), run=lambda: None)
    monkeypatch.setattr(energy, "passes_with_counter", lambda *_: window(50.0, None, 0.02))
    found = EnergyCheck(Rig("cpu", Metered())).after(SimpleNamespace(point=point()), None, times)
    assert ("energy_pace" in found.raised()) is other
    assert "energy_pace" not in columns.DOUBTFUL


def _joules_of(driver):
    """Return the energy columns, and the joules of the counter in the time of a pass."""
    passes = []
    began = time.monotonic()

    def run():
        time.sleep(0.01)
        passes.append(time.monotonic())

    cells = energy.energy_cells(energy.passes_with_counter(driver, run, lambda: None, 5))
    return cells, (passes[-1] - began) / len(passes) * driver.watts


def test_energy_is_that_between_two_updates_of_the_counter():
    """With 100 ms between updates an unaligned window of 1.5 s is wrong by up to 7 %."""
    # what a reader of the counter saw: 500 W, in steps of 100 ms, the first of them at 0.06 s
    updates = [
        Update(10.06 + step / 10, 7e6 + 50 * step, 80.0 if step < 10 else 490.0)
        for step in range(15)
    ]
    cells = energy.energy_cells(Window(updates, 10.0, 0.02))
    assert cells.energy_j == pytest.approx(500 * 0.02)
    assert cells.energy_sampled_j == pytest.approx(490 * 0.02)  # its average knows the work
    assert cells.energy_update_ms == pytest.approx(100)
    assert cells.energy_method == "counter"
    assert energy.energy_cells(Window(updates[:10], 10.0, 0.02)) is None
    mute = [one._replace(watts=None) for one in updates]
    assert energy.energy_cells(Window(mute, 10.0, 0.02)).energy_sampled_j is None


def test_counter_and_sampled_power_are_both_kept():
    """A published pair: 187 J by the one and 327 J by the other."""
    cells, truth = _joules_of(Metered(watts=187.0, sampled=327.0))
    assert cells.energy_j == pytest.approx(truth, rel=0.25)
    assert cells.energy_sampled_j / cells.energy_j == pytest.approx(327 / 187, rel=0.25)


def test_a_counter_that_stood_still_is_not_waited_for_again(monkeypatch):
    """Five seconds for one point, not for each; a later worker knows it by the history."""
    monkeypatch.setattr(energy, "LONGEST_S", 0.2)
    ran = []

    def run():
        ran.append(time.sleep(0.01))

    times = SimpleNamespace(lanes=None, summary=SimpleNamespace(median=10.0), run=run)
    first = EnergyCheck(Rig("cpu", Metered(step_s=1e9)))
    assert first.history is False
    assert first.after(None, None, times).cells is None
    assert first.history is True
    assert ran
    ran.clear()
    later = EnergyCheck(Rig("cpu", Metered(step_s=1e9)))
    later.history = first.history
    assert first.after(None, None, times).cells is later.after(None, None, times).cells is None
    assert not ran


def test_without_a_counter_there_is_no_energy():
    """Watts are never multiplied by time: the cells stay empty, and no pass runs."""
    nvml = FakeNvml(nvmlDeviceGetPowerUsage=[70_000])
    times = SimpleNamespace(
        lanes=None, summary=SimpleNamespace(median=10.0), run=lambda: pytest.fail("ran")
    )
    for driver in (drivers.nvml(nvml, None, 0, frozenset()), None):
        assert EnergyCheck(Rig("cpu", driver)).after(None, None, times).cells is None
