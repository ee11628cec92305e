"""Records of a GPU proof that hold every claim, to be spoiled one at a time."""

from __future__ import annotations

import copy
from typing import Any

from benchmarks.gpu import facts, points, runner
from benchmarks.gpu.product import TELEMETRY
from benchmarks.gpu.record import COMPLETE, Record
from hpcsweep import catalog
from hpcsweep.conv.proof import profiler_events

ENVIRONMENT = {
    "kind": "cuda",
    "name": "NVIDIA H100 80GB HBM3",
    "driver_version": "580",
    "torch": "2.11",
    "cudnn": 91900,
}
KEY = "conv2d_n1_c64_56x56"


def timed(us, spread=0.01):
    """Return a time with its interval."""
    return {"us": us, "low_us": us - spread, "high_us": us + spread, "n": 50}


def record(step, found, **cells):
    """Return a complete record of a step."""
    cells = {"state": COMPLETE, "planned": list(found), **cells}
    return Record(step, dict(ENVIRONMENT), found=found, **cells)


PLAN = {"plan": "eng12_k5=1", "error": 1e-6, "excess": 0.3}
PROVEN: dict[str, Any] = {
    "kernels": {"conv": {"controls": {"claims": 8, "accepted": [], "own_refused": [],
                                      "shared": [["fft", "fft_tiling"]]}}},
    "plans": {
        "conv heuristic": {**PLAN, "notes": "TENSOR_CORE", "kernels": "implicit_gemm"},
        "conv": {"told": ["eng12", "eng1"], "names": ["eng12", "eng7"]},
        "conv eng12": {**PLAN, "notes": "WINOGRAD WINOGRAD_TILE_4x4", "kernels": "winograd"},
        "conv eng7": {"refused": "no"}},
    "replayed": {"conv": {"auto": True, "gemm": True}},
    "precision": {"gemm float16": {"ran": 2, "of": 2, "excess": 0.5},
                  "fft float16": {"ran": 0, "of": 2, "excess": None}},
    "stars": {f"process {n}": {"one_ms": 1.0, "other_ms": 1.0 + gap}
              for n, gap in enumerate((0.02, -0.02, 0.02))},
    "resources": {
        "full": {"outcome": "out of memory"}, "free": {"outcome": "measured"},
        "heavy batch": {"energy_j": 10.0, "integrated_j": 10.5, "reasons": "power"}},
}  # fmt: skip


def good():
    """Return the records of all steps of a GPU on which every claim holds."""
    names = ("auto", "gemm", "fft")
    controls: dict[str, Any] = {"controls": PROVEN["kernels"]["conv"]["controls"]}
    own = {"auto": ["k1"], "gemm": ["k1"], "fft": ["k2", "k3"]}
    us = {"auto": 10.0, "auto again": 10.005, "gemm": 10.01, "fft": 40.0}
    of_point: dict[str, object] = {
        "median_ms": 2.0,
        "call_rel_error": 1e-6,
        "hook_overhead_pct": 20.0,
    }
    of_point |= {"algorithm_coverage_pct": 100.0, "valid": True, "flags": "throttled"}
    of_point |= {"throttle_reasons": "sw_thermal", "cost_s": {"timed": 1.5, "evidence": 0.5}}
    eager = points.plan(list(catalog.ALGORITHMS))
    planned = {**eager, **points.graphs(list(catalog.ALGORITHMS), dict.fromkeys(eager, of_point))}
    row = {**dict.fromkeys(TELEMETRY, "1"), "status": "ok", "algorithm": "auto", "launch": "eager"}
    row |= {"median_ms": "2.0", "algorithm_evidence": "kernel"}
    passed = {"eager_ms": 5.0, "graph_ms": 4.0}
    session = {"calls": 60, "lost": 0, "which": []}
    found = {
        **copy.deepcopy(PROVEN),
        "device": {
            facts.NOTHING: {"event_us": 1.6, "two_events_add_us": 2.2, "resolution_us": 0.032},
            "queue: kernel": {"holds": 1022, "tried": 6000},
            "queue: event, kernel, event": {"holds": 1800, "tried": 6000},
            facts.COLD: {"gbs": 2900.0},
            facts.READ: {"hot_us": 8.0, "cold_us": 12.0},
        },
        "supervised": {"sweep": {"rows": [row, {**row, "median_ms": "2.01"}]}},
        "tests": {"tests/test_x.py::test_y": {"outcome": "passed", "why": ""}},
        "kernels": {
            KEY: {n: {"kernels": own[n], "us": us[n], "lost": 0} for n in names} | controls
        },
        "sessions": {
            "first": passed,
            "second": passed,
            "session 0": {**session, "sacrificed": 0, "lost": 7},
            "session 1": {**session, "sacrificed": profiler_events.SACRIFICE},
            "after": passed,
            "attached": {"eager_ms": 5.5, "graph_ms": 4.0},
        },
        "layers": {
            KEY: {
                "graph": {name: timed(value) for name, value in us.items()},
                "graph_bare_us": dict(us),
                "stream": {name: timed(1.1 * value) for name, value in us.items()},
                "stream_bare_us": {name: 1.1 * value for name, value in us.items()},
                "resolution_us": 0.002,
                "failed": {},
            }
        },
        "points": {key: dict(of_point) for key in planned},
        "tuning": {"in turns": {"auto_ms": 2.0, "after_auto_ms": 2.0, "alone_ms": 1.5}},
        "sizes": {f"{i}: {200 + i}": {"seconds": 1.5, "median_ms": 2.0} for i in range(100)},
    }
    assert set(found) == set(runner.STEPS)
    return {step: record(step, items) for step, items in found.items()}
