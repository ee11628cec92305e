"""What gradients run: decided from the back-end, proven by a profiled step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcsweep.conv import swap
from hpcsweep.conv.backend import Direction
from hpcsweep.conv.choice import backward_choice, gradients_of
from hpcsweep.conv.proof import backward_pass
from hpcsweep.conv.proof.evidence import Proof, Source, cell
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.reference.reference_backend import FAMILIES
from profiled import BACKEND, CALLS, X, step, step_net, step_proof

if TYPE_CHECKING:
    from profiled import StepNet

OPERATORS = [name for name in FAMILIES if name != "direct"]
NO_ONEDNN = BACKEND.unsupported("direct", CALLS[0][1])
needs_onednn = pytest.mark.skipif(NO_ONEDNN is not None, reason=str(NO_ONEDNN))
TEXTS = {
    "auto": "profiler: aten::convolution_backward",
    "gemm": "profiler: aten::bmm[4,36,4,400] aten::bmm[4,4,400,36] aten::unfold_backward",
    "fft": "profiler: aten::_fft_r2c[24,24] aten::bmm",
}


@pytest.fixture
def net() -> StepNet:
    """Return a swapped network."""
    return step_net()


@pytest.mark.parametrize("algorithm", [*OPERATORS, "auto"])
def test_the_gradients_of_every_algorithm_leave_its_own_traces(algorithm: str) -> None:
    """A real step: nothing contradicts, and only what fell back runs the framework's backward."""
    found = step_proof(algorithm)
    assert [call.layer for call in found] == ["a", "b", "b", "c"]
    assert [call.problem for call in found] == [None] * 4
    for choice, call in zip(step(algorithm).picked, found, strict=True):
        assert call.seen is not None
        ran_framework = "aten::convolution_backward" in call.seen.operators
        assert ran_framework == (choice.used == "auto") == ("convolution_backward" in cell(call))
    if algorithm in TEXTS:
        assert cell(found[1]).startswith(TEXTS[algorithm])
    assert Proof(tuple(found)).source is Source.PROFILER


@needs_onednn
def test_the_backward_pass_of_direct_is_proven_by_the_library_itself() -> None:
    """Its own lines, of both gradients; for groups it may take an im2col GEMM, which is told."""
    for number, call in enumerate(step_proof("direct")):
        text = cell(call)
        assert (call.problem is not None) == ("gemm:" in text)
        assert "profiler: aten::convolution_backward; onednn " in text
        ways = [report.way for report in call.primitives]
        assert ways == [*([Direction.DATA] if number else []), Direction.FILTER]
        assert ("onednn data: " in text) == (number > 0)
        assert "onednn filter: " in text
        assert "convolution_direct" in text


@needs_onednn
def test_a_direct_gradient_by_way_of_im2col_is_a_mismatch() -> None:
    """What a CPU without vector units gets; lines of forward passes do not count."""
    picked, events, _ = step("direct")
    sizes = (2, 4, 8, 20, 20, 3, 3)
    lines = [
        Primitive("jit:avx2", "convolution_direct", sizes, Direction.FORWARD),
        Primitive("gemm:jit", "convolution_direct", sizes, Direction.FILTER),
    ]
    found = backward_pass.proof_of_backward(events, picked, BACKEND, lines)
    assert found[0].problem == "filter: oneDNN ran gemm:jit"
    assert cell(found[0]).endswith("; onednn filter: gemm:jit convolution_direct")
    assert found[1].problem is None


def test_gradients_that_the_profiler_did_not_see_have_no_evidence(net: StepNet) -> None:
    """Not seen is not wrong: here a layer is left out, and a pass without backward."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    found = backward_pass.prove(net, lambda: net.a(X).sum().backward(), picked, BACKEND)
    assert [call.seen is None for call in found] == [False, True, True, True]
    none = backward_pass.prove(net, lambda: net(X), picked, BACKEND)
    assert [call.seen for call in none] == [None] * 4
    assert not any(call.problem for call in [*found, *none])


def test_what_gradients_run_is_decided_with_the_back_end(net: StepNet) -> None:
    """The reference back-end's are made of the same operators; the framework's are its own."""
    picked = swap.assign(net, CALLS, "winograd", "fallback", BACKEND)
    found = [backward_choice(call, gradients_of(call, BACKEND)) for call in picked]
    assert [c.used for c in found] == [*["winograd"] * 3, "auto"]
    assert [c.backend for c in found] == [*["reference"] * 3, "framework"]
    assert [c.fallback for c in found] == [False, False, False, True]
    assert [c.as_requested for c in found] == [True, True, True, False]
    assert found[3].reason == "kernel 1x1: needs 3x3"
