"""Backward times of convolutions: which nodes, how often, and that nothing stays behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hpcsweep.conv import backend as backends
from hpcsweep.conv.proof.autograd_graph import nodes_between
from hpcsweep.measure import models
from hpcsweep.measure.convolutions import choose
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing.layer_timer import EventMarks, HostMarks, LayersChanged
from hpcsweep.measure.training.backward import EventStamps, StepTimer, backward_call
from measuring import CPU, point
from simulatedgpu import SimulatedGpu


@pytest.fixture
def network():
    """Return the residual network in training, and its calls."""
    model = models.build(models.ModelKey.of(point()), CPU).train()
    model.requires_grad_(requires_grad=True)
    return model, shape_pass(model, torch.zeros(2, 3, 8, 8))


def _passes(model, timer, count):
    with timer.attached(count):
        for _ in range(count):
            model(torch.randn(2, 3, 8, 8)).sum().backward()


def test_every_convolution_call_has_a_backward_time_in_every_pass(network):
    """Also the first, whose input needs no gradient; afterwards the network is as before."""
    model, shapes = network
    timer = StepTimer(model, shapes.calls, HostMarks())
    _passes(model, timer, 3)
    _passes(model, timer, 2)
    both = timer.both()
    assert [call.layer for call in both.calls[6:]] == ["stem", "conv"]
    assert all(len(times) == 5 for times in both.times)
    assert all(time > 0 for times in both.times for time in times)
    assert both.rest([1000.0] * 5)[0] == pytest.approx(1000 - sum(t[0] for t in both.times))
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("algorithm", ["auto", "gemm", "fft", "winograd_nonfused", "direct"])
def test_a_call_is_all_nodes_between_its_output_and_its_input(network, algorithm):
    """One node for the framework's own convolution, several for one made of operators."""
    model, shapes = network
    settings = {"unsupported": "error", "workspace_mib": 4096}
    choose(model, shapes, algorithm, settings, backends.choose("cpu"))
    x = torch.randn(2, 8, 8, 8, requires_grad=True) * 2
    output = model.conv(x)
    nodes = nodes_between(output, [x])
    assert (len(nodes) == 1) == (algorithm in {"auto", "direct"})
    assert x.grad_fn not in nodes
    timer = StepTimer(model, shapes.calls, HostMarks())
    _passes(model, timer, 2)
    assert all(time > 0 for times in timer.backward.times for time in times)


def test_a_changed_path_is_told(network):
    """More convolution calls than the shape pass saw."""
    model, shapes = network
    timer = StepTimer(model, shapes.calls, HostMarks())

    def twice():
        with timer.backward.wrapped():
            model.stem(torch.randn(1, 3, 8, 8))
        timer.backward.take(1)

    with pytest.raises(LayersChanged, match="1 convolution calls in 1 steps"):
        twice()


def test_on_a_device_events_are_recorded_and_used_again():
    """The second block takes the first one's events."""
    gpu = SimulatedGpu()
    stamps = EventStamps(gpu.event)
    for _ in range(2):
        stamps.reuse()
        begin = stamps.now()
        gpu.issue(0.01, 2.0)
        assert stamps.ms(begin, stamps.now()) == pytest.approx(2.0, rel=0.01)
    assert len(stamps._pool) == 2


def test_device_marks_bring_device_stamps(network):
    """Forward and backward are on one time line."""
    model, shapes = network
    timer = StepTimer(model, shapes.calls, EventMarks(SimulatedGpu().event))
    assert isinstance(timer.backward._stamps, EventStamps)


def test_a_backward_call_is_twice_the_work():
    """Two products of the forward's size; five tensors are moved instead of three."""
    (call,) = shape_pass(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.zeros(1, 3, 10, 10)).calls
    back = backward_call(call)
    assert back.flops == 2 * call.flops
    # input 300, weights and bias 112, output 256 floats
    assert back.bytes_min == 4 * (2 * 300 + 2 * 112 + 256)
