"""Evidence of forward passes: the profiler proves each algorithm on real passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.autograd.profiler_util import Kernel

from hpcsweep.conv import swap
from hpcsweep.conv.proof import forward_pass, profiler_events
from hpcsweep.conv.proof.evidence import Source, cell
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.reference.reference_backend import FAMILIES
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure.shape_pass import LayerCall
from hpcsweep.measure.timing import layer_timer
from profiled import BACKEND, CALLS, X, forward, forward_net, forward_proof

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from profiled import ForwardNet

RECORD = profiler_events.record
OPERATORS = [name for name in FAMILIES if name != "direct"]
NO_ONEDNN = BACKEND.unsupported("direct", CALLS[0][1])
needs_onednn = pytest.mark.skipif(NO_ONEDNN is not None, reason=str(NO_ONEDNN))
TEXTS = {
    "gemm": "profiler: aten::unfold aten::bmm[2,8,36,400]",
    "implicit_gemm": "profiler: aten::bmm[2,8,4,400] aten::baddbmm_[2,8,4,400]",
    "fft": (
        "profiler: aten::_fft_r2c[24,24] aten::mm[1,32,9,32] aten::bmm[32,2,4,8] "
        "aten::mm[1,24,9,32] aten::bmm[24,2,4,8] "
        "aten::_fft_c2r[24,13]"
    ),
}


@pytest.fixture
def net() -> ForwardNet:
    """Return a swapped network."""
    return forward_net()


class Losing:
    """A profiler of a GPU whose sessions lose their first kernels, so many in each."""

    def __init__(self, *lost: int) -> None:
        """Lose so many in one session after the other."""
        self.lost, self.sessions = list(lost), 0

    def __call__(self, *arguments: Any) -> tuple[list[Any], list[Primitive]]:
        """Profile for real, and give each operator that computes a kernel of 7 us."""
        events, primitives = RECORD(*arguments)
        computing = [e for e in events if e.name in {"aten::bmm", "aten::clamp_min"}]
        for event in computing[self.lost[self.sessions] :]:
            event.kernels.append(Kernel("sgemm", 0, 7))
        self.sessions += 1
        return events, primitives


def test_a_convolution_without_a_kernel_is_profiled_again(
    net: ForwardNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most three times; what an earlier session saw stays, also of layers that only add."""
    net.add_module("act", nn.ReLU())
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    monkeypatch.setattr(profiler_events, "passes", lambda _model: 3)

    def marking() -> AbstractContextManager[None]:
        act = (LayerCall("act", "relu", (), (), 0, 0, 0, "relu"),)
        return layer_timer.marked(net, act)

    def run() -> None:
        net.act(net(X))

    for lost, sessions, seen in (((0,), 1, 4), ((2, 0), 2, 4), ((9, 9, 3), 3, 1)):
        losing = Losing(*lost)
        monkeypatch.setattr(profiler_events, "record", losing)
        proof = forward_pass.prove(net, run, picked, BACKEND, marking)
        times = [call.seen.kernel_ms for call in proof.calls if call.seen]
        assert losing.sessions == sessions
        assert times == [None] * (4 - seen) + [0.007] * seen
        assert proof.others_ms == (0.007,)
        assert "forward" not in net.act.__dict__


@pytest.mark.parametrize("algorithm", [*OPERATORS, "auto"])
def test_every_algorithm_leaves_its_own_traces(algorithm: str) -> None:
    """A real pass: no call contradicts, and no convolution operator runs inside one."""
    proof = forward_proof(algorithm)
    assert [call.layer for call in proof.calls] == ["a", "b", "b", "c"]
    assert [call.problem for call in proof.calls] == [None] * 4
    assert proof.source is Source.PROFILER
    assert proof.outside == ()
    for choice, call in zip(forward(algorithm).picked, proof.calls, strict=True):
        assert call.seen is not None
        ran_framework = any("conv" in name for name in call.seen.operators)
        assert ran_framework == (choice.used == "auto") == ("conv" in cell(call))
    if algorithm in TEXTS:
        assert cell(proof.calls[0]) == TEXTS[algorithm]


