"""Phases and ticks by injected clocks: a host that counts, a pretend GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from hpcsweep.measure.data import loaders
from hpcsweep.measure.machine import peak_memory
from hpcsweep.measure.timing.clocks import EventStamps, HostStamps
from hpcsweep.measure.workloads.training import phases
from hpcsweep.measure.workloads.training.phases import (
    DATA,
    PHASES,
    PhaseTimer,
    PhaseTimes,
    Ticker,
)
from hpcsweep.measure.workloads.training.trainer import untimed
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
    return PhaseTimer(HostStamps(clock), host=HostStamps(clock), **waits)


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
    timer = _host_phases(clock, after_phase=lambda: clock.pass_ms(1))
    _step(clock, timer)
    assert timer.times.phases["h2d"] == [3]


@pytest.mark.gpu
def test_device_phases_are_the_devices_and_data_is_the_hosts(steady_gpu):
    """One wait per step; a loader that takes 4 ms, kernels that take 2 ms each."""
    gpu = steady_gpu()
    host = HostStamps(lambda: int(gpu.host_now() * MS))
    timer = PhaseTimer(EventStamps(gpu.event), host=host, around_step=gpu.synchronize)
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
    ticker = Ticker(EventStamps(gpu.event), before_read=gpu.synchronize)
    for _ in range(2):
        ticker.tick()
        for _ in range(5):
            gpu.issue(0.01, 3.0)
            ticker.tick()
        assert not torch.cuda.current_stream().query()
        assert ticker.read() == pytest.approx([3.0] * 5, rel=0.01)


def test_host_ticks_are_differences():
    """One more tick than steps."""
    ticker = Ticker(HostStamps(itertools.count(0, 5 * MS).__next__))
    for _ in range(4):
        ticker.tick()
    assert ticker.read() == [5.0] * 3
    ticker.tick()
    assert ticker.read() == []


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
    times = phases.time_phases(*ready, 4, phases.phase_timer(CPU))
    assert {name: len(of_phase) for name, of_phase in times.phases.items()} == dict.fromkeys(
        PHASES, 4
    )
    assert all(time > 0 for of_phase in times.phases.values() for time in of_phase)
    assert len(times.steps) == 4
    assert times.sum_over_step < 1


def test_steps_are_ticked_without_touching_them(ready):
    """One tick more than there are steps."""
    ticker = phases.ticker(CPU)
    for _ in range(3):
        ticker.tick()
    assert (ticker.timer, len(ticker.read()), ticker.read()) == ("host", 2, [])


def test_the_memory_of_a_step_is_an_average_in_bytes(ready):
    """Between nothing and all that there is; unknown where the system does not say."""
    watched = peak_memory.watch(CPU)
    assert 0 < phases.average_memory(*ready, watched) < watched.limit()

    class Silent:
        def now(self):
            return None

    assert phases.average_memory(*ready, Silent()) is None
