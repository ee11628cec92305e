"""Verification: what ran is proven by the code that measures, and a lie is found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from hpcsweep.cli import verify
from hpcsweep.cli.verify import Verification
from hpcsweep.conv.backend import Operation
from hpcsweep.conv.proof import Evidence, Observation, cell
from hpcsweep.conv.reference import FAMILIES
from hpcsweep.measure import rounding
from hpcsweep.measure.bench_api import Bench
from hpcsweep.measure.measure_point import PointBench, on_device
from hpcsweep.point import canonical_json
from measuring import lying, point, training

NET = "tinynets:small_vgg"  # a 3x3, and a 1x3 that Winograd cannot do


@pytest.fixture(scope="module")
def bench() -> PointBench:
    """Return what measures, once: it keeps its network."""
    return on_device("inference", "cpu")


def found(bench: Bench, *points) -> list[Verification]:
    """Verify points."""
    return list(verify.verify_points(points, bench))


@pytest.mark.parametrize("algorithm", ["gemm", "direct"])
def test_an_honest_point_is_proven(bench: PointBench, algorithm: str) -> None:
    """All calls seen, none contradicting, the output exact."""
    (finding,) = found(bench, point(NET, algorithm=algorithm))
    assert finding.proven
    assert finding.problems == []
    assert [row["algorithm_used"] for row in finding.convolutions] == [algorithm] * 2
    assert finding.row["call_rel_error"] < 1e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_training_in_a_reduced_type_is_compared_with_the_weights_that_it_learned(dtype) -> None:
    """Each call of it on its own input."""
    (finding,) = found(on_device("training", "cpu"), training(algorithm="gemm", dtype=dtype))
    assert finding.problems == []
    assert finding.proven
    assert 0 < finding.row["call_rel_error"] < 0.05


def test_a_fallback_is_told_with_its_reason_and_is_no_lie(bench: PointBench) -> None:
    """One of the two convolutions is none for Winograd."""
    (finding,) = found(bench, point(NET, algorithm="winograd"))
    assert finding.proven
    screen = verify.verification_text([finding])
    assert "1 of 2" in screen
    assert "layers swapped: 1 (reference); calls ran: 1 winograd, 1 auto" in screen
    assert "auto because: 1x kernel 1x3: needs 3x3" in screen
    assert screen.endswith("proven: 1 of 1 points")


def test_an_algorithm_that_secretly_runs_the_framework_is_found_out(
    bench: PointBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right numbers do not help it."""
    lying(
        monkeypatch,
        "winograd",
        lambda x, weight, _shape: nn.functional.conv2d(x, weight, None, padding=1),
    )
    (finding,) = found(bench, point(NET, algorithm="winograd"))
    assert not finding.proven
    assert "0: mismatch (ran aten::conv2d)" in finding.problems[0]
    screen = verify.verification_text([finding])
    assert "NOT PROVEN: 0: mismatch (ran aten::conv2d)" in screen
    assert screen.endswith("proven: 0 of 1 points")


