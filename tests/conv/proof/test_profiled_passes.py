"""Each algorithm is proven on real passes, forward and backward; each false claim is found out."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.autograd.profiler_util import Kernel

from hpcsweep.conv import swap
from hpcsweep.conv.backend import Direction
from hpcsweep.conv.choice import backward_choice, gradients_of
from hpcsweep.conv.proof import (
    Evidence,
    Observation,
    Proof,
    Source,
    cell,
    profiled_passes,
    profiler_events,
)
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiled_passes import held_against
from hpcsweep.conv.reference import FAMILIES
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure.shape_pass import LayerCall
from hpcsweep.measure.timing import layer_timer
from profiled import (
    BACKEND,
    CALLS,
    X,
    forward,
    forward_net,
    forward_proof,
    step,
    step_net,
    step_proof,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from profiled import ForwardNet, StepNet

RECORD = profiler_events.record
# those made of torch's operators that can do the calls of `b`, which are in groups
OPERATORS = [
    name for name in FAMILIES if name != "direct" and BACKEND.unsupported(name, CALLS[1][1]) is None
]
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
GRADIENT_TEXTS = {
    "auto": "profiler: aten::convolution_backward",
    "gemm": "profiler: aten::bmm[4,36,4,400] aten::bmm[4,4,400,36] aten::unfold_backward",
    "fft": "profiler: aten::_fft_r2c[24,24] aten::bmm",
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
        proof = profiled_passes.prove_forward(net, run, picked, BACKEND, marking)
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
    (call,) = profiled_passes.proof_of_forward(events, picked[:1], BACKEND, lines).calls
    assert call.problem == "oneDNN ran gemm:jit"
    assert cell(call).endswith("; onednn: gemm:jit convolution_direct")


@torch.inference_mode()
def test_a_convolution_that_no_layer_makes_is_reported(net: ForwardNet) -> None:
    """A functional call cannot be swapped; its share must not go unnoticed."""
    net.functional = True
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    proof = profiled_passes.prove_forward(net, lambda: net(X), picked, BACKEND)
    assert "aten::convolution" in proof.outside
    assert [call.problem for call in proof.calls] == [None] * 4


@torch.inference_mode()
def test_a_call_that_the_profiler_did_not_see_has_no_evidence(net: ForwardNet) -> None:
    """Not seen is not wrong."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    proof = profiled_passes.prove_forward(net, lambda: net.a(X), picked, BACKEND)
    assert [call.seen is None for call in proof.calls] == [False, True, True, True]
    assert all(call.problem is None for call in proof.calls)


@torch.inference_mode()
def test_calls_are_told_apart_by_layer_and_order(net: ForwardNet) -> None:
    """Calls that the choices leave out do not shift the others."""
    algorithm = {"c": "implicit_gemm", "default": "gemm"}
    picked = swap.assign(net, CALLS, algorithm, "fallback", BACKEND)
    proof = profiled_passes.prove_forward(net, lambda: net(X), [picked[1], picked[3]], BACKEND)
    assert [call.layer for call in proof.calls] == ["b", "c"]
    assert "aten::unfold" in cell(proof.calls[0])
    assert cell(proof.calls[1]) == "profiler: aten::bmm[2,8,8,400]"


@torch.inference_mode()
def test_nothing_is_left_of_the_pass_even_if_it_fails(net: ForwardNet) -> None:
    """A timed pass afterwards runs clean."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    with pytest.raises(RuntimeError):
        profiled_passes.prove_forward(net, lambda: net(X[:, :2]), picked, BACKEND)
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
    (call,) = profiled_passes.prove_forward(net, lambda: net(x), picked, BACKEND).calls
    assert call.problem is None


@pytest.fixture
def step_network() -> StepNet:
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
    if algorithm in GRADIENT_TEXTS:
        assert cell(found[1]).startswith(GRADIENT_TEXTS[algorithm])
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
    found = profiled_passes.proof_of_backward(events, picked, BACKEND, lines)
    assert found[0].problem == "filter: oneDNN ran gemm:jit"
    assert cell(found[0]).endswith("; onednn filter: gemm:jit convolution_direct")
    assert found[1].problem is None


def test_gradients_that_the_profiler_did_not_see_have_no_evidence(step_network: StepNet) -> None:
    """Not seen is not wrong: here a layer is left out, and a pass without backward."""
    picked = swap.assign(step_network, CALLS, "gemm", "fallback", BACKEND)
    found = profiled_passes.prove_backward(
        step_network, lambda: step_network.a(X).sum().backward(), picked, BACKEND
    )
    assert [call.seen is None for call in found] == [False, True, True, True]
    none = profiled_passes.prove_backward(step_network, lambda: step_network(X), picked, BACKEND)
    assert [call.seen for call in none] == [None] * 4
    assert not any(call.problem for call in [*found, *none])


def test_what_gradients_run_is_decided_with_the_back_end(step_network: StepNet) -> None:
    """The reference back-end's are made of the same operators; the framework's are its own."""
    picked = swap.assign(step_network, CALLS, "winograd", "fallback", BACKEND)
    found = [backward_choice(call, gradients_of(call, BACKEND)) for call in picked]
    assert [c.used for c in found] == [*["winograd"] * 3, "auto"]
    assert [c.backend for c in found] == [*["reference"] * 3, "framework"]
    assert [c.fallback for c in found] == [False, False, False, True]
    assert [c.as_requested for c in found] == [True, True, True, False]
    assert found[3].reason == "kernel 1x1: needs 3x3"


@pytest.mark.parametrize("claimed", OPERATORS)
@pytest.mark.parametrize("ran", [*OPERATORS, "direct", "auto"])
def test_a_false_claim_about_a_forward_pass_is_caught(ran: str, claimed: str) -> None:
    """Whatever ran, it passes for no other: not for its tiled or fused kin, nor the framework's."""
    first, second, *_ = forward_proof(ran, claimed).calls
    assert (first.problem is None) == (second.problem is None) == (ran == claimed)
    if ran == "auto":  # the silent fallback, which is what all this is for
        assert first.problem == "ran aten::conv2d"


