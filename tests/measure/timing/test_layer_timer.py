"""Layer timers: what they note, in which order, and what they leave behind."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import tinynets
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing.clocks import HostClock
from hpcsweep.measure.timing.layer_timer import EventMarks, HostMarks, LayersChanged, LayerTimer
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


def _timer_for(model, image, marks=None):
    calls = shape_pass(model.eval(), image).calls
    return LayerTimer(model, calls, marks or HostMarks())


@torch.inference_mode()
def _timed(model, passes=6, marks=None):
    image = torch.randn(1, 3, 16, 16)
    timer = _timer_for(model, image, marks)
    lanes = [
        Lane(lambda: model(image), HostClock()),
        Lane(lambda: model(image), HostClock(), timer.attached),
    ]
    return timer, collect(lanes, Fixed(passes)).times


def test_every_call_has_one_time_per_pass():
    """Calls are told apart by position: the ReLU that serves two places has two series."""
    timer, _ = _timed(tinynets.Residual(), passes=6)
    assert [call.layer for call in timer.calls].count("relu") == 2
    assert [len(times) for times in timer.times] == [6] * 6
    assert all(time > 0 for times in timer.times for time in times)


def test_the_rest_of_a_pass_is_what_the_layers_leave():
    """Layers and rest add up to the pass exactly, and the rest (additions, Python) is positive."""
    timer, (_, passes) = _timed(tinynets.Residual())
    rest = timer.rest(passes)
    for i, total in enumerate(passes):
        assert sum(times[i] for times in timer.times) + rest[i] == pytest.approx(total)
    assert all(value > 0 for value in rest)


def test_a_slow_layer_is_the_one_that_shows_it():
    """Times land on the call that took them: a large convolution between small ones."""
    net = nn.Sequential(nn.ReLU(), nn.Conv2d(3, 64, 7, padding=3), nn.ReLU6(), nn.Flatten())
    timer, _ = _timed(net, passes=5)
    means = [sum(times) for times in timer.times]
    assert means.index(max(means)) == 1


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
    with pytest.raises(LayersChanged, match="path depend on its input"):
        _timed(tinynets.Twofaced(), passes=3)


def test_a_first_pass_can_be_forgotten():
    """What a calibration pass left is dropped."""
    timer, _ = _timed(tinynets.Residual(), passes=2)
    timer.forget()
    assert all(not times for times in timer.times)


def test_events_are_made_once_and_read_in_pairs():
    """Event marks reuse their pool from block to block, and pair begin with end."""
    made = []
    line = itertools.count()

    def new():
        made.append(_CountingEvent(line))
        return made[-1]

    timer, _ = _timed(tinynets.Residual(), passes=7, marks=EventMarks(new))
    assert [len(times) for times in timer.times] == [7] * 6
    assert {time for times in timer.times for time in times} == {1}
    assert len(made) <= 2 * 6 * (7 + 1)


def test_marks_inside_a_graph_are_read_after_every_replay():
    """Wrapped once while the graph is made; each later replay records the same events anew."""
    line = itertools.count()
    model, image = _tiny(), torch.randn(1, 3, 16, 16)
    timer = _timer_for(model, image, EventMarks(lambda: _CountingEvent(line), "graph"))
    with timer.wrapped(1):
        model(image)
    events = timer.marks._pool[: timer.marks._used]
    for _ in range(3):
        with timer.reading(1):
            for event in events:
                event.record()
    assert [len(times) for times in timer.times] == [3] * 6


def test_networks_without_layers_leave_everything_to_the_rest():
    """No call at all: the rest is the pass."""
    timer = LayerTimer(nn.Sequential(), (), HostMarks())
    assert timer.rest([3.0, 4.0]) == [3.0, 4.0]
