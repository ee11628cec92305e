"""Distinct convolutions timed alone: which they are, what runs, and how they join the layers."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from torch import nn

from hpcsweep.catalog import columns
from hpcsweep.conv import backend as backends
from hpcsweep.measure import convolutions, models
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.inference import Inference
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing import caches, isolated, lanes
from measuring import CPU, point, policy
from simulatedgpu import SimulatedGpu

ONCE = {"layers": "unique", "warmup": 0, "iterations": 2, "evidence": False, "numerics": False}


@pytest.fixture(scope="module")
def bench():
    """One bench for all tests."""
    return Inference("cpu")


def _isolated(wanted):
    model = models.build(models.ModelKey.of(wanted), CPU)
    shapes = shape_pass(model, models.make_inputs(wanted, CPU)[0])
    choices = convolutions.choose(
        model, shapes, wanted.axes["algorithm"], policy("fallback"), backends.choose("cpu")
    )
    return model, isolated.measure(model, shapes.calls, choices, wanted)


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


@pytest.mark.parametrize(
    ("layers", "launch", "reads_us"),
    [("unique", "eager", 4), ("unique", "graph", 2.4), ("batched", "eager", 2.4)],
)
def test_a_batch_shares_what_a_launch_costs(monkeypatch, layers, launch, reads_us):
    """Kernels of 2 us behind an event of 2 us, or 20 of them in a graph that takes 8 us to begin.

    A graph of one call would read 10 us.
    """
    gpu, find_lanes = SimulatedGpu(event_ms=0.002), lanes.lanes

    def capture(run, **_):
        def replay():
            gpu.issue(0.01, 0.006)
            run()

        return replay

    monkeypatch.setattr(lanes, "Cuda", lambda: gpu)
    monkeypatch.setattr(lanes.clocks, "capture", capture)
    on_gpu = partial(find_lanes, torch.device("cuda", 0))
    monkeypatch.setattr(lanes, "lanes", lambda _device, *rest: on_gpu(*rest))
    monkeypatch.setattr(isolated.caches, "input_count", lambda *_: 3)
    wanted = point(launch=launch, measure={**ONCE, "layers": layers})
    queued = nn.modules.module.register_module_forward_hook(
        lambda module, *_: gpu.issue(0.02, 0.002) if isinstance(module, nn.Conv2d) else None
    )
    with queued, torch.inference_mode():
        _, alone = _isolated(wanted)
    assert [1000 * times.median for times in alone.times] == pytest.approx([reads_us] * 2)


def test_the_rows_are_columns_and_claim_no_layer_pass(bench):
    """No hooks ran, so their overhead is unknown; the sum of convolutions over the pass is told."""
    done = bench.measure(point(measure=ONCE))
    assert set(done.row) <= set(columns.OVERALL_COLUMNS)
    assert all(set(row) <= set(columns.LAYER_COLUMNS) for row in done.layers)
    assert done.row["hook_overhead_pct"] is None
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
    model = models.build(models.ModelKey.of(wanted), CPU)
    shapes = shape_pass(model, models.make_inputs(wanted, CPU)[0])
    calls = [call for call in shapes.calls if call.conv is not None]
    pool = isolated._Inputs(next(model.parameters()), calls, wanted)
    fmt = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    for call in calls:
        inputs = pool.inputs(call)
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
    monkeypatch.setattr(isolated.caches, "cache_bytes", lambda _device: cache_mib << 20)
    done = Inference("cpu").measure(point(cache_state=state, measure=ONCE | {"layers": layers}))
    assert {row["cold"] for row in done.layers} == {cold}
    assert all(set(row) <= set(columns.LAYER_COLUMNS) for row in done.layers)


def test_inputs_lie_as_an_allocator_would_lay_them():
    """A kernel is chosen by alignment, too: 49 numbers of 7x7 must not shift the next input."""
    wanted = point("resnet18", input_size=64)
    model = models.build(models.ModelKey.of(wanted), CPU)
    call = shape_pass(model, models.make_inputs(wanted, CPU)[0]).convolution_calls[0]
    odd = dataclasses.replace(call, inputs=((1, 3, 7, 7),))
    inputs = isolated._Inputs(next(model.parameters()), [odd], wanted).inputs(odd)
    assert {(x.data_ptr() - inputs[0].data_ptr()) % 256 for x in inputs} == {0}
    assert caches.outgrown(CPU, len(inputs) * inputs[0].nbytes)


@pytest.mark.parametrize(("inputs", "cold"), [(1000, "input"), (5000, "none")])
def test_a_graph_of_many_small_calls_is_hot_and_says_so(monkeypatch, inputs, cold):
    """A replay uses the inputs of its capture again, so the others take no turn."""
    gpu, find_lanes = SimulatedGpu(), lanes.lanes
    monkeypatch.setattr(lanes, "Cuda", lambda: gpu)
    monkeypatch.setattr(lanes.clocks, "capture", lambda run, **_: run)
    monkeypatch.setattr(
        isolated.lanes_of,
        "lanes",
        lambda _device, *rest: find_lanes(torch.device("cuda", 0), *rest),
    )
    size = 16 * 4
    monkeypatch.setattr(isolated.caches, "cache_bytes", lambda _device: (inputs - 1) * size)
    layer = nn.Conv2d(1, 1, 1)
    images = [_OnGpu(torch.zeros(1, 1, 4, 4)) for _ in range(inputs)]
    wanted = point(measure=ONCE | {"layers": "batched"})
    with torch.inference_mode():
        found = isolated._time(_Unwrapping(layer), images, wanted, lambda: None)
    assert found.cold == cold


class _Unwrapping(nn.Sequential):
    """A layer of such tensors."""

    def forward(self, x):
        return super().forward(x.tensor)


class _OnGpu:
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda", 0)

    def __init__(self, tensor):
        self.tensor, self.nbytes = tensor, tensor.nbytes


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
