"""The look at the replays of graphs."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from hpcsweep.conv.proof import profiler_events, replay
from hpcsweep.conv.proof.evidence import Evidence, Proof, Seen

WINOGRAD, GEMM = "winograd_fwd_4x4", "implicit_gemm_128x64"


def proof(*kernels):
    """Return the evidence of calls that ran one kernel each, eagerly, and a bias addition."""
    return Proof(tuple(
        Evidence(f"conv{number}", Seen(kernels=["vectorized_elementwise_kernel", name]))
        for number, name in enumerate(kernels)
    ))  # fmt: skip


def problems(found):
    """Return what contradicts each call."""
    return [call.problem for call in found.calls]


def test_a_replay_with_all_kernels_proves_what_the_eager_pass_proved():
    """Other kernels may be there; those that only help need not."""
    ran = Counter({WINOGRAD: 2, GEMM: 1, "relu": 3})
    assert problems(replay.held_against(proof(WINOGRAD, GEMM, WINOGRAD), ran)) == [None] * 3


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
    found = problems(replay.held_against(proof(WINOGRAD, GEMM, WINOGRAD), Counter(ran)))
    assert [text is not None for text in found] == wrong
    assert all(text.startswith("the replay lacks ") for text in found if text)


def test_nothing_recorded_is_nothing_seen():
    """A session that lost everything contradicts nobody; an earlier contradiction stays."""
    assert problems(replay.held_against(proof(WINOGRAD), Counter())) == [None]
    before = Proof((Evidence("conv0", Seen(kernels=[WINOGRAD]), problem="ran something else"),))
    assert problems(replay.held_against(before, Counter({GEMM: 1}))) == ["ran something else"]


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
        eager = replay.replayed_kernels(lambda: conv(x), x.device)
        replayed = replay.replayed_kernels(graph.replay, x.device)
    assert eager
    assert set(eager) <= set(replayed)
    needed = Proof((Evidence("conv", Seen(kernels=list(eager))),))
    assert problems(replay.held_against(needed, replayed)) == [None]


@pytest.mark.filterwarnings("ignore:.*CUDA")
def test_one_session_without_kernels_is_enough_for_the_process(monkeypatch):
    """Without CUPTI no later session has any, so neither passes nor replays are profiled again."""
    monkeypatch.setattr(profiler_events, "_blind", [])
    monkeypatch.setattr(profiler_events, "_is_on_gpu", lambda _model: True)
    monkeypatch.setattr(profiler_events, "sacrifice", lambda _few: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert profiler_events.passes(None) == 3
    ran = []
    for _ in range(2):
        assert not replay.replayed_kernels(lambda: ran.append(1), torch.device("cpu"))
    assert len(ran) == 1
    assert profiler_events.passes(None) == 1
