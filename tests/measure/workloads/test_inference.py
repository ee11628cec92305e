"""The inference workload end to end, on small networks and the CPU."""

from __future__ import annotations

import copy
import json
import warnings
import weakref

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import pretendgpu
import tinynets
from benchmarks import odd_structures
from hpcsweep.catalog import ALGORITHMS, AUTOTUNE, HEURISTIC, columns
from hpcsweep.catalog.row_records import WorkCells
from hpcsweep.conv.proof import Source, cell
from hpcsweep.measure import compilations, model_builder, rounding, work
from hpcsweep.measure import measure_point as pipeline
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.measure.checks import numerics
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.timing import layer_timer
from hpcsweep.measure.workloads import inference
from measuring import Throttled, lying, point

QUICK = {"layers": False, "evidence": False, "numerics": False}


@pytest.fixture(scope="module")
def bench():
    """One bench for all tests, as a worker has one for all its points."""
    return on_device("inference", "cpu")


@pytest.fixture
def built(monkeypatch):
    """Return the keys of the networks that are built from now on."""
    keys, build = [], model_builder.build
    monkeypatch.setattr(
        model_builder, "build", lambda key, *rest: keys.append(key) or build(key, *rest)
    )
    return keys


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("state", ["hot", "cold", "rotated"])
def test_each_pass_has_the_drawn_numbers_where_a_network_writes_over_them(
    bench, monkeypatch, state
):
    """Else all but the first would be timed on other ones, in the end on denormals or zeros."""
    seen = []
    forward = tinynets.Residual.forward
    monkeypatch.setattr(
        tinynets.Residual, "forward", lambda net, x: seen.append(x.std().item()) or forward(net, x)
    )
    wanted = point("tinynets:Normalising", cache_state=state, measure={**QUICK, "layers": True})
    done = bench.measure(wanted)
    assert len(seen) > done.row["n"] > 3
    assert max(seen) < 1.2 * min(seen)


def test_a_point_fills_its_row_its_layers_and_its_samples(bench):
    """Every key is a column, all crosses the pipe as JSON; layers and the rest explain the pass."""
    wanted = point("resnet18", input_size=64)
    done = bench.measure(wanted)
    json.dumps([done.row, done.layers, done.samples])
    assert set(done.row) <= set(columns.OVERALL_COLUMNS)
    assert all(set(row) <= set(columns.LAYER_COLUMNS) for row in done.layers)
    assert len(done.layers) == 61
    assert len(done.samples) == done.row["n"] == 4
    assert (done.row["warmup_n"], done.row["stop_reason"], done.row["timer"]) == (
        1,
        "fixed",
        "host",
    )
    assert {row["n"] for row in done.layers} == {4}
    assert sum(row["percentage"] for row in done.layers) == pytest.approx(100)
    assert done.layers[-1]["layer"] == "__other__"
    assert 0 <= done.row["other_pct"] < 50
    total = sum(row["mean_ms"] for row in done.layers)
    assert total == pytest.approx(done.row["layer_pass_mean_ms"])
    timed_ms = sum(done.samples) + 4 * done.row["layer_pass_mean_ms"]
    assert done.timed_s == pytest.approx(timed_ms / 1000, rel=0.02)


@pytest.mark.parametrize(("warmup", "ran"), [(0, 1), (1, 1), (12, 12)])
def test_the_first_call_is_a_pass_of_the_warm_up(bench, monkeypatch, warmup, ran):
    """As the first step of a training is; there is always a first call."""
    passes = []
    run = inference.Pass.__call__
    monkeypatch.setattr(inference.Pass, "__call__", lambda p: passes.append(p) or run(p))
    done = bench.measure(point(measure={**QUICK, "warmup": warmup}))
    assert done.row["warmup_n"] == ran
    settling = max(0, compilations.RUNS - ran)
    assert len(passes) == ran + settling + done.row["n"]


