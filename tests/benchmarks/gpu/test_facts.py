"""Cheap facts, on a pretend GPU of known times: what they read is what it has."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import facts, layers
from benchmarks.gpu.machine import Gpu, in_turns, resolution


def calls_of(steady, host_ms, device_ms):
    """Return a call that takes the host and the device so long."""
    return lambda: steady.issue(host_ms, device_ms)


@pytest.mark.gpu
@pytest.mark.parametrize("limit", [300, 1022])
def test_the_depth_of_the_queue_is_found(limit, steady_gpu):
    """In entries: of a launch with two events the third part; the delay takes one."""
    steady = steady_gpu(queue_limit=limit)
    call = calls_of(steady, 0.005, 0.002)
    for entries, marked in ((1, False), (3, True)):
        found = facts.depth(Gpu(steady), call, entries=entries, marked=marked)
        assert found["holds"] == pytest.approx(limit, abs=4)


@pytest.mark.gpu
def test_a_queue_that_is_never_full_is_told_as_such(steady_gpu):
    """With how much was tried."""
    steady = steady_gpu()
    call = calls_of(steady, 0.005, 0.002)
    found = facts.depth(Gpu(steady), call, entries=1, marked=False)
    assert (found["holds"], found["tried"]) == (None, 6000)
    assert found["host_us_each"] == pytest.approx(5.0)


def test_a_pause_of_the_system_is_no_full_queue():
    """A full queue makes the host wait until the delay is over."""
    gaps = [0.005] * 500 + [20.0] + [0.005] * 500
    assert facts.first_stall(gaps, 200.0) is None
    assert facts.first_stall([*gaps, 370.0, 0.01], 200.0) == 1001


@pytest.mark.gpu
def test_what_an_event_adds_is_told_apart_from_the_call(steady_gpu):
    """An event takes 0.8 us of the device here, a call 3."""
    steady = steady_gpu(event_ms=0.0008)
    found = facts.floor(Gpu(steady), calls_of(steady, 0.004, 0.003), 10)
    assert found["event_us"] == pytest.approx(3.8, abs=0.01)  # its end event waits for itself
    assert found["two_events_add_us"] == pytest.approx(1.6, abs=0.1)
    assert found["batch_us"] == pytest.approx(3.0, abs=0.1)


@pytest.mark.gpu
def test_a_bare_loop_reads_the_device_though_the_host_is_slower(steady_gpu):
    """And so does the batch by the product's clock: what claim (j) compares."""
    steady = steady_gpu()
    us_of = {"auto": 4.0, "fft": 30.0}
    runs = {name: calls_of(steady, 0.02, us / 1000) for name, us in us_of.items()}
    found = layers.compare(Gpu(steady), runs, 12)
    for name, us in us_of.items():
        for how in ("graph", "stream"):
            assert found[f"{how}_bare_us"][name] == pytest.approx(us, rel=0.01)
            assert found[how][name]["us"] == pytest.approx(us, rel=0.01)
    assert found["failed"] == {}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_an_algorithm_that_cannot_be_batched_is_told_and_the_others_are_timed(steady_gpu):
    """It waits for the device, which a capture refuses."""
    steady = steady_gpu()

    def waiting():
        steady.issue(0.01, 0.03)
        steady.synchronize()

    runs = {"fft": waiting, "auto": calls_of(steady, 0.01, 0.004)}
    found = layers.compare(Gpu(steady), runs, 8)
    assert list(found["failed"]) == ["fft"]
    assert "not permitted when stream is capturing" in found["failed"]["fft"]
    assert list(found["graph"]) == ["auto"]


@pytest.mark.gpu
def test_lanes_take_turns_so_that_drift_hits_all_alike(steady_gpu):
    """A device that slows down over the measuring does not make the last one slower."""
    steady = steady_gpu()
    issued = []

    def slower_and_slower():
        issued.append(0.01 * (1 + len(issued) / 100))
        steady.issue(0.001, issued[-1])

    times = in_turns(Gpu(steady), {"a": slower_and_slower, "b": slower_and_slower}, 60)
    assert sum(times["a"]) == pytest.approx(sum(times["b"]), rel=0.005)


def test_the_resolution_is_the_smallest_step_between_times():
    """Of times that differ at all."""
    assert resolution([1.0, 1.5, 1.5, 1.75]) == 0.25
    assert resolution([2.0, 2.0]) is None


@pytest.mark.gpu(real=True)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
def test_a_real_gpu_has_a_floor_and_a_queue():
    """Of plausible size."""
    gpu = Gpu()
    few = torch.zeros(8, device="cuda")
    floor = facts.floor(gpu, lambda: few.add_(1), 20)
    assert 0.5 < floor["event_us"] < 100
    assert 0.5 < floor["batch_us"] < 50
    held = facts.depth(gpu, lambda: few.add_(1), entries=1, marked=False)
    assert held["holds"] is None or held["holds"] > 100
