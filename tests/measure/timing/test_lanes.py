"""Lanes per device; the GPU's on a pretend one, whose times are known."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

import tinynets
from hpcsweep.measure import model_builder
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing import clocks, lanes
from hpcsweep.measure.timing.lanes import LaneWork
from hpcsweep.measure.timing.loop import Fixed, collect
from measuring import CPU, point

GPU = torch.device("cuda", 0)


def _pass(*, with_layers=True):
    wanted = point()
    model = model_builder.build(model_builder.ModelKey.of(wanted), CPU)
    (image,) = model_builder.make_inputs(wanted, CPU)
    calls = shape_pass(model, image).calls if with_layers else ()
    prepared = []
    return LaneWork(model, lambda: model(image), lambda: prepared.append(1), calls), prepared


def _check(found, passes=4):
    with torch.inference_mode():
        done = collect(found.all(), Fixed(passes))
    assert [len(times) for times in done.times] == [passes] * 2
    timed = found.timed()
    assert [len(times) for times in timed.times] == [passes] * 6
    for whole, *parts in zip(done.times[1], *timed.times, strict=True):
        assert whole >= sum(parts)


def test_a_processor_is_timed_by_the_host():
    """Two lanes, both by the host's clock; no device clock."""
    work, prepared = _pass()
    found = lanes.make_lanes(CPU, "eager", work)
    _check(found)
    assert found.timer_name == found.timed().timer == "host"
    assert found.device_clock is None
    assert len(prepared) == 8


def test_without_calls_there_is_no_layer_lane():
    """A point that wants no layers has the clean lane alone."""
    work, _ = _pass(with_layers=False)
    found = lanes.make_lanes(CPU, "eager", work)
    assert found.all() == [found.clean]
    assert not found.parts


class _Queueing(torch.nn.Module):
    """A layer that queues one kernel on the pretend GPU."""

    def __init__(self, gpu, host_ms, device_ms):
        super().__init__()
        self._work = gpu, host_ms, device_ms

    def forward(self, x):
        gpu, host_ms, device_ms = self._work
        gpu.issue(host_ms, device_ms)
        return x


def _deep(gpu, layers=570, host_ms=0.03, device_ms=0.01, last_ms=None):
    """Return a pass like the one of ResNet-152: 1,710 entries with events, and a slow host."""
    times = [device_ms] * (layers - 1) + [last_ms or device_ms]
    model = torch.nn.Sequential(*(_Queueing(gpu, host_ms, each) for each in times))
    x = torch.zeros(1, 3, 2, 2)
    calls = shape_pass(model, x).calls
    return LaneWork(model, lambda: model(x), lambda: None, calls, calls)


def _layer_pass(gpu, work, monkeypatch, passes=3, launch="eager"):
    monkeypatch.setattr(lanes, "Cuda", lambda: gpu)
    found = lanes.make_lanes(GPU, launch, work)
    return found, collect(found.all(), Fixed(passes))


@pytest.mark.gpu
def test_a_gpu_is_timed_by_events_with_a_clock_per_lane(monkeypatch, steady_gpu):
    """Calibration leaves no times behind; the layer lane knows its own, larger host time."""
    gpu = steady_gpu()
    monkeypatch.setenv("PRETEND_HOST_US", "5")  # for each kernel and event
    work = _deep(gpu, layers=6)
    found, done = _layer_pass(gpu, work, monkeypatch)
    assert found.timer_name == found.timed().timer == "events"
    assert done.times == [pytest.approx([0.06] * 3)] * 2
    assert [*found.timed().times] == [pytest.approx([0.01] * 3)] * 6
    assert found.device_clock.host_ms == pytest.approx(6 * 0.035)
    (layers,) = found.layers
    assert layers.clock is not found.device_clock
    assert layers.clock.host_ms == pytest.approx(6 * 0.035 + 12 * 0.005)


@pytest.mark.gpu
@pytest.mark.parametrize(("warmup", "after_first"), [(10, 9), (1, 3)])
def test_passes_that_calibrate_a_clock_are_warm_up_passes(
    monkeypatch, steady_gpu, warmup, after_first
):
    """They run the same work on the same GPU; those with timers in them do not count."""
    gpu, ran = steady_gpu(), []
    monkeypatch.setattr(lanes, "Cuda", lambda: gpu)
    work = dataclasses.replace(_deep(gpu, layers=6), calls=())
    run = work.run
    counted = dataclasses.replace(work, run=lambda: ran.append(run()), watched=())
    found = lanes.make_lanes(GPU, "eager", counted)
    assert found.warm_up({"warmup": warmup, "stop": "fixed"}) == len(ran) == after_first


@pytest.mark.gpu
def test_a_graph_replays_and_its_layers_are_read_after_every_replay(monkeypatch, steady_gpu):
    """The layer lane replays a second capture, which has the events in it."""
    gpu = steady_gpu(event_ms=0.001)
    work = _deep(gpu, layers=6)
    found, done = _layer_pass(gpu, work, monkeypatch, launch="graph")
    assert found.timer_name == found.timed().timer == "graph"
    clean, layers = done.times
    assert clean == pytest.approx([6 * 0.01 + 0.001] * 3)
    assert layers == pytest.approx([6 * 0.01 + 13 * 0.001] * 3)
    assert [*found.timed().times] == [pytest.approx([0.011] * 3)] * 6