def test_a_starved_layer_pass_is_told_and_the_overall_time_stays_valid(bench, monkeypatch):
    """The clean pass ran by itself; only what the layer rows say is in doubt."""
    done = bench.measure(point(measure={"evidence": False}))
    assert (done.row["layer_pass_parts"], "layer_starved" in done.row["flags"]) == (1, False)
    join = layer_timer.joined
    monkeypatch.setattr(layer_timer, "joined", lambda parts, starved: join(parts, starved=True))
    flags = bench.measure(point(measure={"evidence": False})).row["flags"]
    assert "layer_starved" in flags
    assert "layer_starved" not in columns.DOUBTFUL


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if name not in {AUTOTUNE, HEURISTIC}]
)
def test_every_algorithm_runs_is_proven_and_is_right(bench, algorithm):
    """Requested, used, evidence and error of each; what falls back says so."""
    done = bench.measure(point(algorithm=algorithm, measure={"iterations": 2}))
    convolutions = [row for row in done.layers if row["op"] == "conv2d"]
    assert len(convolutions) == done.row["conv_calls"] == 2
    assert done.row["call_rel_error"] < 1e-4
    assert done.row["algorithm_evidence"] == "profiler"
    for row, call in zip(convolutions, done.proof.calls, strict=True):
        assert row["algorithm_used"] == algorithm or row["fallback_reason"]
        assert row["algorithm_evidence"] == cell(call)
        assert (call.layer, call.source, call.problem) == (row["layer"], Source.PROFILER, None)
    assert "algorithm_mismatch" not in done.row["flags"]
    assert ("fallback" in done.row["flags"]) == (done.row["conv_fallbacks"] > 0)


def test_passes_that_are_not_wanted_do_not_happen(bench):
    """No layers, no evidence, no numerics: an overall row alone."""
    done = bench.measure(point(algorithm="gemm", measure=QUICK))
    assert done.layers == []
    assert [call.seen for call in done.proof.calls] == [None] * 2
    assert done.row["algorithm_evidence"] == "none"
    assert done.row["call_rel_error"] is None
    assert "hook_overhead_pct" not in done.row
    assert done.row["algorithm_coverage_time_pct"] is None
    assert done.row["throttled_median_ms"] is None


def test_adaptive_points_stop_for_a_reason(bench):
    """The reason is one of the documented ones, and at least `min_iterations` were timed."""
    settings = {"stop": "adaptive", "min_iterations": 5, "max_seconds": 1.0, "target": 0.5}
    done = bench.measure(point(measure=settings))
    assert done.row["stop_reason"] in columns.STOP_REASONS
    assert done.row["n"] == len(done.samples) >= 5


@pytest.mark.parametrize(
    "axes",
    [{"dtype": "float16"}, {"dtype": "bfloat16"}, {"dtype": "float64"}, {"memory_format": "nhwc"}],
)
def test_dtypes_and_layouts_measure(bench, axes):
    """What torch can do on a CPU is measured, with an error of the dtype's size."""
    done = bench.measure(point(**axes))
    assert done.row["call_rel_error"] < 0.1
    assert done.row["valid"] or "very_noisy" in done.row["flags"]


def test_threads_are_explicit(bench, monkeypatch):
    """The axis sets them; several workers on one machine raise the flag that doubts the number."""
    assert bench.measure(point(num_threads=2)).row["threads"] == 2
    monkeypatch.setenv("HPCSWEEP_THREADS", "1")
    row = bench.measure(point(num_threads=None)).row
    assert row["threads"] == 1
    assert "shared_cpu" in row["flags"]
    assert row["valid"] is False


def test_running_out_of_memory_is_a_finding_and_the_next_point_runs(bench, built):
    """Peak and limit are told; the model is given back; nothing else breaks."""
    with pytest.raises(OutOfMemory) as caught:
        bench.measure(point("tinynets:Hungry"))
    assert 0 < caught.value.peak < caught.value.limit
    built.clear()
    assert bench.measure(point()).row["median_ms"] > 0
    with pytest.raises(OutOfMemory):
        bench.measure(point("tinynets:Hungry"))
    assert [dict(key.axes)["model"] for key in built] == ["tinynets:Residual", "tinynets:Hungry"]


def test_a_batch_that_cannot_be_allocated_is_out_of_memory(bench):
    """The input itself may be what does not fit."""
    with pytest.raises(OutOfMemory):
        bench.measure(point(batch_size=1 << 40))


def test_graphs_need_a_gpu(bench):
    """`launch: graph` on a CPU is unsupported, not a crash."""
    with pytest.raises(CannotMeasure, match="needs a GPU"):
        bench.measure(point(launch="graph"))


def test_a_dtype_without_an_operator_is_unsupported(bench, monkeypatch):
    """Torch's complaint about a dtype is a finding about this machine."""

    def refuse(*_args, **_kwargs):
        raise RuntimeError("\"slow_conv2d_cpu\" not implemented for 'Half'")

    monkeypatch.setattr(torch.nn.Conv2d, "forward", refuse)
    with pytest.raises(CannotMeasure, match="not implemented for 'Half'"):
        bench.measure(point())


