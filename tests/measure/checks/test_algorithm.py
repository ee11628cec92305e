"""What a point's convolutions ran, in columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import tinynets
from hpcsweep.conv import backend as backends
from hpcsweep.conv import choice as choices
from hpcsweep.conv.backend import Direction, Expected, Gradient, Operation
from hpcsweep.conv.choice import backward_choice
from hpcsweep.conv.proof import Evidence, Observation, Proof, Work, profiler_events
from hpcsweep.measure.checks import algorithm as algorithms
from hpcsweep.measure.checks.algorithm import call_cells
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.network import Choices, choose_algorithms
from hpcsweep.measure.shape_pass import shape_pass
from localruns import COMMAND
from measuring import cells_of, point, policy

BACKEND = backends.choose("cpu")


def covered(net, algorithm, means=None, outside_means=None, gradients=()):
    """Return the cells of a network that runs an algorithm."""
    shapes = shapes_of(net)
    picked = choose_algorithms(net, shapes, algorithm, policy("fallback"), BACKEND)
    times = None if means is None else (means, outside_means or [])
    return cells_of(algorithm, shapes, replace(picked, gradients=gradients), times)


def plain():
    """Return one 3x3 convolution of stride 1, which Winograd takes, and one of stride 2."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2))


def shapes_of(net):
    """Return the layer calls on one small image."""
    return shape_pass(net.eval(), torch.zeros(1, 3, 16, 16))


@pytest.fixture
def network():
    """Return that network, and its shapes."""
    net = plain()
    return net, shapes_of(net)


def test_coverage_is_by_work_and_by_time():
    """A network that Winograd can do only in part says how small the part is."""
    cells = covered(plain(), "winograd", [3.0, 1.0])
    first, second = 2 * 256 * 8 * 27, 2 * 49 * 8 * 72
    assert cells["algorithm_coverage_pct"] == pytest.approx(100 * first / (first + second))
    assert cells["algorithm_coverage_time_pct"] == 75.0
    assert (cells["conv_calls"], cells["conv_fallbacks"]) == (2, 1)
    assert "stride" in cells["fallback_reason"]
    assert set(cells["algorithm_used"].split("+")) == {"winograd", "auto"}
    assert set(cells["backend"].split("+")) == {"reference", "framework"}
    assert cells["algorithm_uncovered"] is None


def test_coverage_by_time_needs_a_layer_pass():
    """Without layer times the cell is empty, not zero; so it is without convolutions."""
    assert covered(plain(), "gemm")["algorithm_coverage_time_pct"] is None
    assert covered(nn.Flatten(), "gemm")["algorithm_coverage_pct"] is None


@pytest.mark.parametrize(
    ("network", "share", "told"),
    [
        ("Functional", 7.69, "92.3 % conv2d"),
        ("OtherKinds", 29.7, "52.7 % conv1d (line); 17.6 % conv_transpose2d (up)"),
        ("Volume", 0, "100 % conv3d (conv)"),
        ("OfItsOwn", 42.9, "57.1 % conv2d (own)"),
    ],
)
def test_convolutions_that_no_backend_runs_are_not_covered(network, share, told):
    """They count in the calls, the fallbacks and the work; operator, layer and share are told."""
    cells = covered(getattr(tinynets, network)(), "gemm")
    assert cells["algorithm_coverage_pct"] == pytest.approx(share, rel=0.01)
    assert cells["algorithm_uncovered"] == told
    calls, missed = cells["conv_calls"], told.count("%")
    assert (calls, cells["conv_fallbacks"]) == (missed + (share > 0), missed)
    assert "auto" in cells["algorithm_used"]
    assert "framework" in cells["backend"]
    assert "plain nn.Conv2d" in cells["fallback_reason"]


@pytest.mark.parametrize("network", ["Functional", "OtherKinds", "Volume", "OfItsOwn"])
@pytest.mark.parametrize("algorithm", ["auto", {"default": "auto"}])
def test_the_frameworks_own_choice_covers_what_only_the_framework_runs(network, algorithm):
    """It is what was asked for there, also where a map leaves layers to it."""
    cells = covered(getattr(tinynets, network)(), algorithm)
    assert cells["algorithm_coverage_pct"] == 100
    assert cells["algorithm_uncovered"] is None
    assert cells["conv_fallbacks"] == 0
    assert cells["conv_calls"] >= 1


