"""The energy of a pass, by a counter that stands for a GPU's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hpcsweep.catalog import columns
from hpcsweep.catalog.checks.energy import EnergyCells
from hpcsweep.measure.bench import on_device
from hpcsweep.measure.checks import energy
from hpcsweep.measure.machine.gpu_telemetry import Telemetry
from hpcsweep.measure.machine.provenance import Rig
from hpcsweep.measure.timing import clocks
from measuring import point


@pytest.mark.parametrize("wanted", [True, False])
def test_energy_takes_passes_of_its_own_unless_it_is_not_wanted(wanted):
    """They take longer than a short point does, and are not in its times."""

    class Counting(Telemetry):
        asked, counts_energy = 0, True

        def energy_of(self, run, finish, block):
            self.asked += 1
            assert block >= 5
            run()
            finish()
            return EnergyCells(energy_j=0.5, energy_method="counter")

    counting = Counting()
    row = on_device("inference", "cpu", counting).measure(point(measure={"energy": wanted})).row
    assert (counting.asked, row.get("energy_j")) == ((1, 0.5) if wanted else (0, None))
    assert row["n"] == 4


class Metered(Telemetry):
    """A GPU whose counter grows by a joule with each pass."""

    counts_energy = True

    def energy_of(self, run, finish, block):
        """Run one pass."""
        run()
        return EnergyCells(energy_j=1.0, energy_method="counter")


def _energy_of(telemetry, capture, **axes):
    """Return the cells of a point whose host is slower than its device."""
    slow = SimpleNamespace(launch_bound=lambda _ms: True)
    times = SimpleNamespace(
        lanes=slow, summary=SimpleNamespace(median=1.0), run=lambda: pytest.fail("not the replay")
    )
    network = SimpleNamespace(point=point(**{"model": "resnet18", **axes}), step=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "capture", capture)
        return energy.EnergyCheck(Rig("cpu", telemetry)).after(network, None, times).cells


def test_energy_where_the_host_is_slow_is_that_of_a_graphs_replay():
    """Explicit algorithms cost the host more, and no energy: the method tells the two apart."""
    ran = []
    cells = _energy_of(Metered(), lambda _run: lambda: ran.append("replay"))
    assert cells == EnergyCells(energy_j=1.0, energy_method="graph")
    assert ran == ["replay"]


@pytest.mark.parametrize(("sampled", "apart"), [(327.0, True), (200.0, False), (None, False)])
def test_a_counter_and_a_power_that_disagree_are_flagged(sampled, apart):
    """Either may be wrong; both are in the row, whose times are good."""

    class Both(Metered):
        def energy_of(self, run, finish, block):
            return EnergyCells(energy_j=187.0, energy_sampled_j=sampled, energy_method="counter")

    row = on_device("inference", "cpu", Both()).measure(point(measure={"energy": True})).row
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
    assert _energy_of(Telemetry(), lambda _run: pytest.fail("captured")) is None
    row = on_device("inference", "cpu", Telemetry()).measure(point(measure={"energy": True})).row
    flags = set(row["flags"].split(";")) - {"noisy", "very_noisy"}
    assert flags.isdisjoint(columns.DOUBTFUL)
    assert row["median_ms"] > 0
    assert row.get("energy_j") is row.get("energy_method") is None


@pytest.mark.parametrize(("median_ms", "other"), [(1.0, True), (4e3, True), (20.0, False)])
def test_energy_of_passes_at_another_pace_than_the_timed_ones_is_flagged(median_ms, other):
    """As where the GPU waits for the host in between: its energy is not that of a timed pass."""

    class Twenty(Metered):
        def energy_of(self, run, finish, block):
            """Run passes of twenty milliseconds each, by the clock of this test."""
            for _ in range(block):
                run()
            return EnergyCells(energy_j=1.0, energy_method="counter")

    clock = SimpleNamespace(s=0.0)

    def run():
        clock.s += 0.02

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energy, "monotonic", lambda: clock.s)
        fast = SimpleNamespace(launch_bound=lambda _ms: False)
        times = SimpleNamespace(lanes=fast, summary=SimpleNamespace(median=median_ms), run=run)
        network = SimpleNamespace(point=point())
        found = energy.EnergyCheck(Rig("cpu", Twenty())).after(network, None, times)
    assert ("energy_pace" in found.raised()) is other
    assert "energy_pace" not in columns.DOUBTFUL
