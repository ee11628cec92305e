"""Layer timers: what they note, in which order, and what they leave behind."""

from __future__ import annotations

import itertools
import re
import time

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import tinynets
from hpcsweep.conv import backend
from hpcsweep.conv.proof import profiler_events
from hpcsweep.measure import model_builder
from hpcsweep.measure.network import choose_algorithms
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing.clocks import EventStamps, HostClock, HostStamps
from hpcsweep.measure.timing.layer_timer import (
    LayersChanged,
    LayerTimer,
    StepTimer,
    backward_call,
    families,
    joined,
    marked,
)
from hpcsweep.measure.timing.loop import Fixed, Lane, collect
from measuring import CPU, point


class _CountingEvent:
    """An event on a time line that advances by one with every record."""

    def __init__(self, line):
        self.line, self.at = line, None

    def record(self):
        self.at = next(self.line)

    def elapsed_time(self, end):
        return end.at - self.at


def _tiny():
    return tinynets.Residual().eval()


def _timer_for(model, image, stamps=None):
    calls = shape_pass(model.eval(), image).calls
    return LayerTimer(model, calls, stamps or HostStamps())


@torch.inference_mode()
def _timed(model, passes=6, stamps=None):
    image = torch.randn(1, 3, 16, 16)
    timer = _timer_for(model, image, stamps)
    lanes = [
        Lane(lambda: model(image), HostClock()),
        Lane(lambda: model(image), HostClock(), timer.attached),
    ]
    times = collect(lanes, Fixed(passes)).times
    return timer.timed(), times


def test_every_call_has_one_time_per_pass():
    """Calls are told apart by position: the ReLU that serves two places has two series."""
    timed, _ = _timed(tinynets.Residual(), passes=6)
    assert timed.timer == "host"
    assert [call.layer for call in timed.calls].count("relu") == 2
    assert [len(times) for times in timed.times] == [6] * 6
    assert all(time > 0 for times in timed.times for time in times)


def test_the_rest_of_a_pass_is_what_the_layers_leave():
    """The layers take less than the pass: additions and Python belong to none."""
    timed, (_, passes) = _timed(tinynets.Residual())
    for i, total in enumerate(passes):
        assert sum(times[i] for times in timed.times) < total


def test_a_slow_layer_is_the_one_that_shows_it():
    """Times land on the call that took them: one that waits between those that do not."""

    class Waits(nn.Module):
        def forward(self, x):
            time.sleep(0.02)
            return x

    timed, _ = _timed(nn.Sequential(nn.ReLU(), Waits(), nn.ReLU6(), nn.Flatten()), passes=5)
    quickest = [min(times) for times in timed.times]  # a busy machine slows single passes
    assert quickest.index(max(quickest)) == 1
    assert quickest[1] >= 20


class Waiting(nn.Module):
    """Waits, and calls a layer that waits, too."""

    def __init__(self, own, inner=None):
        """Wait so many milliseconds."""
        super().__init__()
        self.own, self.inner = own, inner
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        """Run a pass."""
        time.sleep(self.own / 1000)
        return (self.inner(x) if self.inner else x) + self.bias


def test_the_time_of_a_layer_around_others_is_without_theirs():
    """One in the other: the sum of all is that of the outermost."""
    net = nn.Sequential(Waiting(20, Waiting(10, Waiting(40))), nn.ReLU())
    timed, (_, passes) = _timed(net, passes=5)
    assert [call.layer for call in timed.calls] == ["0.inner.inner", "0.inner", "0", "1"]
    quickest = [min(times) for times in timed.times]  # a busy machine slows single passes
    assert [round(ms, -1) for ms in quickest] == [40, 10, 20, 0]
    for i, total in enumerate(passes):
        assert 70 < sum(times[i] for times in timed.times) < total


def test_layers_around_others_are_timed_with_them():
    """Else their times could not be taken off; all others may be timed apart."""
    calls = shape_pass(tinynets.around().eval(), torch.zeros(1, 3, 16, 16)).calls
    wanted = [{"0"}, {"1.block.0", "1.block.1.act", "1.block.1", "1"}, {"2.act", "2"}, {"3"}]
    assert families(calls) == wanted


