"""Layer rows."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from torch import nn

import tinynets
from hpcsweep.catalog import columns
from hpcsweep.catalog.checks.algorithm import LayerAlgorithm
from hpcsweep.conv import backend as backends
from hpcsweep.measure import caches, layer_table, model_builder
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.layer_table import LayerTable
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.network import choose_algorithms
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing import lanes, stats
from hpcsweep.measure.timing.layer_timer import LayerTimes
from measuring import CPU, point, policy

PASSES = [10.0, 12.0, 11.0]
CALLS = shape_pass(tinynets.Residual().eval(), torch.zeros(1, 3, 32, 32)).calls
POINT = point(algorithm="winograd")
ABOUT = [[LayerAlgorithm(algorithm_used="winograd")], [LayerAlgorithm(algorithm_used="auto")]]


def _table(clean=PASSES, backward=0):
    """Return the six calls of the small residual network, with times that are easy to add."""
    times = [[1.0 + index / 10] * 3 for index in range(len(CALLS))]
    return LayerTable(LayerTimes(CALLS, times, "host", backward), PASSES, clean)


def test_there_is_a_row_per_call_and_one_for_the_rest():
    """In call order, `__other__` last, every key a column, and the point's name on each."""
    found = _table().rows(POINT, ABOUT)
    assert [row["layer"] for row in found][-2:] == ["head", "__other__"]
    assert [row["call_index"] for row in found] == list(range(7))
    for row in found:
        assert set(row) <= set(columns.LAYER_COLUMNS)
        assert row["point_id"] == POINT.point_id
        assert (row["model"], row["device"], row["input_size"]) == ("tinynets:Residual", "cpu", 32)


def test_the_rest_is_the_pass_less_its_layers():
    """11 ms less 1.0 + 1.1 + ... + 1.5."""
    assert _table().rows(POINT, ABOUT)[-1]["mean_ms"] == pytest.approx(11 - 7.5)


def test_the_layer_pass_is_held_against_the_clean_pass():
    """Pass by pass with its neighbour, then the median: 10/9, 12/10, 11/11, and 7.5 over each."""
    cells = _table(clean=[9.0, 10.0, 11.0]).overall_cells()
    assert cells.hook_overhead_pct == pytest.approx(100 * (10 / 9 - 1))
    assert cells.layer_sum_over_total == pytest.approx(0.75)
    assert cells.other_pct == pytest.approx(100 * 3.5 / 11)
    assert cells.layer_pass_mean_ms == pytest.approx(11)


def test_a_burst_in_one_clean_pass_does_not_hide_the_overhead():
    """One clean pass that took ten times as long moves a mean, not the paired median."""
    calm, burst = ([p / 1.02 for p in PASSES] for _ in range(2))
    burst[1] *= 10
    for times in (calm, burst):
        cells = _table(clean=times).overall_cells()
        assert cells.hook_overhead_pct == pytest.approx(2)
        assert 0.5 < cells.layer_sum_over_total < 1


def test_every_convolution_says_what_ran_and_other_layers_say_nothing():
    """What is known of the convolutions comes in call order."""
    by_layer = {row["layer"]: row for row in _table().rows(POINT, ABOUT)}
    assert by_layer["stem"]["algorithm_used"] == "winograd"
    assert by_layer["conv"]["algorithm_used"] == "auto"
    assert "algorithm_used" not in by_layer["relu"]


def test_kernel_times_stand_beside_the_times_of_all_layers():
    """Convolutions have theirs from their evidence, other layers in call order; the rest none."""
    about = [[*cells, LayerAlgorithm(kernel_ms=0.5)] for cells in ABOUT]
    others = [LayerAlgorithm(kernel_ms=ms) for ms in (0.1, 0.2, None, 0.4)]
    found = _table().rows(POINT, about, others)
    assert [row.get("kernel_ms") for row in found] == [0.5, 0.1, 0.5, 0.2, None, 0.4, None]
    assert "kernel_ms" not in _table().rows(POINT, ABOUT, [LayerAlgorithm(kernel_ms=0.1)] * 2)[1]


def test_the_last_calls_may_be_backward_passes():
    """Every other row is of the forward pass, but for the rest, which is of both."""
    directions = [row.get("direction") for row in _table(backward=2).rows(POINT, ABOUT)]
    assert directions == [*["forward"] * 4, *["backward"] * 2, None]


def test_only_convolutions_count_as_convolution_time():
    """Their means, in call order, for the coverage by time."""
    assert _table().convolution_means() == (pytest.approx([1.0, 1.2]), [])


def test_networks_without_layers_leave_everything_to_the_rest():
    """No call at all: the rest is the pass."""
    (row,) = LayerTable(LayerTimes((), (), "host"), PASSES, PASSES).rows(POINT, ())
    assert (row["layer"], row["mean_ms"]) == ("__other__", pytest.approx(11))


