"""Clocks: the host's for real, the device's on a pretend GPU and a real one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from hpcsweep.measure.timing import clocks
from hpcsweep.measure.timing.clocks import (
    Cuda,
    DeviceClock,
    EventStamps,
    HostClock,
    HostStamps,
    capture,
)


def _network(gpu, kernels, host_ms, device_ms):
    def run():
        for _ in range(kernels):
            gpu.issue(host_ms, device_ms)

    return run


def _measured(gpu, run, count=5):
    clock = DeviceClock(gpu)
    clock.calibrate(run)
    return clock, clock.block(run, count)


def test_the_host_clock_times_the_pass_and_not_what_prepares_it():
    """Preparing comes before the pass, waiting for the device belongs to it."""
    order = []
    clock = HostClock(lambda: order.append("prepare"), lambda: order.append("finish"))
    times = clock.block(lambda: order.append("run"), 2)
    assert order == ["prepare", "run", "finish"] * 2
    assert len(times) == 2
    assert all(time > 0 for time in times)


@pytest.mark.gpu
def test_device_times_are_the_devices_though_the_host_is_slower(steady_gpu):
    """Behind a delay, 100 kernels of 10 us read 1 ms even if issuing each takes 30 us."""
    gpu = steady_gpu()
    clock, times = _measured(gpu, _network(gpu, 100, host_ms=0.03, device_ms=0.01))
    assert times == pytest.approx([1.0] * 5, rel=0.01)
    assert not clock.mostly_starved
    assert clock.host_ms == pytest.approx(3.0, rel=0.01)
    assert clock.launch_bound(1.0)


@pytest.mark.gpu
def test_without_a_working_delay_the_pass_counts_as_starved(steady_gpu):
    """Where the delay does nothing, the events measure the host, and the clock says so."""
    gpu = steady_gpu()
    gpu.delay = lambda _ms: None
    clock, times = _measured(gpu, _network(gpu, 100, host_ms=0.03, device_ms=0.01))
    assert times[0] == pytest.approx(3.0, rel=0.05)
    assert clock.mostly_starved


@pytest.mark.gpu
def test_a_busy_device_is_neither_starved_nor_launch_bound(steady_gpu):
    """Large kernels: the host is ahead without help."""
    gpu = steady_gpu()
    clock, times = _measured(gpu, _network(gpu, 100, host_ms=0.01, device_ms=0.5))
    assert times == pytest.approx([50.0] * 5, rel=0.01)
    assert not clock.mostly_starved
    assert not clock.launch_bound(50.0)


@pytest.mark.gpu
def test_a_full_queue_that_makes_the_host_wait_is_not_starvation(steady_gpu):
    """With many launches queued the driver blocks the host: the device has work all the time."""
    gpu = steady_gpu(queue_limit=100)
    clock, times = _measured(gpu, _network(gpu, 500, host_ms=0.02, device_ms=0.03))
    assert times == pytest.approx([15.0] * 5, rel=0.01)
    assert not clock.mostly_starved


@pytest.mark.gpu
def test_what_prepares_a_pass_is_outside_its_events(steady_gpu):
    """Flushing the cache queues work of its own; it is not in the time."""
    gpu = steady_gpu()
    run = _network(gpu, 10, host_ms=0.01, device_ms=0.1)
    clock = DeviceClock(gpu, lambda: gpu.issue(0.01, 7.0))
    clock.calibrate(run)
    assert clock.block(run, 3) == pytest.approx([1.0] * 3, rel=0.01)


@pytest.mark.gpu
def test_the_delay_tells_the_clock_of_each_pass(steady_gpu):
    """Its cycles are known, and two events tell how long they took; a short one tells nothing."""
    gpu = steady_gpu(mhz=1500)
    clock, _ = _measured(gpu, _network(gpu, 100, host_ms=0.03, device_ms=0.01))
    assert clock.sm_clock_mhz == pytest.approx(1500, rel=0.01)
    short, _ = _measured(gpu, _network(gpu, 1, host_ms=0.03, device_ms=0.01))
    assert short.sm_clock_mhz is None


@pytest.mark.gpu
def test_a_warm_up_that_counts_its_passes_waits_for_no_delay(steady_gpu):
    """Ten passes take the host's time for them instead of that and more for the delays."""
    gpu = steady_gpu()
    run = _network(gpu, 100, host_ms=0.36, device_ms=0.06)
    clock = DeviceClock(gpu)
    clock.calibrate(run)
    began = gpu.host_now()
    with clock.undelayed():
        clock.block(run, 10)
    assert gpu.host_now() - began == pytest.approx(360, rel=0.05)
    assert (clock.passes, clock.sm_clock_mhz) == (0, None)
    clock.block(run, 10)
    assert clock.sm_clock_mhz == pytest.approx(2000, rel=0.01)


class _Delays:
    """The milliseconds of the delays that a GPU is asked for."""

    def __init__(self, gpu):
        self.ms, self.queue = [], gpu.delay
        gpu.delay = self

    def __call__(self, ms):
        self.ms.append(ms)
        return self.queue(ms)


@pytest.mark.gpu
@pytest.mark.parametrize("faster", [1.0, 0.85])
def test_a_delay_is_as_much_shorter_as_earlier_passes_keep_the_device_busy(faster, steady_gpu):
    """A block takes the host's time and one delay, and no pass starves if the device is faster."""
    gpu = steady_gpu()
    clock, _ = _measured(gpu, _network(gpu, 100, host_ms=0.03, device_ms=0.02), 1)
    began = gpu.host_now()
    delays = _Delays(gpu)
    times = clock.block(_network(gpu, 100, host_ms=0.03, device_ms=0.02 * faster), 10)
    assert times == pytest.approx([2.0 * faster] * 10, rel=0.01)
    assert clock.starved == 0
    assert gpu.host_now() - began < 10 * 3.0 + 6
    assert delays.ms[0] == pytest.approx(3.8)
    assert max(delays.ms[1:]) < 2.5