def test_a_map_that_names_a_layer_that_nobody_swaps_is_not_met():
    """The others are as asked."""
    cells = covered(tinynets.OtherKinds(), {"up": "gemm", "conv": "gemm"})
    assert cells["algorithm_uncovered"] == "17.6 % conv_transpose2d (up)"
    assert cells["algorithm_coverage_pct"] == pytest.approx(82.4, rel=0.01)


def test_the_time_of_layers_that_nobody_swaps_counts():
    """Where it is known; a function's time is in no layer's, so the share is unknown."""
    cells = covered(tinynets.OtherKinds(), "gemm", [1.0], [2.0, 1.0])
    assert cells["algorithm_coverage_time_pct"] == 25
    unknown = covered(tinynets.OtherKinds(), "gemm", [1.0], [])
    assert unknown["algorithm_coverage_time_pct"] is None
    function = covered(tinynets.Functional(), "gemm", [1.0], [])
    assert function["algorithm_coverage_time_pct"] is None


def test_many_uncovered_convolutions_are_summed_up():
    """Those of one layer are one entry; the largest three are told."""
    net = nn.Sequential(*[nn.ConvTranspose2d(3, 3, size) for size in (1, 2, 3, 4, 5)])
    told = covered(net, "gemm")["algorithm_uncovered"]
    assert told.endswith("; and 2 more")
    assert told.count("conv_transpose2d") == 3
    assert told.startswith("5")


@pytest.mark.parametrize(
    ("network", "algorithm", "absent"),
    [
        ("Residual", "gemm", False),
        ("Residual", "auto", False),
        ("Residual", {"stem": "auto", "conv": "auto", "default": "winograd"}, False),
        ("Volume", "gemm", True),
        ("Volume", "auto", False),
        ("Volume", {"default": "gemm"}, True),
        ("Borrowing", "gemm", True),
        ("Borrowing", "auto", False),
        ("Attention", "winograd", True),
        ("Attention", {"patch": "winograd", "default": "auto"}, True),
    ],
)
def test_a_request_that_nothing_met_is_absent(network, algorithm, absent):
    """Fallbacks alone are not the algorithm, nor is a network without convolutions."""
    net = getattr(tinynets, network)()
    shapes = shapes_of(net)
    picked = choose_algorithms(net, shapes, algorithm, policy("fallback"), BACKEND)
    assert algorithms.is_absent(algorithm, picked.calls) == absent


def test_times_of_gradients_count_as_well(network):
    """Those that the framework computes are not covered; both directions make the whole."""
    net, shapes = network
    picked = choose_algorithms(net, shapes, "gemm", policy("fallback"), BACKEND)
    call, other = picked.calls
    of_data = Gradient(Direction.DATA, "algo_1", Expected(), workspace_bytes=8)
    of_filters = Gradient(Direction.FILTER, None, Expected(), "no counterpart")
    gradients = [backward_choice(call, (of_data, of_filters)), backward_choice(other, (of_data,))]
    times = ([1.0, 1.0, 1.0, 1.0], [])
    cells = cells_of("gemm", shapes, replace(picked, gradients=gradients), times)
    assert cells["algorithm_coverage_time_pct"] == 75
    assert cells["algorithm_coverage_pct"] == 100


def test_names_are_joined_by_frequency():
    """The commonest first; nothing for nothing."""
    assert algorithms.joined(Counter("abb")) == "b+a"
    assert algorithms.joined(Counter()) is None


def test_what_only_the_profiler_saw_is_told():
    """A network that takes another path in earnest than in the shape pass; `auto` does not mind."""
    shapes = shapes_of(plain())
    seen = ("aten::convolution",)
    assert algorithms.unforeseen("gemm", shapes, seen) == "the profiler saw aten::convolution"
    assert algorithms.unforeseen("auto", shapes, seen) is None
    assert algorithms.unforeseen("gemm", shapes, ()) is None
    outside = shapes_of(tinynets.Functional())
    assert algorithms.unforeseen("gemm", outside, seen) is None


