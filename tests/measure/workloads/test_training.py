"""The training workload on a CPU, end to end on small networks."""

from __future__ import annotations

import math
import re
import warnings

import pytest
import torch

import pretendgpu
from hpcsweep.catalog import columns
from hpcsweep.errors import UsageError
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.workloads.step_parts import PHASES
from measuring import Throttled, lying, training


@pytest.fixture(scope="module")
def bench():
    """Return a bench on the CPU."""
    return on_device("training", "cpu")


def test_a_training_point_fills_its_row(bench):
    """Steps, phases, learning and memory, in columns that exist; one sample per step."""
    measured = bench.measure(training(epochs=2))
    row = measured.row
    assert set(row) <= set(columns.OVERALL_COLUMNS)
    assert row["steps"] == row["n"] == len(measured.samples) == 10
    assert row["phase_steps"] == 3
    assert all(row[f"phase_{name}_ms"] > 0 for name in PHASES)
    assert row["forward_total_s"] == pytest.approx(row["phase_forward_ms"] * 10 / 1000)
    assert len(row["epochs_train_loss"]) == len(row["epochs_val_accuracy"]) == 2
    assert row["val_accuracy_after"] == row["epochs_val_accuracy"][-1]
    assert 0 <= row["val_accuracy_before"] <= 1
    assert row["mem_avg_bytes"] > 0
    assert row["learning_valid"]
    assert (row["lr_used"], row["weight_decay_used"]) == (0.01, 0)  # it has no normalization
    timed_ms = sum(measured.samples) + 3 * row["phase_step_ms"]
    assert measured.timed_s == pytest.approx(timed_ms / 1000)


def test_a_network_learns(bench):
    """Two tinted classes can be told apart after some epochs."""
    axes = {"num_classes": 2, "epochs": 6, "batch_size": 8, "optimizer": "adam"}
    row = bench.measure(training(steps_per_epoch=10, **axes)).row
    assert row["train_loss"] < row["epochs_train_loss"][0]
    assert row["val_loss_after"] < row["val_loss_before"]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_point_learns_the_same(bench, workers):
    """Weights, order of data and losses depend on the seed, and on no earlier point."""
    point = training(epochs=2, num_workers=workers, deterministic=True)
    first = bench.measure(point).row
    other = bench.measure(training(epochs=2, num_workers=workers, seed=1)).row
    second = bench.measure(point).row
    for column in ("epochs_train_loss", "epochs_val_loss", "epochs_train_accuracy"):
        assert first[column] == second[column]
    assert other["epochs_train_loss"] != first["epochs_train_loss"]


def test_the_warm_up_leaves_no_trace(bench):
    """Weights, moments of the optimizer, learning rate and random numbers are put back."""
    axes = {"model": "tinynets:Dropping", "optimizer": "adam", "lr_schedule": "cosine"}
    rows = [
        bench.measure(training(measure={"warmup": warmup}, lr_warmup_steps=2, **axes)).row
        for warmup in (1, 8)
    ]
    assert [row["warmup_n"] for row in rows] == [1, 8]
    assert rows[0]["epochs_train_loss"] == rows[1]["epochs_train_loss"]
    assert rows[0]["val_loss_before"] == rows[1]["val_loss_before"]


def test_a_batch_of_one_that_a_batch_norm_refuses_is_unsupported(bench):
    """One value per channel has no variance."""
    with pytest.raises(CannotMeasure, match="more than 1 value per channel"):
        bench.measure(training("resnet18", batch_size=1, input_size=32))


def test_a_diverging_training_keeps_its_times(bench):
    """The flag tells, what was learned is void, the times stand."""
    row = bench.measure(training(lr=1e30)).row
    assert "nan_loss" in row["flags"].split(";")
    assert not row["learning_valid"]
    assert not math.isfinite(row["train_loss"])
    assert row["median_ms"] > 0


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"amp": "fp16"}, "needs a GPU"),
        ({"amp": "bf16", "dtype": "float64"}, "casts float32"),
        ({"pin_memory": True}, "copies to a GPU"),
        ({"compile": "torchscript", "algorithm": "gemm"}, "lowers convolutions itself"),
        ({"compile": "torchscript", "model": "tinynets:Unscriptable"}, "TorchScript"),
        ({"stem": "cifar"}, "is for ResNets"),
        ({"cudnn_benchmark": True}, "tunes cuDNN; on cpu there is none"),
        ({"algorithm": "autotune"}, "tunes cuDNN; on cpu there is none"),
        (
            {"algorithm": "heuristic"},
            "heuristic is a plan of cuDNN or MIOpen; on cpu there is none",
        ),
        ({"algorithm": "eng12"}, "eng12 is a plan of cuDNN or MIOpen; on cpu there is none"),
    ],
)
def test_what_cannot_be_done_is_unsupported_with_a_reason(bench, axes, reason):
    """The row says why, in a line."""
    with pytest.raises(CannotMeasure, match=reason):
        bench.measure(training(**axes))


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        ({"dataset": "cifer10"}, "there is synthetic"),
        ({"dataset": "no_such_module:data"}, "cannot import"),
        ({"dataset": "tinynets:no_such"}, "has no 'no_such'"),
    ],
)
def test_a_data_set_that_does_not_exist_is_named(bench, axes, complaint):
    """With what there is."""
    with pytest.raises(UsageError, match=complaint):
        bench.measure(training(**axes))


