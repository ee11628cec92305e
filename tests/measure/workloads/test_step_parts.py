"""Phases and ticks by injected clocks, a host that counts, a pretend GPU; the layers of a step."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from torch import nn

from hpcsweep.measure.data import loaders
from hpcsweep.measure.machine.rig import MemoryWatch
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing import clocks
from hpcsweep.measure.timing.clocks import EventStamps, HostStamps
from hpcsweep.measure.workloads import step_parts
from hpcsweep.measure.workloads.step_parts import (
    DATA,
    PHASES,
    PhaseTimer,
    PhaseTimes,
)
from hpcsweep.measure.workloads.trainer import untimed
from measuring import CPU, make_trainer, training

MS = 1_000_000


class Clock:
    """A host's clock that moves when it is told to."""

    def __init__(self):
        """Begin at nought."""
        self.ns = 0

    def __call__(self):
        """Return the time."""
        return self.ns

    def pass_ms(self, ms):
        """Let time pass."""
        self.ns += int(ms * MS)


def _host_phases(clock, **waits):
    return PhaseTimer(HostStamps(clock, **waits), HostStamps(clock))


def _step(clock, timer, between=0.0):
    with timer.step():
        for length, name in enumerate(PHASES, 1):
            with timer.phase(name):
                clock.pass_ms(length)
            clock.pass_ms(between)


def test_each_phase_has_its_own_time_and_the_step_its_own_clock():
    """1 to 6 ms, and a step that is as long as its phases."""
    clock = Clock()
    timer = _host_phases(clock)
    for _ in range(4):
        _step(clock, timer)
    times = timer.times
    row = times.cells(steps=1000, median_ms=20.0).filled()
    assert [row[f"phase_{name}_ms"] for name in PHASES] == [1, 2, 3, 4, 5, 6]
    assert row["phase_step_ms"] == 21
    assert row["phase_sum_over_step"] == 1
    assert row["phase_overhead_pct"] == pytest.approx(5)
    assert row["backward_total_s"] == 5
    assert times.flags() == []


@pytest.mark.parametrize(("between", "flags"), [(0.1, []), (0.5, ["phase_sum"])])
def test_time_in_no_phase_is_flagged_beyond_five_percent(between, flags):
    """0.6 ms of 21.6 is nothing; 3 ms of 24 is."""
    clock = Clock()
    timer = _host_phases(clock)
    _step(clock, timer, between)
    assert timer.times.flags() == flags


def test_phases_that_are_longer_than_the_step_are_flagged_too():
    """As where a device's clock is not the host's."""
    times = PhaseTimes([10.0], {name: [2.0] for name in PHASES})
    assert times.sum_over_step == pytest.approx(1.2)
    assert times.flags() == ["phase_sum"]


def test_a_phase_of_an_asynchronous_device_ends_when_the_device_has():
    """The host waits at the end of each phase, where there are no events."""
    clock = Clock()
    timer = _host_phases(clock, wait=lambda: clock.pass_ms(1))
    _step(clock, timer)
    assert timer.times.phases["h2d"] == [3]


@pytest.mark.gpu
def test_device_phases_are_the_devices_and_data_is_the_hosts(steady_gpu):
    """One wait per step; a loader that takes 4 ms, kernels that take 2 ms each."""
    gpu = steady_gpu()
    host = HostStamps(lambda: int(gpu.host_now() * MS))
    timer = PhaseTimer(EventStamps(gpu.event), host)
    for _ in range(3):
        with timer.step():
            for name in PHASES:
                with timer.phase(name):
                    if name == DATA:
                        gpu.host_works(4.0)
                    else:
                        gpu.issue(0.01, 2.0)
    times = timer.times
    assert times.phases[DATA] == pytest.approx([4.0] * 3)
    assert times.phases["backward"] == pytest.approx([2.0] * 3, rel=0.01)
    assert times.steps == pytest.approx([14.0] * 3, rel=0.01)
    assert times.flags() == []


@pytest.mark.gpu
def test_ticks_time_steps_without_waiting(steady_gpu):
    """A host that runs ahead does not shorten the device's steps; only reading waits."""
    gpu = steady_gpu()
    stamps = EventStamps(gpu.event)
    for _ in range(2):
        ticks = [stamps.now()]
        for _ in range(5):
            gpu.issue(0.01, 3.0)
            ticks.append(stamps.now())
        assert not torch.cuda.current_stream().query()
        assert clocks.intervals(stamps, ticks) == pytest.approx([3.0] * 5, rel=0.01)