def test_a_layer_that_a_map_has_autotuned_where_nothing_tunes_is_a_fallback(network):
    """On a CPU: it is counted, with its reason, and not covered."""
    net, shapes = network
    algorithm = {"0": "autotune", "default": "gemm"}
    picked = choose_algorithms(net, shapes, algorithm, policy("fallback"), BACKEND)
    cells = cells_of(algorithm, shapes, picked)
    assert cells["algorithm_used"] == "auto+gemm"
    assert cells["conv_fallbacks"] == 1
    assert cells["algorithm_coverage_pct"] < 100
    assert "no autotuner" in cells["fallback_reason"]


def test_every_call_says_what_ran_and_how_that_is_known(network):
    """Algorithm, evidence and, where they disagree, the contradiction; nothing seen is none."""
    net, shapes = network
    picked = choose_algorithms(net, shapes, "winograd", policy("fallback"), BACKEND)
    seen = Observation(telling=[Operation("x")])
    first, second = call_cells(picked.calls, [Evidence("0"), Evidence("2", seen, (), "ran z")])
    assert (first.backend, first.algorithm_used) == ("reference", "winograd")
    assert (second.backend, second.algorithm_used) == ("framework", "auto")
    assert "stride" in second.fallback_reason
    assert first.algorithm_evidence == "none"
    assert second.algorithm_evidence == "mismatch (ran z); profiler: x"


def test_gradients_of_two_kinds_are_told_as_both(network):
    """The library's and the framework's, with the reason and the larger workspace."""
    net, shapes = network
    call, _ = choose_algorithms(net, shapes, "gemm", policy("fallback"), BACKEND).calls
    of_data = Gradient(Direction.DATA, "algo_1", Expected(), workspace_bytes=8)
    of_filters = Gradient(Direction.FILTER, None, Expected(), "no counterpart")
    choice = backward_choice(call, (of_data, of_filters))
    (cells,) = call_cells([choice], [Evidence("0")])
    assert (cells.backend, cells.algorithm_used) == ("reference+framework", "gemm+auto")
    assert (cells.fallback_reason, cells.workspace_bytes) == ("no counterpart", 8)


KERNELS = {
    "implicit_gemm": ["void cudnn::cnn::implicit_convolve_sgemm<float, float, 1024, 5, 5>(int)"],
    "implicit_precomp_gemm": [
        "cudnn::cnn::kernelOffsets::computeOffsetsKernel()",
        "volta_scudnn_128x64_relu_interior_nn_v1",
    ],
    "winograd": ["volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"],
    "unknown": ["some_kernel_of_tomorrow"],
}


@pytest.mark.parametrize("algorithm", ["auto", "autotune", "fft"])
@pytest.mark.parametrize("ran", KERNELS)
def test_what_others_chose_is_named_by_its_kernels_and_never_guessed(algorithm, ran):
    """Also a fallback, in the layer's row and in the point's; what nobody knows is unknown."""
    shapes = shapes_of(plain())
    decided = [choices.refused("0", s, algorithm, "no") for _, s in shapes.convolutions]
    proof = Proof(tuple(Evidence("0", Observation(kernels=KERNELS[ran])) for _ in decided))
    rows = call_cells(decided, proof.calls)
    assert {row.algorithm_used for row in rows} == {ran}
    assert {row.backend for row in rows} == {"framework"}
    picked = Choices(calls=decided, gradients=[], backend=BACKEND)
    row = algorithms.use(algorithm, shapes, picked, proof)
    assert row.algorithm_used == ran
    assert row.conv_fallbacks == len(decided)


def test_two_algorithms_in_one_call_a_lost_kernel_and_both_gradients_name_none():
    """Then the cell is `unknown`, or what the call was told to run."""
    shape = shapes_of(plain()).convolutions[0][1]
    call = choices.decide("auto", "0", shape, BACKEND, "cuda")
    both = [*KERNELS["winograd"], *KERNELS["implicit_gemm"]]

    def used(choice, kernels):
        (row,) = call_cells([choice], [Evidence("0", Observation(kernels=kernels))])
        return row.algorithm_used

    assert used(call, both) == "unknown"
    assert used(call, [*KERNELS["winograd"], "some_kernel_of_tomorrow"]) == "unknown"
    assert used(call, ["void cudnn::ops::nchwToNhwcKernel<float>(int)"]) == "auto"
    assert used(call, []) == "auto"
    assert used(backward_choice(call, ()), KERNELS["winograd"]) == "auto"