def test_a_networks_own_failure_keeps_its_type(bench):
    """What is neither memory nor an operator is an error for the worker to write down."""
    with pytest.raises(RuntimeError, match="layer calls"):
        bench.measure(point("tinynets:Twofaced"))


def test_consecutive_points_share_the_network(built):
    """Another algorithm or size keeps it; another seed builds anew."""
    bench = on_device("inference", "cpu")
    for axes in ({}, {"algorithm": "fft", "input_size": 24}, {"seed": 3}):
        bench.measure(point(**axes, measure=QUICK))
    assert [dict(key.axes)["seed"] for key in built] == [0, 3]


def test_a_network_is_gone_before_the_next_one_is_built(monkeypatch):
    """Also one that holds itself: there is memory for one of them at a time."""
    bench, build = on_device("inference", "cpu"), model_builder.build
    built, alive = [], []

    def noting(*key):
        alive.extend(network() for network in built)
        network = build(*key)
        network.__dict__["itself"] = network
        built.append(weakref.ref(network))
        return network

    monkeypatch.setattr(model_builder, "build", noting)
    for seed in (0, 1):
        bench.measure(point(seed=seed, measure=QUICK))
    assert alive == [None]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
@pytest.mark.parametrize("launch", ["eager", "graph"])
@pytest.mark.usefixtures("nothing_computed")
def test_a_real_gpu_measures(launch):
    """Device events or a graph: times, layers that add up, memory from the allocator."""
    done = on_device("inference", "cuda").measure(
        point("resnet50", input_size=224, gpu="gpu", launch=launch)
    )
    assert done.row["timer"] == {"eager": "events", "graph": "graph"}[launch]
    assert done.row["mem_source"] == "cuda_allocator"
    assert done.row["host_ms"] > 0
    assert len(done.layers) == 159
    assert sum(row["percentage"] for row in done.layers) == pytest.approx(100)
    assert 0.8 < done.row["layer_sum_over_total"] < 1.2
    if not pretendgpu.is_pretended():  # its kernels compute nothing, in next to no time
        assert done.row["call_rel_error"] < 1e-4
        assert "launch_bound" not in done.row["flags"]
    assert {row["layer_timer"] for row in done.layers} == {done.row["timer"]}
    assert all(row["median_ms"] > 0 for row in done.layers[:-1])
    assert done.row["mem_peak_bytes"] < done.row["mem_limit_bytes"]


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
@pytest.mark.usefixtures("nothing_computed")
def test_on_a_real_gpu_every_convolution_shows_kernels_no_longer_than_its_events():
    """Events add their own time to that of the kernels, and no more than that to long layers."""
    bench = on_device("inference", "cuda")
    for _ in range(2):  # later sessions lose kernels, too
        done = bench.measure(point("resnet50", input_size=224, gpu="gpu", batch_size=32))
        rows = [row for row in done.layers if row["op"] == "conv2d"]
        assert all(0 < row["kernel_ms"] < 1.1 * row["median_ms"] for row in rows)
        assert 0 < done.row["event_floor_ms"] < 0.05


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
@pytest.mark.parametrize("launch", ["eager", "graph"])
@pytest.mark.usefixtures("nothing_computed")
def test_a_point_reads_the_same_before_and_after_profiler_sessions(launch):
    """CUPTI stays in the process, so the order of points could show in their times."""
    bench, axes = (
        on_device("inference", "cuda"),
        {"input_size": 224, "gpu": "gpu", "launch": launch},
    )
    settings = {"warmup": 20, "iterations": 50, "layers": False, "numerics": False}
    first = bench.measure(point("resnet50", measure=settings | {"evidence": False}, **axes)).row
    bench.measure(point("resnet18", measure=settings, **axes))
    later = bench.measure(point("resnet50", measure=settings | {"evidence": False}, **axes)).row
    assert later["median_ms"] == pytest.approx(first["median_ms"], rel=0.02)


@pytest.mark.parametrize(("times", "flagged"), [(1, False), (2, True)])
def test_a_throttled_measurement_is_taken_once_more(monkeypatch, times, flagged):
    """The row is the second try's, the first one's median stays; throttled twice is flagged."""
    gpu = Throttled(times)
    monkeypatch.setattr(pipeline.time, "sleep", gpu.rest)
    bench = on_device("inference", "cpu", gpu)
    done = bench.measure(point())
    assert done.row["throttled_median_ms"] > 0
    assert ("throttled" in done.row["flags"]) == flagged
    assert {row["n"] for row in done.layers} == {len(done.samples)} == {4}


