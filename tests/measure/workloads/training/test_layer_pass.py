"""The layer pass of a training point: forward, loss and backward on one batch."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from torch import nn

from hpcsweep.conv import backend as backends
from hpcsweep.measure import model_builder
from hpcsweep.measure.bench import on_device
from hpcsweep.measure.convolutions import choose
from hpcsweep.measure.data import loaders
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing.clocks import EventStamps, HostStamps
from hpcsweep.measure.timing.layer_timer import LayersChanged, joined
from hpcsweep.measure.workloads.training import layer_pass
from hpcsweep.measure.workloads.training.layer_pass import StepTimer, backward_call
from measuring import CPU, make_trainer, point, training


@pytest.fixture
def network():
    """Return the residual network in training, and its calls."""
    model = model_builder.build(model_builder.ModelKey.of(point()), CPU).train()
    model.requires_grad_(requires_grad=True)
    return model, shape_pass(model, torch.zeros(2, 3, 8, 8))


def _passes(model, timer, count):
    with timer.attached(count):
        for _ in range(count):
            model(torch.randn(2, 3, 8, 8)).sum().backward()


def test_every_convolution_call_has_a_backward_time_in_every_pass(network):
    """Also the first, whose input needs no gradient; afterwards the network is as before."""
    model, shapes = network
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


def test_parts_of_a_layer_pass_join_in_the_order_of_the_whole(network):
    """Forward calls first, also of a layer that is called twice, then the backward passes."""
    model, shapes = network
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
def test_the_nodes_of_every_algorithm_are_timed(network, algorithm):
    """One node for the framework's own convolution, several for one made of operators."""
    model, shapes = network
    settings = {"unsupported": "error", "workspace_mib": 4096}
    choose(model, shapes, algorithm, settings, backends.choose("cpu"))
    timer = StepTimer(model, shapes.calls, HostStamps())
    _passes(model, timer, 2)
    assert all(time > 0 for times in timer.timed().times[6:] for time in times)


def test_a_changed_path_is_told(network):
    """As many layer calls as the shape pass saw, but more convolutions among them."""
    model, shapes = network
    timer = StepTimer(model, shapes.calls, HostStamps())

    def other_path():
        with timer.attached(1):
            for _ in shapes.calls:
                model.stem(torch.randn(1, 3, 8, 8))

    with pytest.raises(LayersChanged, match="6 convolution calls in 1 steps"):
        other_path()


class _Event:
    """An event on a time line that advances by one with every record."""

    def __init__(self, line):
        self.line = line

    def record(self):
        self.at = next(self.line)

    def elapsed_time(self, end):
        return end.at - self.at


def test_forward_and_backward_are_on_one_time_line(network):
    """On a device both are events: a backward time counts nothing but its own node."""
    model, shapes = network
    line = itertools.count()
    timer = StepTimer(model, shapes.calls, EventStamps(lambda: _Event(line)))
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


class Watching(nn.Module):
    """Convolves three times, once of these for the eye alone; a fourth convolution is frozen."""

    def __init__(self):
        """Build them."""
        super().__init__()
        self.frozen, self.shared = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.last = nn.Conv2d(3, 10, 1)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x):
        """Run a pass."""
        with torch.no_grad():
            weights = self.shared(x).sigmoid()
        return self.last(self.shared(weights * self.frozen(x))).mean((2, 3))


@pytest.mark.parametrize("algorithm", ["auto", "gemm"])
def test_convolutions_without_gradients_have_no_backward_row(monkeypatch, algorithm):
    """Frozen ones whose input has none, and calls under `no_grad`; the others have their own."""
    monkeypatch.setitem(sys.modules, "watching", sys.modules[__name__])
    everything = {"layers": True, "evidence": True, "numerics": True}
    wanted = training("watching:Watching", algorithm=algorithm, measure=everything)
    done = on_device("training", "cpu").measure(wanted)
    rows = [row for row in done.layers if row["op"] == "conv2d"]
    calls = [(row["layer"], row["direction"]) for row in rows]
    assert calls == [
        *((name, "forward") for name in ("shared", "frozen", "shared", "last")),
        *((name, "backward") for name in ("shared", "last")),
    ]
    assert all(row["mean_ms"] > 0 for row in rows)
    assert rows[4]["flops"] == rows[0]["flops"]  # the frozen one's output needs no gradient
    assert rows[5]["flops"] == 2 * rows[3]["flops"]
    assert all(row["algorithm_evidence"].startswith("profiler: ") for row in rows)
    assert all(row["algorithm_used"] == algorithm or algorithm == "auto" for row in rows)
    assert not {"algorithm_mismatch", "fallback"} & set(done.row["flags"].split(";"))
    assert done.row["algorithm_coverage_time_pct"] == pytest.approx(100)


def test_layers_forward_then_convolutions_backward_then_the_rest():
    """All of it is the pass; no weight moves."""
    point = training()
    trainer = make_trainer(point)
    batch = next(loaders.open_data(point).epoch(0))
    shapes = shape_pass(trainer.model, batch[0])
    before = trainer.state_dict()
    table, seconds = layer_pass.measure(trainer, batch, shapes, 3)
    assert seconds > 3 * table.overall_cells().layer_pass_mean_ms / 1000
    rows = table.rows(point, [{}] * 4)
    directions = [(row["layer"], row["direction"]) for row in rows[5:]]
    assert directions == [
        ("head", "forward"),
        ("stem", "backward"),
        ("conv", "backward"),
        ("__other__", None),
    ]
    assert {row["n"] for row in rows} == {3}
    assert sum(row["percentage"] for row in rows) == pytest.approx(100)
    assert len(table.convolution_means()[0]) == 4
    weights = dict(trainer.model.named_parameters())
    assert all(torch.equal(before["model"][name], value) for name, value in weights.items())
