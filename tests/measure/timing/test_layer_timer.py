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
from hpcsweep.conv.proof import profiler_events
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing.clocks import EventStamps, HostClock, HostStamps
from hpcsweep.measure.timing.layer_timer import LayersChanged, LayerTimer, families, marked
from hpcsweep.measure.timing.loop import Fixed, Lane, collect


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
