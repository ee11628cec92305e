"""What each convolution of a point runs, as the sweep asks or as its policy says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tinynets
from hpcsweep.conv import backend as backends
from hpcsweep.conv.choice import AlgorithmError
from hpcsweep.conv.swap import ExplicitConv2d
from hpcsweep.errors import UsageError
from hpcsweep.measure import model_builder
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.network import choose_algorithms
from hpcsweep.measure.shape_pass import shape_pass
from measuring import CPU, point, policy

BACKEND = backends.choose("cpu")


@pytest.fixture
def network():
    """One 3x3 convolution of stride 1, which Winograd takes, and one of stride 2."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2))
    return net.eval(), shape_pass(net.eval(), torch.zeros(1, 3, 16, 16))


def test_the_frameworks_choice_runs_on_its_own_layers(network):
    """`auto` swaps nothing, also after another algorithm was on."""
    net, shapes = network
    choose_algorithms(net, shapes, "gemm", policy("fallback"), BACKEND)
    assert isinstance(net[0], ExplicitConv2d)
    choices = choose_algorithms(net, shapes, "auto", policy("fallback"), BACKEND)
    assert type(net[0]) is nn.Conv2d
    assert [(c.backend, c.used, c.fallback) for c in choices.calls] == [
        ("framework", "auto", False)
    ] * 2


def test_a_map_gives_each_layer_its_own(network):
    """Layers that got what the map asks for count as covered."""
    net, shapes = network
    choices = choose_algorithms(
        net, shapes, {"0": "fft", "default": "gemm"}, policy("fallback"), BACKEND
    )
    assert [choice.used for choice in choices.calls] == ["fft", "gemm"]
    assert all(choice.as_requested for choice in choices.calls)


def test_the_policy_decides_about_points_that_cannot_run_as_asked(network):
    """`skip` makes the point unsupported, `error` an error; both name the layer."""
    net, shapes = network
    with pytest.raises(CannotMeasure, match="stride"):
        choose_algorithms(net, shapes, "winograd", policy("skip"), BACKEND)
    with pytest.raises(AlgorithmError, match="stride"):
        choose_algorithms(net, shapes, "winograd", policy("error"), BACKEND)


def test_a_network_without_convolutions_has_no_choices():
    """Nothing to choose, nothing to cover."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 2)).eval()
    shapes = shape_pass(net, torch.zeros(1, 3, 4, 4))
    assert choose_algorithms(net, shapes, "gemm", policy("error"), BACKEND).calls == []


def test_the_root_module_may_be_the_convolution():
    """A factory that returns a bare convolution works like any other."""
    net = nn.Conv2d(3, 4, 3).eval()
    shapes = shape_pass(net, torch.zeros(1, 3, 8, 8))
    (choice,) = choose_algorithms(net, shapes, "gemm", policy("error"), BACKEND).calls
    assert choice.used == "gemm"
    assert model_builder.make_inputs(point(), CPU)[0].shape[1] == 3


@pytest.mark.parametrize(("kind", "error"), [("skip", CannotMeasure), ("error", AlgorithmError)])
def test_a_convolution_that_nobody_swaps_cannot_run_as_asked_either(kind, error):
    """The policy is about it as well, and the message names it; `auto` asks for nothing."""
    net = tinynets.OtherKinds().eval()
    shapes = shape_pass(net, torch.zeros(1, 3, 16, 16))
    with pytest.raises(error, match=r"2 of 3 convolutions .* up: conv_transpose2d that is no call"):
        choose_algorithms(net, shapes, "gemm", policy(kind), BACKEND)
    assert len(choose_algorithms(net, shapes, "auto", policy(kind), BACKEND).calls) == 1


def test_a_pattern_that_matches_no_convolution_is_refused_with_the_nearest():
    """It is probably misspelt, and what it asks for would silently be left out."""
    net = nn.Sequential()
    net.add_module("features", nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)))
    shapes = shape_pass(net, torch.zeros(1, 3, 8, 8))
    with pytest.raises(UsageError, match=r"'featurs\.\*' matches no convolution.*'features\.[01]'"):
        choose_algorithms(net, shapes, {"featurs.*": "fft"}, policy("fallback"), BACKEND)
    choices = choose_algorithms(net, shapes, {"features.*": "fft"}, policy("fallback"), BACKEND)
    assert [one.used for one in choices.calls] == ["fft", "fft"]