@needs_onednn
def test_direct_is_proven_by_the_library_itself() -> None:
    """The operator alone would not say what oneDNN did; for groups it may take an im2col GEMM."""
    proof = forward_proof("direct")
    for call in proof.calls:
        (report,) = call.primitives
        assert report.algorithm == "convolution_direct"
        assert call.layer == "b" or report.is_direct
        told = None if report.is_direct else f"oneDNN ran {report.implementation}"
        assert call.problem == told
        assert "profiler: aten::mkldnn_convolution; onednn: " in cell(call)
        assert cell(call).endswith(" convolution_direct")


@needs_onednn
def test_direct_by_way_of_im2col_is_a_mismatch() -> None:
    """What a CPU without vector units gets."""
    picked, events, _ = forward("direct")
    lines = [
        Primitive("jit:other_sizes", "convolution_direct", (9, 9, 9, 9, 9, 9, 9)),
        Primitive("gemm:jit", "convolution_direct", (2, 4, 8, 20, 20, 3, 3)),
    ]
    (call,) = forward_pass.proof_of_forward(events, picked[:1], BACKEND, lines).calls
    assert call.problem == "oneDNN ran gemm:jit"
    assert cell(call).endswith("; onednn: gemm:jit convolution_direct")


@torch.inference_mode()
def test_a_convolution_that_no_layer_makes_is_reported(net: ForwardNet) -> None:
    """A functional call cannot be swapped; its share must not go unnoticed."""
    net.functional = True
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    proof = forward_pass.prove(net, lambda: net(X), picked, BACKEND)
    assert "aten::convolution" in proof.outside
    assert [call.problem for call in proof.calls] == [None] * 4


@torch.inference_mode()
def test_a_call_that_the_profiler_did_not_see_has_no_evidence(net: ForwardNet) -> None:
    """Not seen is not wrong."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    proof = forward_pass.prove(net, lambda: net.a(X), picked, BACKEND)
    assert [call.seen is None for call in proof.calls] == [False, True, True, True]
    assert all(call.problem is None for call in proof.calls)


@torch.inference_mode()
def test_calls_are_told_apart_by_layer_and_order(net: ForwardNet) -> None:
    """Calls that the choices leave out do not shift the others."""
    algorithm = {"c": "implicit_gemm", "default": "gemm"}
    picked = swap.assign(net, CALLS, algorithm, "fallback", BACKEND)
    proof = forward_pass.prove(net, lambda: net(X), [picked[1], picked[3]], BACKEND)
    assert [call.layer for call in proof.calls] == ["b", "c"]
    assert "aten::unfold" in cell(proof.calls[0])
    assert cell(proof.calls[1]) == "profiler: aten::bmm[2,8,8,400]"


@torch.inference_mode()
def test_nothing_is_left_of_the_pass_even_if_it_fails(net: ForwardNet) -> None:
    """A timed pass afterwards runs clean."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    with pytest.raises(RuntimeError):
        forward_pass.prove(net, lambda: net(X[:, :2]), picked, BACKEND)
    assert not any("forward" in vars(module) for module in net.modules())


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("algorithm", OPERATORS)
@torch.inference_mode()
def test_an_output_of_one_pixel_contradicts_nobody(algorithm: str, batch: int) -> None:
    """Torch runs some products of one column as other products; what was asked for is one."""
    shape = ConvShape(batch, 32, 2, 2, 48, 3, 3, 2, 2, 1, 1)
    net = nn.Sequential(nn.Conv2d(32, 48, 3, stride=2, padding=1, bias=False)).eval()
    swap.swap(net)
    picked = swap.assign(net, [("0", shape)], algorithm, "fallback", BACKEND)
    x = torch.randn(shape.input_size)
    net(x)  # the first pass makes tables
    (call,) = forward_pass.prove(net, lambda: net(x), picked, BACKEND).calls
    assert call.problem is None