@pytest.mark.gpu
def test_a_device_that_is_slower_than_the_host_is_delayed_once(steady_gpu):
    """It has work all the time after that."""
    gpu = steady_gpu()
    run = _network(gpu, 100, host_ms=0.01, device_ms=0.05)
    clock, _ = _measured(gpu, run, 1)
    delays = _Delays(gpu)
    assert clock.block(run, 10) == pytest.approx([5.0] * 10, rel=0.01)
    assert len(delays.ms) == 1
    assert clock.starved == 0


@pytest.mark.gpu
def test_a_pair_of_events_around_nothing_reads_what_an_event_costs(steady_gpu):
    """A part of every layer's time that is not the layer's; next to nothing of a whole pass."""
    gpu = steady_gpu(event_ms=0.002)
    assert clocks.event_floor_ms(gpu) == pytest.approx(0.002)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("hip", "known", "cycles"),
    [
        (None, {"clock_rate": 1_980_000}, 1_980_000),
        (None, {"clock_rate": 1_980_000_000}, 20 * 345_000),  # in another unit than expected
        (None, {}, 345_000),
        ("6.2", {"clock_rate": 1_700_000}, 345_000),
    ],
)
def test_a_delay_is_long_enough_though_it_was_measured_on_a_resting_gpu(
    monkeypatch, hip, known, cycles, steady_gpu
):
    """The highest clock counts where torch knows it; where not, the highest that was seen.

    The GPU spins at 345 MHz.
    """
    steady_gpu(mhz=345)
    monkeypatch.setattr(torch.version, "hip", hip)
    told = SimpleNamespace(**known)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: told)
    assert clocks.cycles_per_ms() == pytest.approx(cycles)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
def test_a_delay_on_a_real_gpu_lasts_as_long_as_asked_or_somewhat_longer():
    """Else the host is not ahead, or the sweep waits for nothing."""
    gpu = Cuda()
    begin, end = gpu.event(), gpu.event()
    for _ in range(3):
        begin.record()
        gpu.delay(20.0)
        end.record()
        gpu.synchronize()
    assert 19.0 < begin.elapsed_time(end) < 60.0


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or clocks.external_event() is None,
    reason="no GPU that this torch supports, or no events in graphs",
)
@pytest.mark.usefixtures("nothing_computed")
def test_events_in_a_graph_time_what_lies_between_them_in_every_replay():
    """A matrix product of a graph takes as long between its events as by itself."""
    a = torch.randn(4096, 4096, device="cuda")
    marks = [clocks.external_event() for _ in range(3)]

    def run():
        marks[0].record()
        product = a @ a
        marks[1].record()
        product = product @ a
        marks[2].record()
        return product

    replay = capture(run)
    alone = DeviceClock(Cuda())
    alone.calibrate(lambda: a @ a)
    alone.block(lambda: a @ a, 10)
    wanted = sorted(alone.block(lambda: a @ a, 11))[5]
    for _ in range(2):
        replay()
        torch.cuda.synchronize()
        assert marks[0].elapsed_time(marks[1]) == pytest.approx(wanted, rel=0.3)
        assert marks[1].elapsed_time(marks[2]) == pytest.approx(wanted, rel=0.3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
@pytest.mark.usefixtures("nothing_computed")
def test_events_and_graph_replay_time_a_real_gpu(monkeypatch):
    """On a GPU the device clock and a replayed graph agree on one large matrix product."""
    monkeypatch.setenv("PRETEND_KERNEL_US", "20000")  # large on a pretend GPU, too
    a = torch.randn(4096, 4096, device="cuda")
    eager = DeviceClock(Cuda())
    eager.calibrate(lambda: a @ a)
    replay = capture(lambda: a @ a)
    graph = DeviceClock(Cuda(), timer="graph")
    graph.calibrate(replay)
    eager.block(lambda: a @ a, 10)
    first, second = sorted(eager.block(lambda: a @ a, 20))[10], sorted(graph.block(replay, 20))[10]
    assert first == pytest.approx(second, rel=0.3)
    assert not eager.mostly_starved


def test_the_hosts_moments_are_nanoseconds_apart():
    """Told in milliseconds."""
    stamps = HostStamps(itertools.count(0, 2_500_000).__next__)
    first, second = stamps.now(), stamps.now()
    assert stamps.ms(first, second) == 2.5
    stamps.reuse(10)
    assert stamps.timer == "host"


@pytest.mark.gpu
def test_events_are_made_once_and_recorded_again(steady_gpu):
    """The second block takes the first one's events; what is announced is made beforehand."""
    gpu, made = steady_gpu(), []

    def new():
        made.append(gpu.event())
        return made[-1]

    stamps = EventStamps(new)
    for _ in range(2):
        stamps.reuse(2)
        assert len(made) == 2
        begin = stamps.now()
        gpu.issue(0.01, 2.0)
        end = stamps.now()
        gpu.synchronize()
        assert stamps.ms(begin, end) == pytest.approx(2.0, rel=0.01)
    assert len(made) == 2


@pytest.mark.gpu
def test_more_events_than_announced_are_made_as_they_come(steady_gpu):
    """A network that changes its path is told by the count, not by an IndexError."""
    stamps = EventStamps(steady_gpu().event)
    stamps.reuse(1)
    assert len({id(stamps.now()) for _ in range(5)}) == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="would wait for a real GPU")
def test_waiting_for_a_processor_is_waiting_for_nothing():
    """Only asynchronous devices are waited for."""
    assert clocks.synchronizer(torch.device("cpu"))() is None
