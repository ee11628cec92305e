"""The benchmark of odd networks: its verdicts, and that it goes on where it was."""

from __future__ import annotations

import pytest

from benchmarks import odd_networks
from hpcsweep.cli.verify import Verification
from hpcsweep.conv.proof import Evidence, Observation, cell

TOLD = {"algorithm": "gemm", "covered": 100.0, "counted": 100.0, "error": 1e-7, "uncovered": None}
LAYER = {"layer": "a", "unique_key": "k", "algorithm_used": "gemm", "fallback_reason": None}


def judged(told=None, problem=None, **cells):
    """Return the verdict on a pair with one convolution."""
    row = {
        "flags": "",
        "call_rel_error": 1e-7,
        "error_over_bound": 0.1,
        "numerics_reason": "",
        **cells,
    }
    evidence = cell(Evidence("a", Observation(), (), problem))
    layer = {**LAYER, "algorithm_evidence": evidence}
    finding = Verification(odd_networks.a_point("m", "gemm"), row, [layer])
    return odd_networks.verdict(TOLD | (told or {}), finding)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (judged(), "proven"),
        (judged(problem="ran z"), "FALSE MISMATCH: 1 calls: a: mismatch (ran z)"),
        (judged(problem="ran z", flags="inaccurate"), "not proven: a: mismatch (ran z)"),
        (judged({"counted": 60.0}), "FALSE COVERAGE: 100.0 in the row, 60.0 counted"),
        (judged({"error": None}), "FALSE PROOF: error None"),
        (judged({"covered": 0.0, "counted": 0.0}), "FALSE PROOF: error 1e-07, 0.0 % counted"),
        (judged({"uncovered": "9 % conv1d"}), "FALSE PROOF: 9 % conv1d ran outside"),
        (judged(flags="algorithm_absent"), "not proven: no convolution ran the algorithm"),
    ],
)
def test_a_verdict_is_what_the_two_counts_and_the_output_say(verdict, expected):
    """An alarm where the output is right is false, and so is a proof of nothing."""
    assert verdict.startswith(expected)