def test_ranges_of_layers_around_others_have_the_places_of_their_calls():
    """They begin before those inside, whose calls end first."""
    model = tinynets.around().eval()
    x = torch.zeros(1, 3, 16, 16)
    calls = shape_pass(model, x).calls
    with profile(activities=[ProfilerActivity.CPU]) as seen, marked(model, calls):
        model(x)
    found = profiler_events.calls(seen.events(), profiler_events.LAYER)
    operators = [[one.name for one in call.events[0].cpu_children] for call in found]
    last = [[name for name in names if name.startswith("aten::")][-1] for names in operators]
    norm = "aten::batch_norm"
    assert last == ["aten::relu", norm, "aten::add", "aten::relu", norm, "aten::flatten"]


def test_no_timer_stays_behind():
    """Between its blocks the layer lane leaves the network bare, also after a failure."""
    model, image = _tiny(), torch.randn(1, 3, 16, 16)
    timer = _timer_for(model, image)

    def wrapped():
        return sum("forward" in module.__dict__ for module in model.modules())

    with timer.attached(1):
        model(image)
        assert wrapped() == 5
    assert wrapped() == 0
    with pytest.raises(ZeroDivisionError), timer.attached(1):
        raise ZeroDivisionError
    assert wrapped() == 0


def test_a_layer_that_was_patched_by_its_owner_keeps_the_patch():
    """A `forward` of the instance's own is timed, and still there afterwards."""
    model, image = _tiny(), torch.randn(1, 3, 16, 16)
    called = []
    usual = model.relu.forward
    model.relu.forward = patch = lambda x: called.append(1) or usual(x)
    timer = _timer_for(model, image)
    called.clear()
    with timer.attached(1):
        model(image)
    assert len(called) == 2
    assert model.relu.forward is patch


def test_a_network_whose_path_changes_is_told():
    """Times cannot be told apart when a pass calls other layers than the shape pass saw."""
    with pytest.raises(LayersChanged, match="path depend on"):
        _timed(tinynets.Twofaced(), passes=3)


@pytest.mark.parametrize(
    ("calls", "passes", "why"),
    [
        ((1, 1), 2, "meta device; does the network's path depend on the device (`x.is_cuda`)?"),
        ((3, 0), 2, "does the network's path depend on its input?"),
        ((1,), 1, "path depend on the device (`x.is_cuda`), or on its input?"),
    ],
)  # fmt: skip
def test_a_path_that_is_the_same_in_each_pass_may_depend_on_the_device(calls, passes, why):
    """As where `x.is_cuda` decides: shapes are recorded on another device."""
    model, image = _tiny(), torch.randn(1, 3, 16, 16)
    timer = _timer_for(model, image)

    def run():
        with timer.attached(passes):
            for times in calls:
                for _ in range(times):
                    model.relu(image)

    with pytest.raises(LayersChanged, match=re.escape(why)):
        run()


def test_a_first_pass_can_be_forgotten():
    """What a calibration pass left is dropped."""
    model, image = _tiny(), torch.randn(1, 3, 16, 16)
    timer = _timer_for(model, image)
    with timer.attached(1):
        model(image)
    timer.forget()
    assert all(not times for times in timer.timed().times)


def test_events_are_made_once_and_read_in_pairs():
    """Events are used again from block to block, and begin is paired with end."""
    made = []
    line = itertools.count()

    def new():
        made.append(_CountingEvent(line))
        return made[-1]

    timed, _ = _timed(tinynets.Residual(), passes=7, stamps=EventStamps(new))
    assert timed.timer == "events"
    assert [len(times) for times in timed.times] == [7] * 6
    assert {time for times in timed.times for time in times} == {1}
    assert len(made) <= 2 * 6 * 7


def test_events_inside_a_graph_are_read_after_every_replay():
    """Wrapped once while the graph is made; each later replay records the same events anew."""
    line, made = itertools.count(), []

    def new():
        made.append(_CountingEvent(line))
        return made[-1]

    model, image = _tiny(), torch.randn(1, 3, 16, 16)
    timer = _timer_for(model, image, EventStamps(new, "graph"))
    with timer.wrapped(1):
        model(image)
    for _ in range(3):
        with timer.reading(1):
            for event in made:
                event.record()
    assert timer.timed().timer == "graph"
    assert [len(times) for times in timer.timed().times] == [3] * 6


@pytest.fixture
def learning():
    """Return the residual network in training, and its calls."""
    model = model_builder.build(model_builder.ModelKey.of(point()), CPU).train()
    model.requires_grad_(requires_grad=True)
    return model, shape_pass(model, torch.zeros(2, 3, 8, 8))


