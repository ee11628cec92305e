"""Torch's switches: what a point sets, what networks turn, and what becomes of that."""

from __future__ import annotations

import os

import pytest
import torch
from torch.torch_version import TorchVersion

from hpcsweep.conv.libraries import tf32_allowed
from hpcsweep.measure import switches
from hpcsweep.measure.measure_point import on_device
from measuring import point, training

ONCE = {"layers": False, "numerics": False, "warmup": 0, "iterations": 1}


@pytest.fixture(autouse=True)
def _as_before():
    """Put back what the tests turn."""
    yield
    switches.apply(point(num_threads=None).axes)


def test_threads_are_the_points_then_the_launchers_then_torchs(monkeypatch):
    """An axis value beats the launcher's share, which beats torch's own number."""
    usual = torch.get_num_threads()
    switches.apply(point(num_threads=2).axes)
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("HPCSWEEP_THREADS", "1")
    switches.apply(point(num_threads=None).axes)
    assert torch.get_num_threads() == 1
    assert switches.shares_cpu()
    monkeypatch.delenv("HPCSWEEP_THREADS")
    switches.apply(point(num_threads=None).axes)
    assert torch.get_num_threads() == usual
    assert not switches.shares_cpu()


@pytest.mark.filterwarnings("ignore:Please use the new API")
def test_tf32_is_set_both_ways_every_time_and_all_of_torch_agrees():
    """No point inherits it; whoever asks by torch's older or newer switches gets the answer."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    for allowed in (True, False, True):
        switches.apply(point(tf32=allowed).axes)
        assert (cudnn.allow_tf32, matmul.allow_tf32) == (allowed, allowed)
        assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
        assert tf32_allowed() is allowed
        if hasattr(matmul, "fp32_precision"):
            assert (matmul.fp32_precision == "tf32") is allowed


def test_autotuning_is_on_for_autotune_alone():
    """The next point switches it off again; a map of layers decides per layer."""
    for algorithm, wanted in (("autotune", True), ("auto", False), ({"default": "gemm"}, False)):
        switches.apply(point(algorithm=algorithm).axes)
        assert torch.backends.cudnn.benchmark is wanted


def test_the_switches_of_cudnn_are_set_both_ways_every_time():
    """What one training point wants is not what the next one gets."""
    cudnn = torch.backends.cudnn
    switches.apply(training(cudnn_benchmark=True, cudnn_deterministic=True).axes)
    assert (cudnn.benchmark, cudnn.deterministic) == (True, True)
    switches.apply(training().axes)
    assert (cudnn.benchmark, cudnn.deterministic) == (False, False)


OTHERS = {  # than the usual ones; what is true or false is turned
    "num_threads": torch.get_num_threads() + 3,
    "fp32_precision": switches.Precision((True, True)),
    "cudnn.benchmark_limit": 3,
    "deterministic_algorithms": (True, True),
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "default_dtype": torch.float64,
    "default_device": torch.device("meta"),
    "autocast.cpu": (True, torch.float16),
    "autocast.cuda": (True, torch.bfloat16),
    "anomaly": (True, False),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", switches.SWITCHES)
def test_each_switch_is_set_back_after_a_factory_and_before_a_point(name):
    """Whoever turned it is told."""
    switches.apply(point().axes)
    before = switches.read()
    other = OTHERS[name] if name in OTHERS else not before[name]
    with switches.kept(f"nets:{name}"):
        switches.SWITCHES[name][1](other)
        assert [told.partition("=")[0] for told in switches.turned()] == [name]
    assert switches.read() == before
    assert len(switches.turned_by(["alexnet", f"nets:{name}", None])) == 1
    switches.SWITCHES[name][1](other)
    switches.apply(point().axes)
    assert switches.read() == before
    assert switches.turned() == []


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")
@pytest.mark.parametrize(
    "backend",
    [torch.backends, torch.backends.cudnn, torch.backends.cudnn.conv, torch.backends.mkldnn.matmul]
    if hasattr(torch.backends, "fp32_precision")
    else [],
)
def test_tf32_of_the_newer_switches_reaches_no_point(backend):
    """The older ones are not heard while one of them is set."""
    backend.fp32_precision = "tf32" if backend is not torch.backends.mkldnn.matmul else "bf16"
    assert any(told.startswith("fp32_precision=") for told in switches.turned())
    switches.apply(point(tf32=False).axes)
    assert not tf32_allowed()
    assert backend.fp32_precision in {"none", "ieee"}


def test_what_a_factory_turned_is_set_back_and_told_with_each_row():
    """Also where the next point has the network from memory; the times are the row's own."""
    bench = on_device("inference")
    for size in (32, 16):
        row = bench.measure(point("tinynets:turning", input_size=size, measure=ONCE)).row
        assert {"switched_back", "switched"} & {*row["flags"].split(";")} == {"switched_back"}
        assert "mkldnn.enabled=False (set back)" in row["switches_turned"]
    row = bench.measure(point("tinynets:DrawsByDefault", measure=ONCE)).row
    assert not {"switched_back", "switched"} & {*row["flags"].split(";")}
    assert row["switches_turned"] is None
    row = on_device("training").measure(training("tinynets:turning")).row  # it has gradients
    assert "switched_back" in row["flags"].split(";")


def test_what_a_pass_turned_is_doubted_and_reaches_no_other_point():
    """The row names the switch."""
    bench = on_device("inference")
    row = bench.measure(point("tinynets:WithoutOneDNN", measure=ONCE)).row
    assert "switched" in row["flags"].split(";")
    assert row["switches_turned"] == "mkldnn.enabled=False"
    row = bench.measure(point("tinynets:Plain", measure=ONCE)).row
    assert "switched" not in row["flags"].split(";")


@pytest.mark.gpu
@pytest.mark.usefixtures("nothing_computed")
def test_a_factory_that_switches_cudnn_off_is_measured_with_it():
    """As the row of an algorithm of cuDNN's says."""
    bench = on_device("inference", "cuda")
    for name, turned in (("turning", True), ("Plain", False)):
        done = bench.measure(point(f"tinynets:{name}", gpu="h100", measure=ONCE))
        assert ("cudnn.enabled=False" in str(done.row["switches_turned"])) is turned
        for call in done.proof.calls:
            assert "aten::cudnn_convolution" in call.seen.operators


@pytest.mark.parametrize(
    ("version", "cuda", "before", "after"),
    [("2.11.0", "13.0", None, "1"), ("2.15.0+cu132", "12.6", None, "1"),
     ("2.11.0", "12.4", None, None), ("2.11.0", None, None, None), ("2.11.0", "13.0", "0", "0"),
     ("2.10.0", "13.0", None, None), ("2.9.1", "12.8", None, None), ("2.9.1", "12.8", "1", "1")],
)  # fmt: skip
def test_the_profiler_leaves_the_process_where_that_is_safe(
    monkeypatch, version, cuda, before, after
):
    """Later points are timed without it, like the first; who sets the variable decides."""
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("TEARDOWN_CUPTI", before or "")
    if before is None:
        monkeypatch.delenv("TEARDOWN_CUPTI")
    switches.detach_profiler()
    assert os.environ.get("TEARDOWN_CUPTI") == after
