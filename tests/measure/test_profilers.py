"""Profilers in passes of their own: what they write, and that no time is theirs."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pstats
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import standins
from hpcsweep import environment
from hpcsweep.catalog import columns
from hpcsweep.measure import profilers
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.measure_point import on_device
from measuring import point, training

QUICK = {"warmup": 0, "iterations": 2, "evidence": False, "numerics": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return where artifacts go, as a supervisor says it."""
    monkeypatch.setenv(environment.ARTIFACTS, str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def bench():
    """One bench for all tests."""
    return on_device("inference", "cpu")


def test_the_torch_profiler_leaves_a_table_a_csv_and_a_trace(bench, folder):
    """All under the point's id, all named in the row, which keeps its times."""
    done = bench.measure(point(measure={**QUICK, "profile": ["torch"]}))
    assert done.row["median_ms"] > 0
    assert set(done.row) <= set(columns.OVERALL_COLUMNS)
    names = done.row["artifacts"].split(";")
    endings = ["torch.txt", "torch.csv", "trace.json.gz"]
    assert names == [f"0123456789abcdef.{ending}" for ending in endings]
    assert all((folder / name).exists() for name in names)
    with (folder / names[1]).open() as file:
        rows = {row["operator"]: row for row in csv.DictReader(file)}
    # two convolutions, three passes
    assert rows["aten::conv2d"]["calls"] == "6"
    assert int(rows["aten::conv2d"]["flops"]) > 0
    events = json.loads(gzip.decompress((folder / names[2]).read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::conv2d" for event in events)


def test_cprofile_sees_the_hosts_functions(bench, folder):
    """A text for people and the raw statistics for tools."""
    done = bench.measure(point(measure={**QUICK, "profile": ["cprofile"], "profile_passes": 2}))
    text, raw = done.row["artifacts"].split(";")
    assert "conv2d" in (folder / text).read_text()
    calls = pstats.Stats(str(folder / raw)).stats
    assert any("conv2d" in function[2] for function in calls)


def test_a_profiler_inside_covers_the_whole_training_on_request(folder):
    """As many steps as were timed, with the loading of their data."""
    measure = {**QUICK, "layers": False, "profile": ["cprofile"], "profile_passes": 0}
    wanted = training(epochs=2, steps_per_epoch=3, measure=measure)
    row = on_device("training", "cpu").measure(wanted).row
    assert row["n"] == 6
    _, raw = row["artifacts"].split(";")
    counts = {
        (Path(file).name, name): calls[0]
        for (file, _, name), calls in pstats.Stats(str(folder / raw)).stats.items()
    }
    assert counts["trainer.py", "step"] == 6
    assert counts["dataloader.py", "__next__"] >= 6


def test_a_trace_that_is_too_large_is_not_kept_and_told(bench, folder):
    """The table stays."""
    done = bench.measure(point(measure={**QUICK, "profile": ["torch"], "artifact_mb": 0.001}))
    assert "no trace (" in done.row["artifacts"]
    assert not list(folder.glob("*trace*"))
    assert (folder / "0123456789abcdef.torch.txt").exists()


def test_without_a_supervisor_nothing_is_written(bench, monkeypatch):
    """As in `hpcsweep verify`."""
    monkeypatch.delenv(environment.ARTIFACTS, raising=False)
    done = bench.measure(point(measure={**QUICK, "profile": ["torch"]}))
    assert not done.row.get("artifacts")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nvtx_needs_a_gpu_and_says_so(bench, folder, monkeypatch):
    """Times are measured all the same; under a wrapper there would be nothing, so it is told."""
    wanted = point(measure={**QUICK, "profile": ["nvtx"]})
    done = bench.measure(wanted)
    assert done.row["median_ms"] > 0
    assert done.row["artifacts"] == "no nvtx range on cpu"
    monkeypatch.setenv(environment.WRAPPER, "ncu")
    with pytest.raises(CannotMeasure, match="nvtx needs an NVIDIA GPU or rocTX; this is cpu"):
        bench.measure(wanted)


def test_a_range_around_a_step_holds_its_backward_pass(folder):
    """Autograd runs in another thread; the profiled step is one range by time, not by thread."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LazyLinear(4))
    image = torch.randn(2, 3, 8, 8)

    def step():
        model(image).sum().backward()

    settings = {"profile_passes": 1, "profile_iter": 1, "artifact_mb": 10}
    profilers.run(["torch"], profilers.ProfiledStep(step, lambda: None, "cpu", 0), "step", settings)
    trace = json.loads(gzip.decompress((folder / "step.trace.json.gz").read_bytes()))
    events = [event for event in trace["traceEvents"] if "dur" in event]
    (mark,) = (e for e in events if e["name"] == profilers.RANGE and e["cat"] == "user_annotation")
    backward = [e for e in events if e["name"] == "aten::convolution_backward"]
    assert backward
    for event in backward:
        assert mark["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= mark["ts"] + mark["dur"]


_STEPS = """
import torch
from hpcsweep import environment
from hpcsweep.measure import profilers
from hpcsweep.measure.profilers import ProfiledStep

def fails():
    raise ValueError("a step that fails")

settings = {"profile_iter": 1}
steps = [lambda: torch.zeros(1), fails, lambda: torch.zeros(1)]
for run in steps:
    try:
        print(profilers.run(["nvtx"], ProfiledStep(run, lambda: None, "cpu", 0), "p", settings))
    except ValueError as error:
        print(error)
profilers.refuse_early(["nvtx"], "cpu")
"""


def test_roctx_ranges_need_no_gpu_and_end_after_an_exception(tmp_path):
    """The library is loaded before, as rocprofv3 does; a stand-in logs its calls."""
    library = standins.compile_library("roctx", tmp_path)
    log = tmp_path / "log"
    surrounding = {
        "LD_PRELOAD": str(library), "ROCTX_LOG": str(log),
        environment.WRAPPER: "rocprofv3", environment.ARTIFACTS: str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _STEPS], env=os.environ | surrounding,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "a step that fails" in done.stdout
    started = [f"start hpcsweep step {number}" for number in (1, 2, 3)]
    stopped = [f"stop {number}" for number in (1, 2, 3)]
    assert log.read_text().splitlines() == [
        line for pair in zip(started, stopped, strict=True) for line in pair
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
def test_the_nvtx_range_of_a_step_holds_its_backward_kernels():
    """Kernels launched between start and end of the range, whatever thread launched them."""
    model = nn.Conv2d(3, 8, 3).cuda()
    image = torch.randn(2, 3, 32, 32, device="cuda")
    with torch.profiler.profile() as seen, profilers.marked("cuda"):
        model(image).sum().backward()
        torch.cuda.synchronize()
    assert any("convolution_backward" in event.key for event in seen.key_averages())


TWO_PROFILES = """\
import csv, os, torch
from pathlib import Path
from hpcsweep.measure import profilers
from hpcsweep.measure.profilers import ProfiledStep
few = torch.zeros(8, device="cuda")
step = ProfiledStep(lambda: few.add_(1), torch.cuda.synchronize, "cuda", 0, 3)
for name in "abc":
    profilers.run(["torch"], step, name, {"profile_passes": 3, "artifact_mb": 64})
    with Path(os.environ["HPCSWEEP_ARTIFACTS"], f"{name}.torch.csv").open() as file:
        rows = {row["operator"]: row for row in csv.DictReader(file)}
    print(float(rows["aten::add_"]["self_device_us"]) > 0)
"""


@pytest.mark.slow
def test_each_profile_has_the_kernels_where_cupti_leaves_after_one(pretend_gpu, tmp_path):
    """The next one may begin without any call of CUDA between."""
    done = pretend_gpu.run(
        sys.executable, "-c", TWO_PROFILES, TEARDOWN_CUPTI="1", HPCSWEEP_ARTIFACTS=str(tmp_path)
    )
    assert done.stdout == "True\n" * 3, done.stdout + done.stderr