def test_host_ticks_are_differences():
    """One more tick than steps."""
    stamps = HostStamps(itertools.count(0, 5 * MS).__next__)
    assert clocks.intervals(stamps, [stamps.now() for _ in range(4)]) == [5.0] * 3
    assert clocks.intervals(stamps, [stamps.now()]) == []


def test_an_untimed_phase_is_nothing():
    """What the training pass itself runs under."""
    with untimed("forward"):
        pass


@pytest.fixture
def ready():
    """Return a trainer and its data."""
    return make_trainer(training()), loaders.open_data(training())


def test_every_phase_of_every_step_is_timed(ready):
    """Six phases that are the step, but for what lies between them."""
    times = step_parts.time_phases(*ready, 4)
    assert {name: len(of_phase) for name, of_phase in times.phases.items()} == dict.fromkeys(
        PHASES, 4
    )
    assert all(time > 0 for of_phase in times.phases.values() for time in of_phase)
    assert len(times.steps) == 4
    assert times.sum_over_step < 1


def test_steps_on_a_processor_are_ticked_by_the_host():
    """One tick more than there are steps."""
    stamps = clocks.stamps_of(CPU)
    ticks = [stamps.now() for _ in range(3)]
    assert (stamps.timer, len(clocks.intervals(stamps, ticks))) == ("host", 2)


def test_the_memory_of_a_step_is_an_average_in_bytes(ready):
    """Between nothing and all that there is; unknown where the system does not say."""
    watched = MemoryWatch()
    assert 0 < step_parts.average_memory(*ready, watched) < watched.limit()

    class Silent:
        def now(self):
            return None

    assert step_parts.average_memory(*ready, Silent()) is None


class Watching(nn.Module):
    """Convolves three times, once of these for the eye alone; a fourth convolution is frozen."""

    def __init__(self):
        """Build them."""
        super().__init__()
        self.frozen, self.shared = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.last = nn.Conv2d(3, 10, 1)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x):
        """Run a pass."""
        with torch.no_grad():
            weights = self.shared(x).sigmoid()
        return self.last(self.shared(weights * self.frozen(x))).mean((2, 3))


@pytest.mark.parametrize("algorithm", ["auto", "gemm"])
def test_convolutions_without_gradients_have_no_backward_row(monkeypatch, algorithm):
    """Frozen ones whose input has none, and calls under `no_grad`; the others have their own."""
    monkeypatch.setitem(sys.modules, "watching", sys.modules[__name__])
    everything = {"layers": True, "evidence": True, "numerics": True}
    wanted = training("watching:Watching", algorithm=algorithm, measure=everything)
    done = on_device("training", "cpu").measure(wanted)
    rows = [row for row in done.layers if row["op"] == "conv2d"]
    calls = [(row["layer"], row["direction"]) for row in rows]
    assert calls == [
        *((name, "forward") for name in ("shared", "frozen", "shared", "last")),
        *((name, "backward") for name in ("shared", "last")),
    ]
    assert all(row["mean_ms"] > 0 for row in rows)
    assert rows[4]["flops"] == rows[0]["flops"]  # the frozen one's output needs no gradient
    assert rows[5]["flops"] == 2 * rows[3]["flops"]
    assert all(row["algorithm_evidence"].startswith("profiler: ") for row in rows)
    assert all(row["algorithm_used"] == algorithm or algorithm == "auto" for row in rows)
    assert not {"algorithm_mismatch", "fallback"} & set(done.row["flags"].split(";"))
    assert done.row["algorithm_coverage_time_pct"] == pytest.approx(100)


def test_layers_forward_then_convolutions_backward_then_the_rest():
    """All of it is the pass; no weight moves."""
    point = training()
    trainer = make_trainer(point)
    batch = next(loaders.open_data(point).epoch(0))
    shapes = shape_pass(trainer.model, batch[0])
    before = trainer.state_dict()
    table, seconds = step_parts.time_layers(trainer, batch, shapes, 3)
    assert seconds > 3 * table.overall_cells().layer_pass_mean_ms / 1000
    rows = table.rows(point, [{}] * 4)
    directions = [(row["layer"], row["direction"]) for row in rows[5:]]
    assert directions == [
        ("head", "forward"),
        ("stem", "backward"),
        ("conv", "backward"),
        ("__other__", None),
    ]
    assert {row["n"] for row in rows} == {3}
    assert sum(row["percentage"] for row in rows) == pytest.approx(100)
    assert len(table.convolution_means()[0]) == 4
    weights = dict(trainer.model.named_parameters())
    assert all(torch.equal(before["model"][name], value) for name, value in weights.items())
