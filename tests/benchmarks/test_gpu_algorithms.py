"""The benchmark of all algorithms on a GPU, tried without one: what it says, and leaves behind."""

from __future__ import annotations

import csv
import importlib.util
import sys
import time

import pytest

from hpcsweep.measure.bench_api import Measured, OutOfMemory
from paths import ROOT

SAME = " within 3 % (100 %), worst 0.0 %, sums 1.000"
_SCRIPT = ROOT / "benchmarks" / "gpu_algorithms.py"


@pytest.fixture(scope="module")
def script():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_algorithms", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_algorithms"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_algorithms"]


class _Bench:
    """Two convolutions a point; one of them runs the default's kernels, a little slower."""

    def __init__(self, fails=()):
        """Fail at some algorithms."""
        self.fails = fails
        self.slower = 1.0

    def environment(self):
        """Return what names the machine, and what does not."""
        return {
            "executable": "/home/somebody/bin/python",
            "device": {"name": "H200", "uuid": "GPU-1"},
            "software": {"torch": "2.11", "torch_config": "/build"},
            "row": {"device_name": "H200", "node": "n17", "driver_version": "580"},
        }

    def measure(self, point, _tries=0):
        """Return rows of a point."""
        algorithm = point.axes["algorithm"]
        if algorithm in self.fails:
            raise self.fails[algorithm]
        explicit = algorithm not in {"auto", "autotune"}
        factor = self.slower if explicit else 1.0
        kernels = ("same<1,2>", f"own_{algorithm}")
        seen = "cudnnConvolutionForward:" if explicit else "aten::cudnn_convolution_"
        layers = [
            {
                "op": "conv2d",
                "layer": kernel,
                "algorithm_used": algorithm,
                "algorithm_evidence": f"profiler: {seen}x {kernel}",
                "median_ms": 0.01 * factor,
            }
            for kernel in kernels
        ]
        row = {
            "median_ms": 2.0,
            "max_rel_error": 1e-6,
            "hook_overhead_pct": 3.0,
            "algorithm_coverage_pct": 100.0,
            "flags": "",
        }
        return Measured(row, [*layers, {"op": "relu", "median_ms": 0.01}], [2.0])


def _found(script, bench, seconds=60.0):
    ends = time.monotonic() + seconds
    return script.Found(bench, "gpu", "resnet18", 3, ("eager", "graph"), ends)


def _verdicts(script, found, sizes=4):
    return [(claim[:3], what, holds) for claim, what, holds in script.claims(found, sizes)]


def test_each_claim_gets_a_verdict_and_what_it_rests_on(script):
    """The default's kernels are told apart from the others, and their share is told."""
    bench = _Bench()
    found = _found(script, bench)
    for key in script.plan(found.launches):
        found.measure(*key)
    script.sweep(found, 4)
    assert _verdicts(script, found) == [
        ("(a)", "8 of 16 convolutions (50 %): 8 of 8" + SAME, True),
        ("(a)", "2 of 2" + SAME, True),
        ("(b)", "largest 1.0e-06 (auto, eager)", True),
        ("(c)", "median 1.030, worst 1.030", True),
        ("(c)", "median 1.030, worst 1.030", False),
        ("(d)", "4 pairs, worst 0.00 %", True),
        ("(e)", "0 s, 0 ms a size", True),
    ]  # fmt: skip
    bench.slower = 1.1
    found.measure("gemm", "graph", 0)
    assert _verdicts(script, found)[0][2] is False


def test_points_that_fail_are_told_without_folders_and_the_rest_is_measured(script, tmp_path):
    """Out of memory, or an error of the library: one line each, and files all the same."""
    fails = {
        "fft": OutOfMemory(1, 2, "out of memory"),
        "gemm": RuntimeError("/home/somebody/lib/libcudnn.so.9: cuDNN failed\nsecond line"),
    }
    found = _found(script, _Bench(fails))
    for key in script.plan(("graph",)):
        found.measure(*key)
    script.write(tmp_path, found, script.claims(found, 0))
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "* fft graph 0: out of memory (peak" in text
    assert "* gemm graph 0: libcudnn.so.9: cuDNN failed\n" in text
    assert not [word for word in ("/home", "somebody", "n17", "GPU-1", "/build") if word in text]
    lines = (tmp_path / "algorithms.csv").read_text().splitlines()
    assert len(list(csv.DictReader(lines))) == 10


def test_a_run_that_is_cut_off_claims_nothing_that_it_did_not_measure(script, tmp_path):
    """It writes every file all the same; a part of the sweep stands for the whole."""
    found = _found(script, _Bench())
    assert {holds for _, _, holds in script.claims(found, 100)} == {None}
    found.sweep = [2.0, 4.0]
    claim, what, holds = script.claims(found, 100)[-1]
    assert (claim, holds) == ("(e) 100 sizes in under 180 s", False)
    assert what == "2 sizes in 6 s; all would take 300 s, 3000 ms a size"
    script.write(tmp_path, found, script.claims(found, 100))
    assert len(list(tmp_path.iterdir())) == 4
    late = _found(script, _Bench(), seconds=-1.0)
    script.sweep(late, 3)
    assert late.sweep == []
