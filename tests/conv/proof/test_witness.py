"""The look at a pass without the profiler, at what the timed passes gave, and at replays."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from hpcsweep.conv.operators import Operation, product
from hpcsweep.conv.proof import profiler_events, witness
from hpcsweep.conv.proof.evidence import Evidence, Proof, Seen

A, B = torch.ones(3, 4), torch.ones(4, 5)
ONE = torch.tensor([1.0, float("nan")])
WINOGRAD, GEMM = "winograd_fwd_4x4", "implicit_gemm_128x64"


def test_a_look_sees_products_transforms_and_others(capfd: pytest.CaptureFixture[str]) -> None:
    """Inside of composites, too; nothing is printed, and nobody could tell."""
    enabled = []

    def run() -> None:
        enabled.append(torch.autograd._profiler_enabled())
        torch.fft.rfft2(torch.einsum("ij,jk->ik", A, B).exp())

    found, _ = witness.look(run)
    assert found == {
        product(1, 3, 4, 5): 1,
        Operation("aten::exp"): 1,
        Operation("aten::_fft_r2c", (1, 3, 5)): 1,
    }
    assert enabled == [False]
    assert capfd.readouterr() == ("", "")


def test_what_runs_only_under_the_profiler_or_only_without_it_is_told() -> None:
    """A pass that depends on its values, or is not the same twice, is not judged."""
    mm, exp = Counter({product(1, 3, 4, 5): 1}), Counter({Operation("aten::exp"): 1})
    turns = iter([torch.sin, torch.cos])

    def differently() -> torch.Tensor:
        return next(turns)(A)

    out = A.exp()
    assert witness.contradiction(mm, mm, None, differently) is None
    text = "ran product[1,3,4,5] only while the profiler looked"
    assert witness.contradiction(exp, mm + exp, out, A.exp) == text
    text = "ran aten::exp not while the profiler looked"
    assert witness.contradiction(mm, Counter(), out, A.exp) == text
    assert witness.contradiction(mm, exp, out, A.exp) is None
    assert witness.contradiction(mm, exp, out, differently) is None


@pytest.mark.parametrize(
    ("timed", "again", "same"),
    [
        ([ONE, ONE.clone()], [], True),
        ([[ONE, ONE]], [ONE, ONE], False),
        ([ONE.half()], [ONE, ONE], False),
        ([torch.tensor([1.0, 1.0 + 1e-6])], [ONE, ONE], False),
    ],
)
def test_outputs_are_compared_bit_by_bit(
    timed: list[object],
    again: list[object],
    same: bool,  # noqa: FBT001
) -> None:
    """Not a number is what it is; number and type of tensors count."""
    turns = iter(again)
    assert (witness.differ(timed, ONE, lambda: next(turns)) is None) == same


def test_what_is_not_the_same_twice_may_differ_as_much_as_it_does() -> None:
    """Two timed outputs say so, or two more passes; a liar's noise beyond that is none."""
    base, near, far = torch.tensor([1.0]), torch.tensor([1.0 + 1e-6]), torch.tensor([1.1])

    def differ(*timed: torch.Tensor, again: tuple[torch.Tensor, torch.Tensor]) -> bool:
        turns = iter(again)
        return witness.differ(timed, base, lambda: next(turns)) is not None

    assert not differ(near, again=(base, near))
    assert not differ(near, base, again=(base, near))
    assert differ(near, near, again=(base, near))
    assert differ(near, base, again=(base, base))
    assert differ(far, again=(base, near))


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
    assert problems(witness.held_against(proof(WINOGRAD, GEMM, WINOGRAD), ran)) == [None] * 3


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
    found = problems(witness.held_against(proof(WINOGRAD, GEMM, WINOGRAD), Counter(ran)))
    assert [text is not None for text in found] == wrong
    assert all(text.startswith("the replay lacks ") for text in found if text)


def test_nothing_recorded_is_nothing_seen():
    """A session that lost everything contradicts nobody; an earlier contradiction stays."""
    assert problems(witness.held_against(proof(WINOGRAD), Counter())) == [None]
    before = Proof((Evidence("conv0", Seen(kernels=[WINOGRAD]), problem="ran something else"),))
    assert problems(witness.held_against(before, Counter({GEMM: 1}))) == ["ran something else"]


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
        eager = witness.replayed_kernels(lambda: conv(x), x.device)
        replayed = witness.replayed_kernels(graph.replay, x.device)
    assert eager
    assert set(eager) <= set(replayed)
    needed = Proof((Evidence("conv", Seen(kernels=list(eager))),))
    assert problems(witness.held_against(needed, replayed)) == [None]


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
        assert not witness.replayed_kernels(lambda: ran.append(1), torch.device("cpu"))
    assert len(ran) == 1
    assert profiler_events.passes(None) == 1
