"""What a point's convolutions run, in columns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tinynets
from hpcsweep.conv import backend as backends
from hpcsweep.conv.backend import Expected, Gradient, Way
from hpcsweep.conv.choice import GradientChoice
from hpcsweep.conv.errors import AlgorithmError
from hpcsweep.conv.operators import Operation
from hpcsweep.conv.proof.evidence import Evidence, Seen
from hpcsweep.conv.swap import ExplicitConv2d
from hpcsweep.errors import UsageError
from hpcsweep.measure import coverage, models
from hpcsweep.measure.bench_api import Unsupported
from hpcsweep.measure.convolutions import call_cells, choose
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
    choose(net, shapes, "gemm", policy("fallback"), BACKEND)
    assert isinstance(net[0], ExplicitConv2d)
    choices = choose(net, shapes, "auto", policy("fallback"), BACKEND)
    assert type(net[0]) is nn.Conv2d
    assert [(c.backend, c.used, c.fallback) for c in choices] == [("framework", "auto", False)] * 2


def test_a_map_gives_each_layer_its_own(network):
    """Layers that got what the map asks for count as covered."""
    net, shapes = network
    choices = choose(net, shapes, {"0": "fft", "default": "gemm"}, policy("fallback"), BACKEND)
    assert [choice.used for choice in choices] == ["fft", "gemm"]
    assert all(choice.as_requested for choice in choices)


def test_the_policy_decides_about_points_that_cannot_run_as_asked(network):
    """`skip` makes the point unsupported, `error` an error; both name the layer."""
    net, shapes = network
    with pytest.raises(Unsupported, match="stride"):
        choose(net, shapes, "winograd", policy("skip"), BACKEND)
    with pytest.raises(AlgorithmError, match="stride"):
        choose(net, shapes, "winograd", policy("error"), BACKEND)


def test_a_layer_that_a_map_has_autotuned_where_nothing_tunes_is_a_fallback(network):
    """On a CPU: it is counted, with its reason, and not covered."""
    net, shapes = network
    algorithm = {"0": "autotune", "default": "gemm"}
    choices = choose(net, shapes, algorithm, policy("fallback"), BACKEND)
    cells = coverage.cells(algorithm, shapes, choices)
    assert cells["algorithm_used"] == "auto+gemm"
    assert cells["conv_fallbacks"] == 1
    assert cells["algorithm_coverage_pct"] < 100
    assert "no autotuner" in cells["fallback_reason"]


def test_every_call_says_what_ran_and_how_that_is_known(network):
    """Algorithm, evidence and, where they disagree, the contradiction; nothing seen is none."""
    net, shapes = network
    choices = choose(net, shapes, "winograd", policy("fallback"), BACKEND)
    seen = Seen(telling=[Operation("x")])
    first, second = call_cells(choices, [Evidence("0"), Evidence("2", seen, (), "ran z")])
    assert (first["backend"], first["algorithm_used"]) == ("reference", "winograd")
    assert first["workspace_bytes"] > 0
    assert (second["backend"], second["algorithm_used"]) == ("framework", "auto")
    assert "stride" in second["fallback_reason"]
    assert first["algorithm_evidence"] == "none"
    assert second["algorithm_evidence"] == "mismatch (ran z); profiler: x"


def test_gradients_of_two_kinds_are_told_as_both(network):
    """The library's and the framework's, with the reason and the larger workspace."""
    net, shapes = network
    call, _ = choose(net, shapes, "gemm", policy("fallback"), BACKEND)
    of_data = Gradient(Way.DATA, "algo_1", Expected(), workspace_bytes=8)
    of_filters = Gradient(Way.FILTER, None, Expected(), "no counterpart")
    choice = GradientChoice(call, (of_data, of_filters))
    (cells,) = call_cells([choice], [Evidence("0")])
    assert (cells["backend"], cells["algorithm_used"]) == ("reference+framework", "gemm+auto")
    assert (cells["fallback_reason"], cells["workspace_bytes"]) == ("no counterpart", 8)


def test_a_network_without_convolutions_has_no_choices():
    """Nothing to choose, nothing to cover."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 2)).eval()
    shapes = shape_pass(net, torch.zeros(1, 3, 4, 4))
    assert choose(net, shapes, "gemm", policy("error"), BACKEND) == []


def test_the_root_module_may_be_the_convolution():
    """A factory that returns a bare convolution works like any other."""
    net = nn.Conv2d(3, 4, 3).eval()
    shapes = shape_pass(net, torch.zeros(1, 3, 8, 8))
    (choice,) = choose(net, shapes, "gemm", policy("error"), BACKEND)
    assert choice.used == "gemm"
    assert models.make_inputs(point(), CPU)[0].shape[1] == 3


@pytest.mark.parametrize(("kind", "error"), [("skip", Unsupported), ("error", AlgorithmError)])
def test_a_convolution_that_nobody_swaps_cannot_run_as_asked_either(kind, error):
    """The policy is about it as well, and the message names it; `auto` asks for nothing."""
    net = tinynets.OtherKinds().eval()
    shapes = shape_pass(net, torch.zeros(1, 3, 16, 16))
    with pytest.raises(error, match=r"2 of 3 convolutions .* up: conv_transpose2d that is no call"):
        choose(net, shapes, "gemm", policy(kind), BACKEND)
    assert len(choose(net, shapes, "auto", policy(kind), BACKEND)) == 1


def test_a_pattern_that_matches_no_convolution_is_refused_with_the_nearest():
    """It is probably misspelt, and what it asks for would silently be left out."""
    net = nn.Sequential()
    net.add_module("features", nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)))
    shapes = shape_pass(net, torch.zeros(1, 3, 8, 8))
    with pytest.raises(UsageError, match=r"'featurs\.\*' matches no convolution.*'features\.[01]'"):
        choose(net, shapes, {"featurs.*": "fft"}, policy("fallback"), BACKEND)
    choices = choose(net, shapes, {"features.*": "fft"}, policy("fallback"), BACKEND)
    assert [one.used for one in choices] == ["fft", "fft"]
