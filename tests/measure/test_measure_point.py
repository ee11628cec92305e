"""The pipeline of a point: what torch raises becomes an outcome; what is no time is no row."""

from __future__ import annotations

import math

import pytest
import torch

from hpcsweep.catalog.checks import CHECKS
from hpcsweep.errors import Refused
from hpcsweep.measure import measure_point as pipeline
from hpcsweep.measure import model_builder
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.timing.clocks import HostClock
from hpcsweep.measure.workloads.inference import Inference
from measuring import point


@pytest.fixture
def measured(monkeypatch):
    """Return a function that measures a point whose network raises an error when it is built."""

    def measure(text, *cannot):
        def build(*_):
            raise RuntimeError(text)

        bench = on_device("inference")
        monkeypatch.setattr(model_builder, "build", build)
        monkeypatch.setattr(bench.workload, "cannot", cannot)
        bench.measure(point())

    return measure


def test_memory_that_runs_out_is_given_back_after_its_figures_were_taken(measured, monkeypatch):
    """The peak is that of the point, not of what is left."""
    events = []
    monkeypatch.setattr(Inference, "forget", lambda _self: events.append(1))
    with pytest.raises(OutOfMemory) as caught:
        measured("CUDA out of memory. Tried to allocate 2 GiB\nmore words")
    assert events == [1, 1]  # before the network is built, and after the error
    assert caught.value.peak > 0
    assert str(caught.value).endswith("CUDA out of memory. Tried to allocate 2 GiB")


def test_the_line_that_says_what_is_missing_is_the_reason(measured):
    """The first line of a compiler may be a heading."""
    text = "backend raised:\nNo working C++ compiler found in PATH\nat line 3"
    with pytest.raises(CannotMeasure, match=r"^No working C\+\+ compiler found in PATH$"):
        measured(text, "No working C++ compiler found")


def test_other_errors_stay_what_they_are(measured):
    """A text that nobody knows is no finding about the machine."""
    with pytest.raises(RuntimeError, match=r"^sizes do not fit$"):
        measured("sizes do not fit")


@pytest.mark.parametrize("ms", [0.0, -1.0, math.inf, math.nan])
def test_what_is_not_finite_and_positive_is_no_time(monkeypatch, ms):
    """A clock that stood still, or ran back, gives no row."""
    monkeypatch.setattr(HostClock, "block", lambda _self, _run, count: [ms] * count)
    with pytest.raises(RuntimeError, match="no times: "):
        on_device("inference").measure(point(measure={"layers": False, "warmup": 0}))


def test_checks_run_in_the_order_of_the_catalogue_and_only_where_they_apply():
    """Energy is for inference, and only if the sweep wants it; what only reads comes first."""
    bench = on_device("inference")
    asked = [bench.checks_of(point(measure={"energy": wanted})) for wanted in (True, False)]
    assert [*asked[0]] == [*bench.checks]
    assert [*asked[1]] == [name for name in bench.checks if name != "energy"]
    profiled = bench.checks_of(point(measure={"profile": ["torch"], "energy": False}))
    runs = [name for name, check in profiled.items() if check.runs]
    assert runs == ["profile", "algorithm", "numerics", "control"]
    assert [*profiled][-len(runs) :] == runs


@pytest.mark.parametrize("name", CHECKS)
def test_without_a_check_a_row_lacks_the_columns_of_that_check_alone(monkeypatch, name):
    """The others need none of it."""
    asked = point(measure={"iterations": 2, "energy": False})
    whole = on_device("inference").measure(asked).row
    monkeypatch.setattr(pipeline, "CHECKS", {key: CHECKS[key] for key in CHECKS if key != name})
    row = on_device("inference").measure(asked).row
    assert {*row} == {*whole} - CHECKS[name].overall.declared.keys()


def test_inference_gets_its_bench_and_a_full_environment():
    """The bench that the worker asks for knows where it runs."""
    found = pipeline.torch_bench("inference", {"gpu": "cpu"})
    assert found.environment()["row"]["torch_version"] == torch.__version__


def test_a_workload_that_this_version_lacks_is_refused():
    """Refused before any point, by name."""
    with pytest.raises(Refused, match="'baking'"):
        pipeline.torch_bench("baking", {"gpu": "cpu"})