@pytest.mark.parametrize("layers", [True, False, "unique"])
def test_errors_of_convolutions_go_with_their_layer_rows(bench, layers):
    """Without such rows they are judged all the same, but told nowhere."""
    done = bench.measure(point(algorithm="gemm", measure={"layers": layers, "numerics": "layers"}))
    errors = [row["max_rel_error"] for row in done.layers if row["op"] == "conv2d"]
    assert len(errors) == (2 if layers else 0)
    assert all(0 < error < 1e-5 for error in errors)
    assert 0 < done.row["call_rel_error"] < 1e-5


@pytest.mark.parametrize("network", ["Unbatched", "OfItsOwn"])
def test_errors_of_convolutions_are_those_of_the_calls_that_have_rows(bench, network):
    """A call that the shape pass does not take for a convolution of a batch has no error.

    Nor has one of a class of its own.
    """
    settings = {"numerics": "layers"}
    done = bench.measure(point(f"tinynets:{network}", measure=settings))
    asked = [row for row in done.layers if "algorithm_used" in row]
    assert all(row["max_rel_error"] < 1e-5 for row in asked if row["layer"] != "own")
    assert all(row["max_rel_error"] is None for row in asked if row["layer"] == "own")
    assert asked
    assert done.row["call_rel_error"] < 1e-5


HONEST = ("Rewritten", "Converting", "Casting", "SparseOutput", "Renewing")


@pytest.mark.parametrize("network", HONEST)
def test_a_network_that_does_odd_things_is_not_accused(bench, network):
    """Whatever it runs is what it runs in float64, and what nobody can swap is told."""
    doubts = {"inaccurate", "unverified", "algorithm_mismatch"}
    for algorithm in ("auto", "gemm"):
        settings = {"numerics": "layers"}
        row = bench.measure(point(f"tinynets:{network}", algorithm=algorithm, measure=settings)).row
        assert doubts.isdisjoint(row["flags"].split(";")), row["numerics_reason"]
    left = {"Rewritten": "conv2d (second)", "Renewing": "conv2d"}.get(network)
    assert (left or "") in (row["algorithm_uncovered"] or "")
    assert (row["algorithm_coverage_pct"] == 100) == (left is None)


def test_where_outputs_are_empty_the_convolutions_are_the_judge(bench, monkeypatch):
    """A detector that finds nothing."""
    wanted = point("oddoutputs:NoBoxes", algorithm="gemm")
    row = bench.measure(wanted).row
    assert {"inaccurate", "partly_checked"}.isdisjoint(row["flags"].split(";"))
    lying(monkeypatch, "gemm", lambda x, w, shape: 1.001 * F.conv2d(x, w, padding=1))
    row = bench.measure(wanted).row
    assert "inaccurate" in row["flags"].split(";")
    assert row["numerics_reason"].startswith("conv: error is ")


# Operations on two images of 32: of the stem, of a convolution of 8 channels, of the head.
STEM, BODY, HEAD = (2 * 2 * n for n in (8 * 27 * 32**2, 8 * 72 * 32**2, 8 * 10))
ODD = [network.__name__ for network in odd_structures.NETWORKS]


