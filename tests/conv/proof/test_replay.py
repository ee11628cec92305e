"""The look at the replays of graphs."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from hpcsweep.conv.proof import profiler_events, replay
from hpcsweep.conv.proof.evidence import Evidence, Observation, Proof, Source

WINOGRAD, GEMM = "winograd_fwd_4x4", "implicit_gemm_128x64"


def proof(*kernels):
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


def test_a_replay_that_was_not_seen_proves_no_call():
    """It contradicts nobody, either; an earlier contradiction stays."""
    (call,) = replay.held_against(proof(WINOGRAD), Counter()).calls
    assert (call.problem, call.source) == (None, Source.NONE)
    before = Proof(
        (Evidence("conv0", Observation(kernels=[WINOGRAD]), problem="ran something else"),)
    )
    assert problems(replay.held_against(before, Counter())) == ["ran something else"]
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
    needed = Proof((Evidence("conv", Observation(kernels=list(eager))),))
    assert problems(replay.held_against(needed, replayed)) == [None]


REPLAYED = """\
import torch
from hpcsweep.conv.proof import profiler_events, replay
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
kernels = replay.replayed_kernels(run, few.device)
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
    assert replay.most_of_a_replay([*others, *ranges, *kernels]) == Counter({GEMM: 2})
    assert replay.most_of_a_replay(others) == Counter()


def event(name, start, device):
    """Return an event as the profiler has them; times are in microseconds."""
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start), device_type=device)