def test_the_other_passes_fill_the_layers_and_the_rest_of_the_row(bench):
    """Every layer forward, convolutions backward, all of it 100 %; evidence and accuracy."""
    everything = {"layers": True, "evidence": True, "numerics": True}
    point = training(algorithm="implicit_gemm", measure=everything)
    measured = bench.measure(point)
    row, layers = measured.row, measured.layers
    plain = bench.measure(training()).row
    assert row["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-3)
    assert (row["algorithm_used"], row["backend"]) == ("implicit_gemm", "reference")
    assert set(row) <= set(columns.OVERALL_COLUMNS)
    assert all(set(r) <= set(columns.LAYER_COLUMNS) for r in layers)
    found = [(r["layer"], r["direction"]) for r in layers]
    forward = ["stem", "relu", "conv", "norm", "relu", "head"]
    assert found[:6] == [(name, "forward") for name in forward]
    assert found[6:] == [("stem", "backward"), ("conv", "backward"), ("__other__", None)]
    assert sum(r["percentage"] for r in layers) == pytest.approx(100)
    assert layers[7]["flops"] == 2 * layers[2]["flops"]
    assert layers[7]["algorithm_used"] == "implicit_gemm"
    assert row["algorithm_coverage_time_pct"] == pytest.approx(100)
    assert row["algorithm_evidence"] == "profiler"
    assert layers[6]["algorithm_evidence"].startswith("profiler: aten::bmm[4,8,256,3]")
    assert layers[7]["algorithm_evidence"].startswith("profiler: aten::bmm[4,8,256,8]")
    assert "algorithm_mismatch" not in row["flags"]
    assert row["call_rel_error"] < 1e-4


class Lying(torch.autograd.Function):
    """Convolves as the algorithm does, and leaves its gradients to the framework."""

    @staticmethod
    def forward(ctx, x, weight):
        """Multiply patches and filters."""
        ctx.save_for_backward(x, weight)
        patches = torch.nn.functional.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
        matrix = patches.permute(0, 1, 4, 5, 2, 3).reshape(len(x), -1, x[0, 0].numel())
        filters = weight.flatten(1).expand(len(x), -1, -1)
        return torch.bmm(filters, matrix).view(len(x), -1, *x.shape[2:])

    @staticmethod
    def backward(ctx, grad):
        """Take the framework's."""
        ones, zeros = (1, 1), (0, 0)
        sizes = (None, ones, ones, ones, False, zeros, 1, (True, True, False))
        return torch.ops.aten.convolution_backward(grad, *ctx.saved_tensors, *sizes)[:2]


def test_an_algorithm_that_only_runs_forward_is_a_mismatch(bench, monkeypatch):
    """The forward rows stand as they are; the backward rows say what ran, flagged."""
    lying(monkeypatch, "gemm", lambda x, weight, _shape: Lying.apply(x, weight))
    done = bench.measure(training(algorithm="gemm", measure={"layers": True, "evidence": True}))
    told = [row["algorithm_evidence"] for row in done.layers if row.get("algorithm_used")]
    assert [text.startswith("profiler: aten::unfold") for text in told[:2]] == [True, True]
    for text in told[2:4]:
        assert re.match(r"mismatch \((data|filter): ran aten::convolution_backward", text)
    assert "algorithm_mismatch" in done.row["flags"].split(";")
    assert not done.row["valid"]


def test_a_compiled_network_has_no_layer_rows(bench):
    """Timers inside would change what the compiler makes of it."""
    everything = {"layers": True, "evidence": True, "numerics": True}
    measured = bench.measure(training(compile="torchscript", measure=everything))
    assert measured.layers == []
    assert measured.row["algorithm_evidence"] == "none"
    assert measured.row["call_rel_error"] < 1e-4


@pytest.mark.slow
def test_a_network_without_gradients_is_unsupported(bench):
    """Its own code switches them off."""
    with pytest.raises(CannotMeasure, match="does not require grad"):
        bench.measure(training("tinynets:NoGradients"))


@pytest.mark.slow
def test_inductor_without_a_compiler_is_unsupported(bench, monkeypatch, tmp_path):
    """A node without g++ says so, and the sweep goes on."""
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, "/no/such/compiler"))
    monkeypatch.setattr(config, "fx_graph_cache", False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with pytest.raises(CannotMeasure, match="compiler"):
        bench.measure(training(compile="inductor"))


def test_a_training_that_was_throttled_stands_as_it_is():
    """It is flagged, and not run again: what it learned is in its checkpoints."""
    row = on_device("training", "cpu", Throttled(1)).measure(training()).row
    assert "throttled" in row["flags"]
    assert row["throttled_median_ms"] is None
    assert not row["valid"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
@pytest.mark.parametrize("amp", [pytest.param("off", marks=pytest.mark.slow), "fp16", "bf16"])
@pytest.mark.usefixtures("nothing_computed")
def test_a_real_gpu_trains(amp):
    """Events for steps and phases that add up, layers both ways, memory from the allocator."""
    if amp == "bf16" and pretendgpu.is_pretended():
        # torch gives no bfloat16 to cuDNN's legacy calls, all that a pretend GPU has
        pytest.skip("needs a real GPU")
    # the pretend one computes nothing fast, and then there is nothing to compare
    is_real = not pretendgpu.is_pretended()
    everything = {"layers": True, "evidence": True, "numerics": is_real, "iterations": 10}
    batch = 128 if is_real else 8
    axes = {"stem": "cifar", "input_size": 32, "batch_size": batch, "num_threads": None}
    switches = {"pin_memory": True, "num_workers": 2, "deterministic": True, "gpu": "gpu"}
    point = training("resnet18", amp=amp, measure=everything, **axes, **switches)
    bench = on_device("training", "cuda")
    measured = bench.measure(point)
    row = measured.row
    assert (row["timer"], row["mem_source"]) == ("events", "cuda_allocator")
    assert row["mem_peak_bytes"] <= row["mem_reserved_bytes"]
    assert row["mem_avg_bytes"] <= row["mem_peak_bytes"]
    assert 0 <= row["mem_fragmentation_pct"] < 100
    if not pretendgpu.is_pretended():  # it does not take the host's time, in which steps are timed
        assert row["phase_sum_over_step"] == pytest.approx(1, abs=0.05)
    assert all(r["median_ms"] > 0 for r in measured.layers[:-1])
    assert sum(r["percentage"] for r in measured.layers) == pytest.approx(100)
    again = bench.measure(point).row
    assert again["epochs_train_loss"] == row["epochs_train_loss"]


RECOMPUTING = ("Recomputed", "RecomputedInside", "RecomputedInTwo", "Reversible", "dense")


@pytest.mark.parametrize("algorithm", ["auto", "gemm"])
@pytest.mark.parametrize("network", [*RECOMPUTING, "Stacked", "Teacher", "Merged"])
def test_an_honest_network_of_any_structure_trains_and_is_not_accused(bench, network, algorithm):
    """Activation checkpointing calls layers again; filters are mapped, branches are merged."""
    all_of_it = {"layers": True, "evidence": True, "numerics": "layers"}
    name = f"benchmarks.odd_structures:{network}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of a checkpoint without gradients
        measured = bench.measure(training(name, algorithm=algorithm, measure=all_of_it))
    accused = {"inaccurate", "unverified", "algorithm_mismatch"}
    assert accused.isdisjoint(measured.row["flags"].split(";")), measured.row["numerics_reason"]
    assert all(row["mean_ms"] > 0 for row in measured.layers)


def test_a_network_that_leaves_layers_out_keeps_all_but_its_layer_rows(bench):
    """What was learnt and timed before stands, and a flag says why rows are missing."""
    measured = bench.measure(training("tinynets:DropsLayers", epochs=2, measure={"layers": True}))
    assert "layers_changed" in measured.row["flags"].split(";")
    assert "layers_compiled" not in measured.row["flags"].split(";")
    assert measured.row["phase_step_ms"] > 0
    assert measured.row["train_loss"] > 0
    assert measured.layers == []


def test_a_network_that_returns_no_scores_is_unsupported(bench):
    """A layer's activations have no loss, and torch's message about them says nothing."""
    with pytest.raises(CannotMeasure, match="needs scores of classes for each image"):
        bench.measure(training("benchmarks.odd_structures:features"))