def test_layers_that_convolve_otherwise_have_their_own_means():
    """Transposed and one-dimensional ones, in order; plain ones are not among them."""
    calls = shape_pass(tinynets.OtherKinds().eval(), torch.zeros(1, 3, 16, 16)).calls
    table = LayerTable(LayerTimes(calls, [[1.0], [2.0], [3.0]], "host"), [7.0], [7.0])
    assert table.convolution_means() == ([1.0], [2.0, 3.0])


ONCE = {"layers": "unique", "warmup": 0, "iterations": 2, "evidence": False, "numerics": False}


@pytest.fixture(scope="module")
def bench():
    """One bench for all tests."""
    return on_device("inference", "cpu")


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch):
    """Let few inputs outgrow the cache, whatever machine this is."""
    monkeypatch.setattr(caches, "host_cache_bytes", lambda: 2 << 20)


def _isolated(wanted):
    model = model_builder.build(model_builder.ModelKey.of(wanted), CPU)
    shapes = shape_pass(model, model_builder.make_inputs(wanted, CPU)[0])
    choices = choose_algorithms(
        model, shapes, wanted.axes["algorithm"], policy("fallback"), backends.choose("cpu")
    )
    clean = stats.summarise([1.0, 1.0])
    return model, layer_table.time_isolated(model, shapes.calls, choices, wanted, clean)


@pytest.mark.slow
def test_resnet50_has_53_convolutions_of_23_kinds(bench):
    """Each kind is timed once, and told for every call of equal work."""
    done = bench.measure(point("resnet50", measure=ONCE))
    assert len(done.layers) == done.row["conv_calls"] == 53
    times = {}
    for row in done.layers:
        times.setdefault(row["unique_key"], set()).add((row["median_ms"], row["mean_ms"]))
    assert len(times) == 23
    assert all(len(of_key) == 1 for of_key in times.values())
    assert {row["layer_timer"] for row in done.layers} == {"isolated"}
    assert {row["n"] for row in done.layers} == {2}
    timed_ms = sum(done.samples) + sum(2 * mean for ((_, mean),) in times.values())
    assert done.timed_s == pytest.approx(timed_ms / 1000, rel=0.1)


def test_batches_of_calls_are_told_by_their_timer(bench):
    """Many calls in turn over all inputs, and the time of one of them in the row."""
    settings = {**ONCE, "layers": "batched"}
    done = bench.measure(point(measure=settings))
    assert {row["layer_timer"] for row in done.layers} == {"batched"}
    assert len(done.layers) == 2
    assert done.row["layer_sum_over_total"] > 0
    with pytest.raises(CannotMeasure, match="layers: batched finds a warm cache"):
        bench.measure(point(cache_state="cold", measure=settings))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("layers", "launch", "reads_us"),
    [("unique", "eager", 4), ("unique", "graph", 2.4), ("batched", "eager", 2.4)],
)
def test_a_batch_shares_what_a_launch_costs(monkeypatch, layers, launch, reads_us, steady_gpu):
    """Kernels of 2 us behind an event of 2 us, or 20 of them in a graph that takes 8 us to begin.

    A graph of one call would read 10 us.
    """
    gpu, find_lanes = steady_gpu(event_ms=0.002), lanes.make_lanes

    def capture(run, **_):
        def replay():
            gpu.issue(0.01, 0.006)
            run()

        return replay

    monkeypatch.setattr(lanes, "Cuda", lambda: gpu)
    monkeypatch.setattr(lanes.clocks, "capture", capture)
    on_gpu = partial(find_lanes, torch.device("cuda", 0))
    monkeypatch.setattr(layer_table, "make_lanes", lambda _device, *rest: on_gpu(*rest))
    monkeypatch.setattr(layer_table.caches, "input_count", lambda *_: 3)
    wanted = point(launch=launch, measure={**ONCE, "layers": layers})
    queued = nn.modules.module.register_module_forward_hook(
        lambda module, *_: gpu.issue(0.02, 0.002) if isinstance(module, nn.Conv2d) else None
    )
    with queued, torch.inference_mode():
        _, alone = _isolated(wanted)
    assert [1000 * times.summary.median for times in alone.times] == pytest.approx([reads_us] * 2)


def test_the_rows_are_columns_and_claim_no_layer_pass(bench):
    """No hooks ran, so their overhead is unknown; the sum of convolutions over the pass is told."""
    done = bench.measure(point(measure=ONCE))
    assert set(done.row) <= set(columns.OVERALL_COLUMNS)
    assert all(set(row) <= set(columns.LAYER_COLUMNS) for row in done.layers)
    assert "hook_overhead_pct" not in done.row
    assert "layer_pass_mean_ms" not in done.row
    total = sum(row["median_ms"] for row in done.layers)
    assert done.row["layer_sum_over_total"] == pytest.approx(total / done.row["median_ms"])
    assert "__other__" not in {row["layer"] for row in done.layers}