ONCE = {"layers": False, "numerics": False, "warmup": 0, "iterations": 1}


@pytest.mark.parametrize("algorithm", ["auto", "gemm"])
@pytest.mark.parametrize(
    ("network", "other"),
    [
        ("Residual", False),
        ("OtherKinds", False),
        ("Attention", False),
        ("Named", False),
        ("Turning", True),
        ("Threaded", True),
        ("Remembering", True),
    ],
)
def test_a_pass_that_ran_other_work_than_the_shape_pass_is_told(network, other, algorithm):
    """A path that depends on the device, a thread, features that were kept: never a mismatch."""
    done = on_device("inference").measure(
        point(f"tinynets:{network}", algorithm=algorithm, batch_size=16, measure=ONCE)
    )
    flags = done.row["flags"].split(";")
    assert ("work_unknown" in flags) == other
    assert "algorithm_mismatch" not in flags


def test_an_algorithm_that_was_not_seen_although_it_could_be_is_unproven(network, monkeypatch):
    """Not where nobody looked, where the profiler is blind, or where the framework chose."""
    net, shapes = network
    picked = choose_algorithms(net, shapes, "gemm", policy("fallback"), BACKEND)
    seen, unseen = Evidence("0", Observation(operators=["x"])), Evidence("2")
    work = Work(2, 0)
    assert not algorithms.is_unproven(picked, Proof((seen, seen), work=work))
    assert algorithms.is_unproven(picked, Proof((seen, unseen), work=work))
    by_name = Evidence("2", Observation(library_calls=["cudnnConvolution:gemm"]))
    assert algorithms.is_unproven(picked, Proof((seen, by_name), work=work))
    assert not algorithms.is_unproven(picked, Proof((seen, unseen)))
    auto = choose_algorithms(net, shapes, "auto", policy("fallback"), BACKEND)
    assert not algorithms.is_unproven(auto, Proof((seen, unseen), work=work))
    monkeypatch.setattr(profiler_events, "sees_kernels", lambda: False)
    assert not algorithms.is_unproven(picked, Proof((seen, by_name), work=work))


ON_GPU = """\
workload: inference
axes: {model: [resnet18], input_size: [64], algorithm: [auto, gemm], launch: [eager, graph]}
measure: {warmup: 1, iterations: 3, numerics: false}
"""


@pytest.mark.parametrize(
    ("cupti", "proven", "unseen"),
    [
        ("", {("auto", "eager"), ("auto", "graph"), ("gemm", "eager"), ("gemm", "graph")}, False),
        # operators are evidence of eager passes that the framework runs
        pytest.param("denied", {("auto", "eager")}, True, marks=pytest.mark.slow),
    ],
)
def test_no_graph_is_proven_without_a_look_at_its_replay(pretend_gpu, desk, cupti, proven, unseen):
    """A process in which the profiler sees no kernels says so in each row."""
    desk.spec(ON_GPU)
    command = (*COMMAND, "submit", "sweep.yaml", "--cluster", "local")
    done = pretend_gpu.run(*command, cwd=desk.folder, timeout=300, PRETEND_CUPTI=cupti)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = desk.rows()
    assert len(rows) == 4
    sources = {(row["algorithm"], row["launch"]): row["algorithm_evidence"] for row in rows}
    assert {point for point, source in sources.items() if source == "profiler"} == proven
    for row in rows:
        flags = row["flags"].split(";")
        assert ("kernels_unseen" in flags) is unseen
        assert "unproven" not in flags


@pytest.mark.gpu
@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.parametrize("algorithm", ["auto", "gemm"])
def test_a_path_that_depends_on_the_device_is_other_work_with_each_algorithm(algorithm):
    """Also where a library's operator ran what the shape pass did not see."""
    settings = {"layers": False, "numerics": False, "warmup": 1, "iterations": 2}
    asked = point("tinynets:MoreOnGpu", gpu="h100", algorithm=algorithm, measure=settings)
    row = on_device("inference", "cuda").measure(asked).row
    assert "work_unknown" in row["flags"].split(";")