@pytest.mark.parametrize("claimed", OPERATORS)
@pytest.mark.parametrize("ran", ["direct", "auto"])
def test_gradients_of_the_framework_pass_for_no_algorithm_s(ran: str, claimed: str) -> None:
    """In the first layer, too, which has a gradient of its filters alone."""
    first, second, *_ = step_proof(ran, claimed)
    assert first.problem == "filter: ran aten::convolution_backward"
    assert second.problem == "data: ran aten::convolution_backward"


def _drawn(draw: random.Random) -> tuple[nn.Conv2d, torch.Tensor, bool]:
    """Return a layer, an input for it, and whether under autocast."""
    groups, dtype = draw.choice([1, 1, 2, 4]), draw.choice([torch.float32] * 3 + [torch.float64])
    plain = draw.random() < 0.6
    layer = nn.Conv2d(
        groups * draw.choice([1, 3, 8]),
        groups * draw.choice([1, 5, 16]),
        draw.choice([1, 2, 3, 3, 3, 5, 5, 7, (1, 3)]),
        stride=1 if plain else draw.choice([1, 2, (2, 1)]),
        padding=draw.choice([0, 1, "same"]) if plain else draw.choice([0, 3]),
        dilation=1 if plain else draw.choice([1, 2]),
        groups=groups,
        bias=draw.random() < 0.5,
        padding_mode=draw.choice(["zeros", "zeros", "reflect", "replicate", "circular"]),
    )
    x = torch.randn(draw.choice([1, 2, 5]), layer.in_channels, draw.choice([15, 23, 40]), 17)
    if draw.random() < 0.3:
        x = x.contiguous(memory_format=torch.channels_last)
    if draw.random() < 0.2:
        dtype = torch.bfloat16
    autocast = dtype == torch.float32 and draw.random() < 0.3
    x = x.to(dtype).requires_grad_(draw.random() < 0.5)
    layer.weight.requires_grad_(not (x.requires_grad and draw.random() < 0.2))
    return layer.to(dtype), x[0] if draw.random() < 0.1 else x, autocast


@pytest.mark.parametrize(
    "seed",
    [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))],
)
@pytest.mark.parametrize("algorithm", OPERATORS)
def test_an_algorithm_is_proven_on_shapes_of_all_kinds(algorithm: str, seed: int) -> None:
    """Drawn shapes: strides, dilations, groups, padding of all kinds, types, layouts, autocast."""
    layer, x, autocast = _drawn(random.Random(f"{algorithm} {seed}"))
    model = nn.Sequential(layer, nn.ReLU())
    swap.swap(model)

    def run() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(x)

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        shape = ConvShape.of(layer, x)
    picked = swap.assign(model, [("0", shape)], algorithm, "fallback", BACKEND)
    run()  # the first pass makes tables
    with torch.inference_mode(seed % 2 == 0):
        forward = profiled_passes.prove_forward(model, run, picked, BACKEND).calls
    backward = profiled_passes.prove_backward(
        model, lambda: run().float().sum().backward(), picked, BACKEND
    )
    assert [call.problem for call in (*forward, *backward)] == [None] * 2, shape.unique_key


WINOGRAD, GEMM = "winograd_fwd_4x4", "implicit_gemm_128x64"


def ran_eagerly(*kernels):
    """Return the evidence of calls that ran one kernel each, eagerly, and a bias addition."""
    return Proof(tuple(
        Evidence(f"conv{number}", Observation(kernels=["vectorized_elementwise_kernel", name]))
        for number, name in enumerate(kernels)
    ))  # fmt: skip