def test_an_algorithm_that_computes_something_else_is_found_out(
    bench: PointBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right operators do not help it."""
    honest = FAMILIES["gemm"].convolve
    lying(monkeypatch, "gemm", lambda *args: honest(*args) * 1.01)
    (finding,) = found(bench, point(NET, algorithm="gemm"))
    assert not finding.proven
    assert finding.problems[0].startswith("wrong results: 0: error is ")
    assert not finding.row["valid"]


def test_every_check_is_on_whatever_the_sweep_says(bench: PointBench) -> None:
    """A sweep may leave the evidence out of its points; verification may not."""
    off = {"evidence": False, "numerics": False, "layers": False, "iterations": 100}
    (finding,) = found(bench, point(NET, algorithm="gemm", measure=off))
    assert finding.proven
    assert finding.row["n"] == verify.CHECKS["iterations"]
    assert finding.row["call_rel_error"] is not None


def test_a_map_with_a_pattern_that_matches_nothing_is_not_proven(bench: PointBench) -> None:
    """By name and by shape, under its short name; the misspelt one is refused, as in the sweep."""
    request = {"0": "winograd", "*_1x3_*": "gemm"}
    (finding,) = found(bench, point(NET, algorithm=request))
    assert finding.proven
    assert [c["algorithm_used"] for c in finding.convolutions] == ["winograd", "gemm"]
    screen = verify.verification_text([finding], {canonical_json(request): "mixed"}).splitlines()
    assert screen[1].split()[3] == "mixed"
    assert screen[-2] == f"mixed: {canonical_json(request)}"
    (finding,) = found(bench, point(NET, algorithm={**request, "layr1": "fft"}))
    assert not finding.proven
    assert "matches no convolution" in verify.verification_text([finding])


def test_points_that_cannot_run_are_findings_and_the_next_is_verified(bench: PointBench) -> None:
    """For a policy that forbids fallbacks, or for want of memory."""
    points = [
        point(NET, algorithm="winograd", measure={"unsupported": policy})
        for policy in ("skip", "error", "fallback")
    ]
    findings = found(bench, point("tinynets:Hungry"), *points)
    hungry, skipped, failed, ran = (finding.refusal for finding in findings)
    assert hungry.startswith("oom: out of memory")
    assert skipped.startswith("unsupported: 1 of 2 convolutions cannot run as asked")
    assert failed.startswith("error: 1 of 2 convolutions")
    assert ran is None
    screen = verify.verification_text(findings)
    assert skipped in screen
    assert screen.endswith("proven: 1 of 4 points, 3 could not run")


def judged(*evidence: Evidence) -> Verification:
    """Return what is said of calls with this evidence, and an output that is right."""
    conv = {"algorithm_used": "gemm", "fallback_reason": None}
    layers = [{**conv, "layer": one.layer, "algorithm_evidence": cell(one)} for one in evidence]
    return Verification(
        point(NET, algorithm="gemm"),
        {"flags": "", "call_rel_error": 0.0, "error_over_bound": 0.0},
        layers,
    )


def test_calls_without_evidence_are_not_proven() -> None:
    """A profiler that loses events proves nothing."""
    assert judged(Evidence("a")).problems == ["a: none"]


def test_the_words_of_a_cell_decide_nothing() -> None:
    """A kernel may be called anything; only how a cell begins is ours."""
    assert judged(Evidence("a", Observation(telling=[Operation("mismatch none")]))).proven


def test_many_contradictions_are_counted() -> None:
    """A screen stays a screen."""
    calls = (Evidence(f"l{i}", Observation(), (), "ran aten::conv2d") for i in range(50))
    finding = judged(*calls)
    assert len(finding.problems) == 4
    assert finding.problems[-1] == "and 47 more such calls"


def test_layers_show_what_ran_why_its_error_and_what_was_seen(bench: PointBench) -> None:
    """One line per convolution, on request."""
    (finding,) = found(bench, point(NET, algorithm="winograd"))
    head, first, second = (
        line.split() for line in verify.verification_text([finding], layers=True).splitlines()[5:8]
    )
    assert head == ["layer", "ran", "MiB", "error", "of", "bound", "seen"]
    # how much memory operators of torch take is not known
    assert (first[:2], first[4]) == (["0", "winograd"], "profiler:")
    assert float(first[2]) < 1e-5
    assert float(first[3]) < 1
    assert " ".join(second[:6]) == "3 auto (kernel 1x3: needs 3x3)"
    assert "profiler:" in second
    assert "MiB" not in verify.verification_text([finding])


def test_convolutions_that_no_backend_runs_are_not_proven(bench: PointBench) -> None:
    """They are named with their share; the framework's own choice is proven all the same."""
    points = [point("tinynets:OtherKinds", algorithm=name) for name in ("gemm", "auto")]
    explicit, default = found(bench, *points)
    told = "no back-end can run all of it: 52.7 % conv1d (line); 17.6 % conv_transpose2d (up)"
    assert not explicit.proven
    assert told in explicit.problems
    assert default.proven
    screen = verify.verification_text([explicit, default])
    assert f"NOT PROVEN: {told}" in screen
    assert "1 of 3" in screen
    assert screen.endswith("proven: 1 of 2 points")


def test_an_algorithm_that_no_convolution_ran_is_not_proven(bench: PointBench) -> None:
    """Every call fell back, each for a reason; nothing contradicts, and nothing is shown."""
    (finding,) = found(bench, point("tinynets:Attention", algorithm="winograd"))
    assert finding.problems == ["no convolution ran the algorithm"]
    assert not finding.row["valid"]


def test_a_library_s_call_without_a_kernel_is_not_proven() -> None:
    """Who called the library by a name knows what was asked for, and not what ran."""
    seen = Observation(library_calls=["cudnnConvolutionForward:gemm"])
    named = judged(Evidence("a", seen), Evidence("b", Observation()))
    assert named.problems == ["a: api: none"]
    assert judged(Evidence("a", replace(seen, kernels=["sgemm"]))).proven


def test_a_network_of_which_no_call_was_compared_is_not_proven(
    bench: PointBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is valid, for nothing says that it is wrong; a silent output is no reason."""
    with monkeypatch.context() as patch:
        patch.setattr(rounding, "of_call", lambda *_, **__: 1 / 0)
        (finding,) = found(bench, point("oddoutputs:Masked"))
    assert finding.problems == ["results not compared: conv: not compared: division by zero"]
    assert "unverified" not in finding.row["flags"].split(";")
    (finding,) = found(bench, point("tinynets:Silent", algorithm="gemm"))
    assert finding.proven


@pytest.mark.parametrize("network", ["NoisyHead", "Dropout", "Growing", "Undefined", "Nothing"])
def test_a_network_is_not_doubted_for_what_it_is(bench: PointBench, network: str) -> None:
    """Random, with a state, not finite, without an output: its convolutions are compared."""
    (finding,) = found(bench, point(f"oddoutputs:{network}"))
    assert {"inaccurate", "unverified"}.isdisjoint(finding.row["flags"].split(";"))
    assert finding.proven


@pytest.mark.parametrize("network", ["Complex", "Masked", "InPlace", "Float32Alone"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_odd_outputs_that_are_right_are_compared(bench: PointBench, network: str, dtype) -> None:
    """Infinities, complex numbers, and a network that changes its input."""
    (finding,) = found(bench, point(f"oddoutputs:{network}", dtype=dtype))
    assert finding.problems == []
    assert finding.row["numerics_reason"] is None
    assert 0 < finding.row["error_over_bound"] < 1


def test_what_was_not_to_be_compared_is_told(bench: PointBench) -> None:
    """The row stays valid, but it does not look like one that was compared."""
    row = bench.measure(point(NET, measure={"numerics": False})).row
    assert "unchecked" in row["flags"].split(";")
    assert row["numerics_reason"] is row["error_over_bound"] is None


def test_the_forward_convolutions_of_a_training_are_compared_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the weights that were learned; rows of gradients have no error."""
    (honest,) = found(on_device("training", "cpu"), training(algorithm="gemm", amp="bf16"))
    assert honest.problems == []
    excesses = [(row["direction"], row.get("error_over_bound")) for row in honest.convolutions]
    assert all((error is not None) == (way == "forward") for way, error in excesses)
    convolve = FAMILIES["gemm"].convolve
    lying(monkeypatch, "gemm", lambda *args: convolve(*args) * 1.05)
    (liar,) = found(on_device("training", "cpu"), training(algorithm="gemm"))
    assert not liar.proven
    assert "stem: error is " in liar.row["numerics_reason"]
