"""Cheap facts on a simulated queue: what they read is what the simulation has."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import facts, layers, machine
from simulatedgpu import SimulatedGpu, SimulatedMachine


def calls_of(gpu, host_ms, device_ms):
    """Return a call that takes the host and the device so long."""
    return lambda: gpu.issue(host_ms, device_ms)


@pytest.mark.parametrize("limit", [300, 1022])
def test_the_depth_of_the_queue_is_found(limit):
    """In entries: of a launch with two events the third part; the delay takes one."""
    for entries, marked in ((1, False), (3, True)):
        gpu = SimulatedGpu(queue_limit=limit)
        found = facts.depth(
            SimulatedMachine(gpu), calls_of(gpu, 0.005, 0.002), entries=entries, marked=marked
        )
        assert found["holds"] == pytest.approx(limit, abs=4)


def test_a_queue_that_is_never_full_is_told_as_such():
    """With how much was tried."""
    gpu = SimulatedGpu()
    found = facts.depth(SimulatedMachine(gpu), calls_of(gpu, 0.005, 0.002), entries=1, marked=False)
    assert (found["holds"], found["tried"]) == (None, 6000)
    assert found["host_us_each"] == pytest.approx(5.0)


def test_a_pause_of_the_system_is_no_full_queue():
    """A full queue makes the host wait until the delay is over."""
    gaps = [0.005] * 500 + [20.0] + [0.005] * 500
    assert facts.first_stall(gaps, 200.0) is None
    assert facts.first_stall([*gaps, 370.0, 0.01], 200.0) == 1001


def test_what_an_event_adds_is_told_apart_from_the_call():
    """An event takes 0.8 us of the device here, a call 3."""
    gpu = SimulatedGpu()
    event = gpu.event

    def costly():
        made = event()
        plain = made.record

        def record():
            gpu.issue(0.001, 0.0008)
            plain()

        made.record = record
        return made

    gpu.event = costly
    found = facts.floor(SimulatedMachine(gpu), calls_of(gpu, 0.004, 0.003), 10)
    assert found["event_us"] == pytest.approx(3.8, abs=0.01)  # its end event waits for itself
    assert found["two_events_add_us"] == pytest.approx(1.6, abs=0.1)
    assert found["batch_us"] == pytest.approx(3.0, abs=0.1)


def test_a_bare_loop_reads_the_device_though_the_host_is_slower():
    """And so does the batch by the product's clock: what claim (j) compares."""
    gpu = SimulatedGpu()
    runs = {name: calls_of(gpu, 0.02, ms) for name, ms in (("auto", 0.004), ("fft", 0.030))}
    found = layers.compare(SimulatedMachine(gpu), runs, 12)
    for name, us in (("auto", 4.0), ("fft", 30.0)):
        for how in ("graph", "stream"):
            assert found[f"{how}_bare_us"][name] == pytest.approx(us, rel=0.01)
            assert found[how][name]["us"] == pytest.approx(us, rel=0.01)
    assert found["failed"] == {}


def test_an_algorithm_that_cannot_be_batched_is_told_and_the_others_are_timed():
    """A capture may fail for one of them."""
    gpu = SimulatedGpu()

    def broken():
        raise RuntimeError("/opt/lib/libcudnn.so: not while capturing\nmore")

    runs = {"auto": calls_of(gpu, 0.01, 0.004), "fft": broken}
    found = layers.compare(SimulatedMachine(gpu), runs, 8)
    assert found["failed"] == {"fft": "libcudnn.so: not while capturing"}
    assert list(found["graph"]) == ["auto"]


def test_lanes_take_turns_so_that_drift_hits_all_alike():
    """A device that slows down over the measuring does not make the last one slower."""
    gpu = SimulatedGpu()
    runs = {name: lambda: gpu.issue(0.001, 0.01 * (1 + gpu.device / 10_000)) for name in ("a", "b")}
    times = machine.in_turns(SimulatedMachine(gpu), runs, 60)
    assert sum(times["a"]) == pytest.approx(sum(times["b"]), rel=0.005)


def test_the_resolution_is_the_smallest_step_between_times():
    """Of times that differ at all."""
    assert machine.resolution([1.0, 1.5, 1.5, 1.75]) == 0.25
    assert machine.resolution([2.0, 2.0]) is None


@pytest.mark.gpu(real=True)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
def test_a_real_gpu_has_a_floor_and_a_queue():
    """Of plausible size."""
    gpu = machine.Gpu()
    few = torch.zeros(8, device="cuda")
    floor = facts.floor(gpu, lambda: few.add_(1), 20)
    assert 0.5 < floor["event_us"] < 100
    assert 0.5 < floor["batch_us"] < 50
    held = facts.depth(gpu, lambda: few.add_(1), entries=1, marked=False)
    assert held["holds"] is None or held["holds"] > 100
