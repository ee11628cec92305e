"""Clocks: the host's for real, the device's on a simulated queue and, where there is one, a GPU."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.measure.clocks import Cuda, DeviceClock, HostClock, capture
from simulatedgpu import SimulatedGpu


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


def test_device_times_are_the_devices_though_the_host_is_slower():
    """Behind a delay, 100 kernels of 10 us read 1 ms even if issuing each takes 30 us."""
    gpu = SimulatedGpu()
    clock, times = _measured(gpu, _network(gpu, 100, host_ms=0.03, device_ms=0.01))
    assert times == pytest.approx([1.0] * 5, rel=0.01)
    assert not clock.mostly_starved
    assert clock.host_ms == pytest.approx(3.0, rel=0.01)
    assert clock.launch_bound(1.0)


def test_without_a_working_delay_the_pass_counts_as_starved():
    """Where the delay does nothing, the events measure the host, and the clock says so."""
    gpu = SimulatedGpu()
    gpu.delay = lambda _ms: None
    clock, times = _measured(gpu, _network(gpu, 100, host_ms=0.03, device_ms=0.01))
    assert times[0] == pytest.approx(3.0, rel=0.05)
    assert clock.mostly_starved


def test_a_busy_device_is_neither_starved_nor_launch_bound():
    """Large kernels: the host is ahead without help."""
    gpu = SimulatedGpu()
    clock, times = _measured(gpu, _network(gpu, 100, host_ms=0.01, device_ms=0.5))
    assert times == pytest.approx([50.0] * 5, rel=0.01)
    assert not clock.mostly_starved
    assert not clock.launch_bound(50.0)


def test_a_full_queue_that_makes_the_host_wait_is_not_starvation():
    """With many launches queued the driver blocks the host: the device has work all the time."""
    gpu = SimulatedGpu(queue_limit=100)
    clock, times = _measured(gpu, _network(gpu, 500, host_ms=0.02, device_ms=0.03))
    assert times == pytest.approx([15.0] * 5, rel=0.01)
    assert not clock.mostly_starved


def test_what_prepares_a_pass_is_outside_its_events():
    """Flushing the cache queues work of its own; it is not in the time."""
    gpu = SimulatedGpu()
    run = _network(gpu, 10, host_ms=0.01, device_ms=0.1)
    clock = DeviceClock(gpu, lambda: gpu.issue(0.01, 7.0))
    clock.calibrate(run)
    assert clock.block(run, 3) == pytest.approx([1.0] * 3, rel=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
def test_events_and_graph_replay_time_a_real_gpu():
    """On a GPU the device clock and a replayed graph agree on one large matrix product."""
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