@pytest.mark.gpu
def test_what_a_graph_returned_outlives_the_replays_of_the_other():
    """In memory that both share, it lies in buffers that the other one overwrites."""
    model = tinynets.convolutions_alone().eval().cuda()
    image = torch.randn(1, 3, 16, 16).cuda()
    calls = shape_pass(model, image).calls
    work = LaneWork(model, lambda: model(image), lambda: None, calls)
    with torch.inference_mode():
        found = lanes.make_lanes(GPU, "graph", work)
        runs = [lane.run for lane in found.all()]
        for first, second in itertools.permutations(runs):
            output = first()
            second()
            torch.testing.assert_close(output.cpu(), model(image).cpu())


@pytest.mark.gpu
def test_a_torch_whose_events_cannot_be_captured_has_no_layers_in_a_graph(monkeypatch, steady_gpu):
    """The overall time is still there; the layer rows are missing rather than wrong."""
    monkeypatch.setattr(clocks, "external_event", lambda: None)
    gpu = steady_gpu()
    found, done = _layer_pass(gpu, _deep(gpu, layers=6), monkeypatch, launch="graph")
    assert (found.parts, found.uncaptured) == (0, True)
    assert done.times == [pytest.approx([0.06] * 3)]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("error", ["External events are disallowed in rocm", "out of memory"])
def test_events_that_raise_when_recorded_leave_the_replay_without_layers(
    monkeypatch, error, steady_gpu
):
    """As on ROCm, where they can be made; another error is none of theirs."""

    class Raising(torch.cuda.Event):
        def record(self):
            raise RuntimeError(error)

    monkeypatch.setattr(clocks, "external_event", Raising)
    gpu = steady_gpu()
    work = _deep(gpu, layers=6)
    if "event" not in error.lower():
        with pytest.raises(RuntimeError, match=error):
            _layer_pass(gpu, work, monkeypatch, launch="graph")
        return
    found, done = _layer_pass(gpu, work, monkeypatch, launch="graph")
    assert (found.parts, found.uncaptured) == (0, True)
    assert done.times == [pytest.approx([0.06] * 3)]


@pytest.mark.gpu
@pytest.mark.parametrize("last_ms", [None, 30.0])
def test_a_layer_pass_that_overflows_the_queue_is_timed_in_parts(monkeypatch, last_ms, steady_gpu):
    """A thousand entries fit, 570 layers and their events are 1,710: the times stay the device's.

    In one pass the host would have to wait for the delay to end, and the device then for the host;
    a long last layer would hide that from who looks at the end of the pass alone.
    """
    gpu = steady_gpu(queue_limit=1000)
    work = _deep(gpu, last_ms=last_ms)
    found, done = _layer_pass(gpu, work, monkeypatch)
    timed = found.timed()
    medians = [sorted(times)[1] for times in timed.times]
    assert medians[:-1] == pytest.approx([0.01] * 569, abs=0.001)
    assert [call.layer for call in timed.calls] == [call.layer for call in work.calls]
    assert found.parts == 2
    assert not found.timed().starved
    assert found.pass_times(done.times) == pytest.approx(done.times[0], rel=0.01)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("last_ms", [None, 60.0])
@pytest.mark.parametrize(("layers", "starved"), [(300, False), (900, False), (1600, True)])
def test_a_clean_pass_is_watched_inside(monkeypatch, layers, last_ms, starved, steady_gpu):
    """What does not fit the queue starves it in the middle; a long last layer hides nothing."""
    gpu = steady_gpu(queue_limit=1000)
    monkeypatch.setattr(lanes, "Cuda", lambda: gpu)
    work = dataclasses.replace(_deep(gpu, layers=layers, last_ms=last_ms), calls=())
    found = lanes.make_lanes(GPU, "eager", work)
    collect(found.all(), Fixed(3))
    assert found.starved == starved
    unwatched = lanes.make_lanes(GPU, "eager", dataclasses.replace(work, watched=()))
    collect(unwatched.all(), Fixed(3))
    assert unwatched.starved == (starved and last_ms is None)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("host_ms", "starves", "bound"),
    [(0.5, False, False), (2.0, False, True), (0.5, True, True), (2.0, True, True)],
)
def test_a_pass_is_bound_by_the_host_if_that_is_slower_or_lets_the_device_wait(
    host_ms, starves, bound, steady_gpu
):
    """One judgement for the column, and for the energy; that it waited is looked at once."""
    clock = clocks.DeviceClock(steady_gpu())
    clock.host_ms = host_ms
    clock.passes, clock.starved = 10, 10 * starves
    found = lanes.Lanes("events", None, device_clock=clock)
    assert found.starved is starves
    clock.starved = 0
    assert found.launch_bound(1.0) is bound
    assert not lanes.Lanes("host", None).launch_bound(1.0)


@pytest.mark.gpu
def test_a_layer_pass_that_no_parts_can_feed_is_starved(monkeypatch, steady_gpu):
    """Where not even the kernels fit, the layers are timed in one pass, and it says so."""
    gpu = steady_gpu(queue_limit=100)
    found, _ = _layer_pass(gpu, _deep(gpu), monkeypatch)
    assert found.parts == 1
    assert found.timed().starved


@pytest.mark.gpu
def test_a_layer_pass_that_fits_the_queue_stays_whole(monkeypatch, steady_gpu):
    """Most networks: one pass, nothing flagged."""
    gpu = steady_gpu(queue_limit=1000)
    found, _ = _layer_pass(gpu, _deep(gpu, layers=50), monkeypatch)
    assert found.parts == 1
    assert not found.timed().starved
    assert [len(times) for times in found.timed().times] == [3] * 50