def _passes(model, timer, count):
    with timer.attached(count):
        for _ in range(count):
            model(torch.randn(2, 3, 8, 8)).sum().backward()


def test_every_convolution_call_has_a_backward_time_in_every_pass(learning):
    """Also the first, whose input needs no gradient; afterwards the network is as before."""
    model, shapes = learning
    timer = StepTimer(model, shapes.calls, HostStamps())
    _passes(model, timer, 3)
    _passes(model, timer, 2)
    timed = timer.timed()
    assert [call.layer for call in timed.calls[6:]] == ["stem", "conv"]
    assert timed.backward == 2
    assert all(len(times) == 5 for times in timed.times)
    assert all(time > 0 for times in timed.times for time in times)
    assert all("forward" not in module.__dict__ for module in model.modules())
    timer.forget()
    assert not any(timer.timed().times)


def test_parts_of_a_layer_pass_join_in_the_order_of_the_whole(learning):
    """Forward calls first, also of a layer that is called twice, then the backward passes."""
    model, shapes = learning
    layers = dict.fromkeys(call.layer for call in shapes.calls)
    parts = []
    for part in range(2):
        wanted = [*layers][part::2]
        places = [at for at, call in enumerate(shapes.calls) if call.layer in wanted]
        timer = StepTimer(model, [shapes.calls[at] for at in places], HostStamps())
        _passes(model, timer, 2)
        parts.append((places, timer.timed()))
    timed = joined(parts, starved=False)
    whole = [call.layer for call in shapes.calls]
    assert [call.layer for call in timed.calls] == [*whole, "stem", "conv"]
    assert timed.backward == 2
    for places, of_part in parts:
        assert [timed.times[at] for at in places] == [*of_part.times[: len(places)]]


@pytest.mark.parametrize("algorithm", ["auto", "gemm", "fft", "winograd_nonfused", "direct"])
def test_the_nodes_of_every_algorithm_are_timed(learning, algorithm):
    """One node for the framework's own convolution, several for one made of operators."""
    model, shapes = learning
    settings = {"unsupported": "error", "workspace_mib": 4096}
    choose_algorithms(model, shapes, algorithm, settings, backend.choose("cpu"))
    timer = StepTimer(model, shapes.calls, HostStamps())
    _passes(model, timer, 2)
    assert all(time > 0 for times in timer.timed().times[6:] for time in times)


def test_a_changed_path_of_a_step_is_told(learning):
    """As many layer calls as the shape pass saw, but more convolutions among them."""
    model, shapes = learning
    timer = StepTimer(model, shapes.calls, HostStamps())

    def other_path():
        with timer.attached(1):
            for _ in shapes.calls:
                model.stem(torch.randn(1, 3, 8, 8))

    with pytest.raises(LayersChanged, match="6 convolution calls in 1 steps"):
        other_path()


def test_forward_and_backward_are_on_one_time_line(learning):
    """On a device both are events: a backward time counts nothing but its own node."""
    model, shapes = learning
    line = itertools.count()
    timer = StepTimer(model, shapes.calls, EventStamps(lambda: _CountingEvent(line)))
    _passes(model, timer, 2)
    timed = timer.timed()
    assert timed.timer == "events"
    assert list(timed.times) == [[1, 1]] * 8


@pytest.mark.parametrize(
    ("of_input", "frozen", "products", "moved"),
    [
        # input 300, weights and bias 112, output 256 floats
        (True, False, 2, 2 * 300 + 2 * 112 + 256),
        (False, False, 1, 300 + 112 + 256),
        (True, True, 1, 300 + 112 + 256),
    ],
)
def test_a_backward_call_is_a_product_for_each_gradient(of_input, frozen, products, moved):
    """Of the forward's size; what one product reads, the other writes the gradient of."""
    before, conv = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, 3)
    before.requires_grad_(of_input)
    conv.requires_grad_(not frozen)
    calls = shape_pass(nn.Sequential(before, conv), torch.zeros(1, 3, 10, 10)).calls
    call = calls[-1]
    back = backward_call(call)
    assert back.flops == products * call.flops
    assert back.bytes_min == 4 * moved


def test_a_bias_that_learns_alone_reads_the_output_s_gradient():
    """It is a sum, and no product."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3))
    net[0].weight.requires_grad = False
    (call,) = shape_pass(net, torch.zeros(1, 3, 10, 10)).calls
    back = backward_call(call)
    assert (back.flops, back.bytes_min) == (0, 4 * 256)