@pytest.mark.parametrize("algorithm", ["auto", "gemm"])
@pytest.mark.parametrize("network", ODD)
def test_an_honest_network_of_any_structure_is_measured_and_not_accused(bench, network, algorithm):
    """Fused, copied, folded, mapped, recomputed, exported: what it computes is right."""
    wanted = point(
        f"benchmarks.odd_structures:{network}",
        algorithm=algorithm,
        batch_size=2,
        measure={"numerics": "layers", "warmup": 0, "iterations": 1, "energy": False},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what it compiles
        row = bench.measure(wanted).row
    accused = {"inaccurate", "unverified", "algorithm_mismatch"} & {*row["flags"].split(";")}
    assert accused == set(), row["numerics_reason"]


@pytest.mark.parametrize(
    ("network", "flops"),
    [
        ("Looped", STEM + BODY + HEAD + 3 * 2 * 2 * 8 * 32**3),
        ("Loop", STEM + 3 * BODY + HEAD),
        ("Ensemble", STEM + 6 * BODY + HEAD),
        ("Stacked", STEM + 4 * BODY + HEAD),
    ],
)
def test_what_runs_in_functions_of_torch_is_counted(bench, network, flops):
    """Products and convolutions that `while_loop` and `vmap` call are work like any other."""
    wanted = point(
        f"benchmarks.odd_structures:{network}",
        batch_size=2,
        measure={"numerics": False, "evidence": False, "warmup": 0, "iterations": 1},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert bench.measure(wanted).row["flops"] == flops


def test_a_network_that_switches_threads_is_told(bench):
    """The number in the row is not the number that its passes had."""
    for network, switched in (("Switching", True), ("Plain", False)):
        row = bench.measure(point(f"tinynets:{network}", num_threads=1)).row
        assert ("switched" in row["flags"].split(";")) == switched
        assert not (switched and row["valid"])


def test_a_network_that_failed_is_not_measured_again_as_it_was_left(bench):
    """Whatever it raised: the next point builds it anew, and fails alike."""
    for _ in range(2):
        with pytest.raises(KeyError, match="gone"):
            bench.measure(point("tinynets:Failing"))


@pytest.fixture
def compared_on_the_host(monkeypatch):
    """Let the host compare with float64, for the pretend GPU's own arithmetic does nothing."""
    of_call = rounding.of_call

    def of_copies(layer, x, output, *how, **options):
        return of_call(copy.deepcopy(layer).cpu(), x.cpu(), output.cpu(), *how, **options)

    monkeypatch.setattr(rounding, "of_call", of_copies)
    nudged = rounding.changed_a_little
    on_host = lambda tensor, nudge: nudged(tensor.cpu(), nudge).to(tensor.device)  # noqa: E731
    monkeypatch.setattr(rounding, "changed_a_little", on_host)


@pytest.mark.gpu
@pytest.mark.usefixtures("compared_on_the_host")
@pytest.mark.parametrize("layers", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_replay_is_compared_with_its_own_output(layers):
    """Also beside the layers' graph; what it computes is what it would without one."""
    axes = {"algorithm": "gemm", "launch": "graph", "gpu": "gpu"}
    wanted = point("tinynets:convolutions_alone", measure={"layers": layers}, **axes)
    row = on_device("inference", "cuda").measure(wanted).row
    assert "algorithm_mismatch" not in row["flags"]
    assert row["algorithm_coverage_pct"] == 100
    assert 0 < row["call_rel_error"] < 1e-5
    assert row["error_over_bound"] <= 1


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.usefixtures("compared_on_the_host")
def test_a_replay_that_computes_something_else_is_not_taken_for_the_network():
    """Its outputs are judged, and not those of a pass without a graph."""
    settings = {"layers": False, "evidence": False}
    wanted = point("tinynets:CapturedOtherwise", launch="graph", gpu="gpu", measure=settings)
    row = on_device("inference", "cuda").measure(wanted).row
    assert row["error_over_bound"] > 1
    assert row["valid"] is False


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (numerics.Convolutions, "compared"),
        (rounding, "of_call"),
        (inference.InferenceNetwork, "output"),
    ],
)
def test_memory_that_runs_out_beside_the_times_takes_none_of_them_away(
    bench, monkeypatch, owner, name
):
    """What was timed is valid; the row says that it was not compared."""

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.60 GiB")

    monkeypatch.setattr(owner, name, fail)
    done = bench.measure(point(batch_size=2, memory_format="nhwc"))
    flags = done.row["flags"].split(";")
    assert "partly_checked" in flags
    assert not {"unverified", "inaccurate", "unchecked"} & {*flags}
    assert "no memory to compare it" in done.row["numerics_reason"]
    assert len(done.samples) == done.row["n"] == 4
    monkeypatch.undo()
    assert "partly_checked" not in bench.measure(point(batch_size=2)).row["flags"]


def test_an_output_that_computes_when_it_is_asked_is_computed_in_every_pass(bench, monkeypatch):
    """Else the clock would stop before the work begins."""
    monkeypatch.setattr(tinynets.Late, "computed", 0)
    settings = QUICK | {"warmup": 0, "iterations": 3}
    bench.measure(point("tinynets:Lazily", measure=settings))
    assert tinynets.Late.computed >= 3


def test_a_time_that_cannot_be_is_not_valid(bench, monkeypatch):
    """Whatever made the clock wrong."""
    monkeypatch.setattr(work, "is_impossible", lambda *_: True)
    row = bench.measure(point(measure=QUICK)).row
    assert "impossible" in row["flags"].split(";")
    assert row["valid"] is False


def test_more_operations_than_the_device_has_are_told(bench, monkeypatch):
    """An explanation: Winograd multiplies less than it counts."""
    rates = iter([WorkCells(pct_peak_compute=101.0), WorkCells()])
    monkeypatch.setattr(work, "rate_cells", lambda *_, **__: next(rates))
    row = bench.measure(point(measure=QUICK)).row
    assert "above_peak" in row["flags"].split(";")
    assert "above_peak" not in bench.measure(point(measure=QUICK)).row["flags"]
