"""The verdicts about the proofs: each holds, is refuted by its own fact, and is open without it."""

from __future__ import annotations

import copy

import pytest

import proofs
from benchmarks.gpu import facts, verdicts
from benchmarks.gpu.claims import HELD, OPEN, REFUTED
from proofs import PLAN

# what makes a verdict fail: the step, the entry, and its wrong facts
WRONG = {
    "false_claims": ("kernels", proofs.KEY, {"controls": {
        "claims": 8, "accepted": [["winograd", "gemm"]], "own_refused": [], "shared": []}}),
    "own_claims": ("kernels", proofs.KEY, {"controls": {
        "claims": 8, "accepted": [], "own_refused": [["gemm", "fft"]], "shared": []}}),
    "plan_errors": ("plans", "conv eng12", {**PLAN, "excess": float("nan")}),
    "notes": ("plans", "conv eng12", {"notes": "TENSOR_CORE", "kernels": "winograd"}),
    "support": ("plans", "conv", {"told": ["eng1"]}),
    "tuned": ("tuning", "in turns", {"alone_ms": 2.1}),
    "replays": ("replayed", "conv", {"gemm": False}),
    "types": ("precision", "gemm float16", {"excess": 1.5}),
    "stars": ("stars", "process 1", {"other_ms": 1.02}),
    "energy": ("resources", "heavy batch", {"integrated_j": 12.0}),
    "whole_rows": ("points", "auto graph 0", {"valid": False}),
    "flags": ("points", "auto graph 0", {"throttle_reasons": ""}),
    "layered_graphs": ("points", "gemm graph 0", {"flags": "algorithm_mismatch"}),
    "second_points": ("supervised", "sweep", {"rows": [
        {"status": "ok", "algorithm": "auto", "launch": "eager", "median_ms": ms}
        for ms in ("2.0", "2.03")]}),
    "sweep": ("supervised", "sweep", {"rows": [
        {"status": "ok", "algorithm": "auto", "launch": "eager", "temp_c_end": ""}]}),
    "out_of_memory": ("resources", "full", {"outcome": "measured"}),
    "gpu_tests": ("tests", "tests/test_x.py::test_y", {"outcome": "failed"}),
    "cold_read": ("device", facts.COLD, {"gbs": 4000.0}),
}  # fmt: skip


@pytest.fixture
def records():
    """Return records on which every claim holds."""
    return copy.deepcopy(proofs.good())


def test_every_claim_holds_and_says_its_numbers(records):
    """A page of good figures, in the order of their letters."""
    told = verdicts.all_verdicts(records)
    assert {one.verdict for one in told} == {HELD}
    assert len(told) == len(WRONG)
    assert all(one.limit and one.found for one in told)


@pytest.mark.parametrize("name", WRONG)
def test_each_claim_can_fail_by_a_fact_of_its_own(records, name):
    """Nothing else fails with it that does not look at the same fact."""
    step, key, wrong = WRONG[name]
    records[step].found[key] |= wrong
    assert getattr(verdicts, name)(records).verdict == REFUTED
    others = {other for other, (of, *_) in WRONG.items() if of != step}
    assert {getattr(verdicts, other)(records).verdict for other in others} == {HELD}


def test_two_points_of_a_worker_with_one_time_are_a_pair(records):
    """The first point alone is none."""
    rows = records["supervised"].found["sweep"]["rows"]
    rows[1]["median_ms"] = rows[0]["median_ms"]
    told = verdicts.second_points(records)
    assert (told.verdict, told.found) == (HELD, "1 pairs, worst 0.00 %")
    del rows[1]
    assert verdicts.second_points(records).verdict == OPEN


@pytest.mark.parametrize("name", WRONG)
def test_what_was_not_measured_is_unknown(records, name):
    """So is what was begun and not finished."""
    step = WRONG[name][0]
    assert getattr(verdicts, name)({}).verdict == OPEN
    late = proofs.record(step, {}, state="stopped", note="needs pynvml")
    assert getattr(verdicts, name)({step: late}).verdict == OPEN
    records[step].failed["more"] = "no time"
    if name == "gpu_tests":  # a test that took the process along
        assert verdicts.gpu_tests(records).verdict == REFUTED
    elif name not in {"cold_read", "out_of_memory"}:  # they have all that they need
        assert getattr(verdicts, name)(records).verdict == OPEN
