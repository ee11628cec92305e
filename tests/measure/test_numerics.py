"""Errors against float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from hpcsweep.conv.proof.autograd_graph import tensors_in
from hpcsweep.measure import models, numerics
from hpcsweep.measure.numerics import Reference, inaccurate, relative_error
from measuring import CPU, point
from tinynets import OfItsOwn


def _run(wanted, change=lambda y: y):
    model = models.build(models.ModelKey.of(wanted), CPU)
    (image,) = models.make_inputs(wanted, CPU)
    with torch.inference_mode():
        return model, change(model(image))


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("float64", 0, 1e-12), ("float32", 1e-9, 1e-5), ("bfloat16", 1e-4, 0.1)],
)
def test_the_error_is_of_the_dtypes_size(dtype, low, high):
    """float64 agrees with itself; float32 and bfloat16 lose what they should lose."""
    wanted = point(dtype=dtype)
    error = Reference(CPU).error(wanted, *_run(wanted))
    assert low <= error <= high
    assert not inaccurate(error, dtype, tf32=False)


def test_a_wrong_output_is_found():
    """An output that is off by one percent of the largest value has an error of one percent."""
    wanted = point()
    model, output = _run(wanted, lambda y: y + 0.01 * y.abs().max())
    error = Reference(CPU).error(wanted, model, output)
    assert error == pytest.approx(0.01, rel=0.01)
    assert inaccurate(error, "float32", tf32=False)
    assert not inaccurate(error, "float32", tf32=True)


def test_the_reference_is_computed_once_for_points_that_share_it(monkeypatch):
    """Other algorithms, dtypes and layouts share it; another batch, size or seed does not."""
    reference, computed, draw = Reference(CPU), [], models.make_inputs

    def counting(wanted, *rest):
        computed.extend([1] if wanted.axes["dtype"] == "float64" else [])
        return draw(wanted, *rest)

    monkeypatch.setattr(models, "make_inputs", counting)
    for axes in ({}, {"algorithm": "gemm"}, {"dtype": "bfloat16"}, {"memory_format": "nhwc"}):
        wanted = point(**axes)
        assert reference.error(wanted, *_run(wanted)) < 0.1
    assert len(computed) == 1
    for axes in ({"batch_size": 2}, {"input_size": 16}, {"seed": 1}):
        wanted = point(**axes)
        assert reference.error(wanted, *_run(wanted)) < 1e-5
    assert len(computed) == 4


def test_both_ways_to_float64_agree():
    """From the live float32 network, or built anew where half precision has lost the weights."""
    live, half = (
        point("squeezenet1_1", input_size=64),
        point("squeezenet1_1", input_size=64, dtype="bfloat16"),
    )
    model, output = _run(live)
    errors = [Reference(CPU).error(wanted, model, output) for wanted in (live, half)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)


def test_outputs_in_dicts_are_compared_tensor_by_tensor():
    """A network with auxiliary heads returns a dict; its worst tensor counts."""
    wanted = point("tinynets:Dicts")
    model, output = _run(wanted)
    output["aux"][0] = output["aux"][0] + 1
    assert Reference(CPU).error(wanted, model, output) > 0.1


def test_not_a_number_is_inaccurate_and_all_zero_is_undefined():
    """An overflow is told; a reference of zeros has no relative error."""
    one = torch.ones(2, dtype=torch.float64)
    assert math.isnan(relative_error([one * math.nan], [one]))
    assert inaccurate(math.nan, "float16", tf32=False)
    assert relative_error([one], [one * 0]) is None
    assert not inaccurate(None, "float32", tf32=False)


def test_a_network_without_float64_has_no_error_but_a_row(caplog):
    """Where the float64 pass is impossible the cell stays empty, and the log says why."""
    wanted = point("tinynets:Hungry", input_size=4)
    model = models.build(models.ModelKey.of(wanted), CPU)
    assert Reference(CPU).error(wanted, model, torch.zeros(1)) is None
    assert "no float64 reference" in caplog.text


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_each_convolution_is_held_against_float64_on_its_own_input(mode):
    """An error is the layer's own: a bad first layer does not spoil the second."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode), nn.Conv2d(4, 4, 3, stride=2, groups=2)
    )
    image = torch.randn(1, 3, 12, 12)
    exact = numerics.convolution_errors(net, lambda: net(image), ["0", "1"])
    assert len(exact) == 2
    assert max(exact) < 1e-6
    net[0].register_forward_hook(lambda _m, _i, output: output * 1.01)
    spoilt = numerics.convolution_errors(net, lambda: net(image), ["0", "1"])
    assert spoilt[0] == pytest.approx(0.01, rel=0.1)
    assert spoilt[1] < 1e-6


def test_a_convolution_of_its_own_class_is_held_against_itself():
    """It need not compute what its filters say; float64 runs its own code."""
    net = OfItsOwn().eval()
    image = torch.randn(1, 3, 12, 12)
    errors = numerics.convolution_errors(net, lambda: net(image), ["plain", "own"])
    assert len(errors) == 2
    assert all(0 < error < 1e-6 for error in errors)
    assert not any(module._forward_hooks for module in net.modules())


def test_errors_are_told_for_the_calls_that_are_asked_for():
    """By layer and order; a call that did not come, or cannot run in float64, has none."""

    class Float32Alone(nn.Conv2d):
        def forward(self, x):
            return nn.functional.conv2d(x, self.weight.detach().float())

    net = nn.Sequential(nn.Conv2d(3, 3, 1), Float32Alone(3, 3, 1))
    image = torch.randn(1, 3, 4, 4)
    first, missing, other = numerics.convolution_errors(net, lambda: net(image), ["0", "0", "1"])
    assert first < 1e-6
    assert missing is None
    assert other is None


@pytest.mark.parametrize("network", ["Residual", "Attention", "Borrowing", "Dicts"])
def test_float64_layer_by_layer_is_float64_at_once(network, monkeypatch):
    """Whoever uses a layer's weights without calling it gets all of them at once."""
    monkeypatch.setattr(numerics, "_BLOCK", 16)  # so that linear layers have several blocks
    model = models.build(models.ModelKey.of(point(f"tinynets:{network}")), CPU)
    image = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.inference_mode():
        found = [*tensors_in(numerics._layer_by_layer(model, image))]
        wanted = [*tensors_in(copy.deepcopy(model).double()(image))]
    assert {tensor.dtype for tensor in found} == {torch.float64}
    assert relative_error(found, wanted) < 1e-14
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize(("keeps", "built"), [(True, 1), (False, 2)])
def test_the_weights_of_a_reduced_type_are_drawn_once_beside_a_gpu(monkeypatch, keeps, built):
    """On a CPU they would count as memory of the next point; another network makes room."""
    reference, keys, build = Reference(CPU), [], models.build
    monkeypatch.setattr(models, "build", lambda key, *rest: keys.append(key) or build(key, *rest))
    reference._keeps = keeps
    for size in (16, 24):
        wanted = point(dtype="bfloat16", input_size=size)
        reference.make_room(wanted)
        network = build(models.ModelKey.of(wanted), CPU)
        (image,) = models.make_inputs(wanted, CPU)
        with torch.inference_mode():
            assert reference.error(wanted, network, network(image)) < 0.1
    assert len(keys) == built
    reference.make_room(point(dtype="bfloat16", seed=1))
    assert not reference._drawn.keep_only(keys[0])