def problems(found):
    """Return what contradicts each call."""
    return [call.problem for call in found.calls]


def test_a_replay_with_all_kernels_proves_what_the_eager_pass_proved():
    """Other kernels may be there; those that only help need not."""
    ran = Counter({WINOGRAD: 2, GEMM: 1, "relu": 3})
    assert problems(held_against(ran_eagerly(WINOGRAD, GEMM, WINOGRAD), ran)) == [None] * 3


@pytest.mark.parametrize(
    ("ran", "wrong"),
    [
        ({GEMM: 3}, [True, False, True]),
        ({WINOGRAD: 1, GEMM: 2}, [True, False, True]),
        ({WINOGRAD: 2}, [False, True, False]),
        ({"relu": 1}, [True, True, True]),
    ],
)
def test_a_kernel_that_the_replay_lacks_contradicts_its_calls(ran, wrong):
    """Also where only one of two calls ran it."""
    found = problems(held_against(ran_eagerly(WINOGRAD, GEMM, WINOGRAD), Counter(ran)))
    assert [text is not None for text in found] == wrong
    assert all(text.startswith("the replay lacks ") for text in found if text)


def test_a_replay_that_was_not_seen_proves_no_call():
    """It contradicts nobody, either; an earlier contradiction stays."""
    (call,) = held_against(ran_eagerly(WINOGRAD), Counter()).calls
    assert (call.problem, call.source) == (None, Source.NONE)
    before = Proof(
        (Evidence("conv0", Observation(kernels=[WINOGRAD]), problem="ran something else"),)
    )
    assert problems(held_against(before, Counter())) == ["ran something else"]
    assert problems(held_against(before, Counter({GEMM: 1}))) == ["ran something else"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
def test_a_graph_runs_the_kernels_of_its_eager_pass():
    """And not those of another network."""
    conv = torch.nn.Conv2d(64, 64, 3, padding=1, device="cuda")
    x = torch.randn(1, 64, 56, 56, device="cuda")
    with torch.inference_mode():
        conv(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            conv(x)
        eager = profiled_passes.replayed_kernels(lambda: conv(x), x.device)
        replayed = profiled_passes.replayed_kernels(graph.replay, x.device)
    assert eager
    assert set(eager) <= set(replayed)
    needed = Proof((Evidence("conv", Observation(kernels=list(eager))),))
    assert problems(held_against(needed, replayed)) == [None]


REPLAYED = """\
import torch
from hpcsweep.conv.proof import profiled_passes, profiler_events
few = torch.zeros(8, device="cuda")
ran = []
def run():
    ran.append(1)
    graph.replay()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(3):
        few.add_(1)
    few.mul_(2)
kernels = profiled_passes.replayed_kernels(run, few.device)
print(sorted(kernels.values()), len(ran), profiler_events.sees_kernels())
for _ in range(2):
    with profiler_events.session(few.device) as profiler:
        graph.replay()
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events() if event.device_type.name == "CUDA"]
    print(sum(not name.startswith("Mem") for name in names))  # but for the zeros
"""
LAUNCHED = profiler_events.SACRIFICE + 4  # for nothing, and those of the graph


@pytest.mark.parametrize(
    ("cupti", "told"),
    [
        # one session with three replays; what is launched for nothing before them does not count
        ("", f"[1, 3] 3 True\n{LAUNCHED}\n{LAUNCHED}\n"),
        # two empty sessions, and no third: one alone may have been lost
        ("silent", "[] 6 False\n0\n0\n"),
    ],
)
def test_kernels_are_counted_in_each_session_also_where_cupti_leaves_between(
    pretend_gpu, cupti, told
):
    """Where there are none, another one is tried; then the process is known to see none."""
    done = pretend_gpu.run(sys.executable, "-c", REPLAYED, PRETEND_CUPTI=cupti, TEARDOWN_CUPTI="1")
    assert done.stdout == told, done.stderr


def test_of_several_replays_the_one_with_most_of_a_kernel_counts():
    """The first one lost some; a kernel may begin a little before its range, by the GPU's clock."""
    cpu, cuda = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
    ranges = [event(f"hpcsweep.replay|{number}", at, cpu) for number, at in enumerate((2e4, 4e4))]
    kernels = [event(GEMM, at, cuda) for at in (20_100, 39_990, 40_100)]
    others = [event("add", 5_000, cuda), event("hpcsweep.replay|0", 20_000, cuda)]
    assert profiled_passes.most_of_a_replay([*others, *ranges, *kernels]) == Counter({GEMM: 2})
    assert profiled_passes.most_of_a_replay(others) == Counter()


def event(name, start, device):
    """Return an event as the profiler has them; times are in microseconds."""
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start), device_type=device)