def test_what_is_timed_is_the_algorithm_that_was_assigned(bench):
    """A convolution that cannot run Winograd is timed as its fallback, apart from the others."""
    done = bench.measure(point("resnet18", input_size=64, algorithm="winograd", measure=ONCE))
    used = {(row["unique_key"], row["algorithm_used"]) for row in done.layers}
    assert {name for _, name in used} == {"winograd", "auto"}
    assert 0 < done.row["algorithm_coverage_time_pct"] < 100


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_inputs_have_the_layers_shape_and_layout_and_differ(layout):
    """The network's own shapes; each input lies somewhere else in memory."""
    wanted = point("resnet18", input_size=64, memory_format=layout)
    model = model_builder.build(model_builder.ModelKey.of(wanted), CPU)
    shapes = shape_pass(model, model_builder.make_inputs(wanted, CPU)[0])
    calls = [call for call in shapes.calls if call.conv is not None]
    fmt = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    for call in calls:
        inputs = layer_table.inputs_of(call, next(model.parameters()), wanted)
        assert {tuple(x.shape) for x in inputs} == {call.inputs[0]}
        assert all(x.is_contiguous(memory_format=fmt) for x in inputs)
        assert len({x.data_ptr() for x in inputs}) == len(inputs) > 1


@pytest.mark.slow
@pytest.mark.parametrize("cache_mib", [2, 50])
@pytest.mark.parametrize(
    ("layers", "state", "cold"),
    [
        ("unique", "hot", "input"),
        ("unique", "rotated", "input"),
        ("batched", "hot", "input"),
        ("unique", "cold", "input+weights"),
    ],
)
def test_small_layers_are_cold_and_the_row_says_what_was(
    monkeypatch, cache_mib, layers, state, cold
):
    """The inputs of a call of 32 kB outgrow any cache; weights are cold after a flush alone."""
    monkeypatch.setattr(layer_table.caches, "cache_bytes", lambda _device: cache_mib << 20)
    done = on_device("inference", "cpu").measure(
        point(cache_state=state, measure=ONCE | {"layers": layers})
    )
    assert {row["cold"] for row in done.layers} == {cold}
    assert all(set(row) <= set(columns.LAYER_COLUMNS) for row in done.layers)


def test_inputs_lie_as_an_allocator_would_lay_them():
    """A kernel is chosen by alignment, too: 49 numbers of 7x7 must not shift the next input."""
    wanted = point("resnet18", input_size=64)
    model = model_builder.build(model_builder.ModelKey.of(wanted), CPU)
    call = shape_pass(model, model_builder.make_inputs(wanted, CPU)[0]).convolution_calls[0]
    odd = dataclasses.replace(call, inputs=((1, 3, 7, 7),))
    inputs = layer_table.inputs_of(odd, next(model.parameters()), wanted)
    assert {x.data_ptr() % 64 for x in inputs} == {0}  # of torch's allocator on a CPU
    assert caches.outgrown(CPU, len(inputs) * inputs[0].nbytes)


@pytest.mark.gpu
@pytest.mark.parametrize(("cache", "cold"), [(1 << 10, "input"), (1 << 23, "none")])
@pytest.mark.usefixtures("nothing_computed")
def test_a_graph_of_many_small_calls_is_hot_and_says_so(monkeypatch, cache, cold):
    """A replay uses the inputs of its capture again: those must outgrow the cache."""
    monkeypatch.setattr(caches, "cache_bytes", lambda _device: cache)
    settings = ONCE | {"layers": "batched"}
    wanted = point(
        "tinynets:convolutions_alone", gpu="gpu", launch="graph", input_size=8, measure=settings
    )
    done = on_device("inference", "cuda").measure(wanted)
    assert {row["cold"] for row in done.layers} == {cold}


def test_a_map_of_algorithms_is_timed_per_algorithm():
    """Equal shapes that run different algorithms are different work."""
    algorithm = {"layer1.0.conv1": "gemm", "default": "implicit_gemm"}
    wanted = point("resnet18", input_size=64, algorithm=algorithm, measure=ONCE)
    _, alone = _isolated(wanted)
    by_layer = {
        call.layer: (call.key, times) for call, times in zip(alone.calls, alone.times, strict=True)
    }
    key, by_gemm = by_layer["layer1.0.conv1"]
    others = [times for of_call, times in by_layer.values() if of_call == key][1:]
    assert len(others) == 3
    assert all(times is others[0] is not by_gemm for times in others)


def test_a_flushed_cache_is_allowed(bench):
    """Cold caches are flushed before each call, as before each pass."""
    done = bench.measure(point(cache_state="cold", measure=ONCE))
    assert {row["n"] for row in done.layers} == {2}


@pytest.mark.parametrize("model", ["TwoTypes", "complex_too"])
def test_a_layer_is_timed_in_its_own_type(bench, model):
    """Whatever that of the first one is."""
    done = bench.measure(point(f"tinynets:{model}", measure=ONCE))
    timed = [row["layer"] for row in done.layers if row["layer_timer"] == "isolated"]
    assert timed == ["first", "second"]
