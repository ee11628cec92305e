"""What gradients run: decided from the back-end, proven by a profiled step, lies found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hpcsweep.conv import swap
from hpcsweep.conv.backend import choose
from hpcsweep.conv.proof import backward_pass
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import NONE, source
from hpcsweep.conv.reference.backend import FAMILIES
from hpcsweep.conv.shape import ConvShape

BACKEND = choose("cpu")
X = torch.randn(2, 4, 20, 20, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Three convolutions in four calls, an addition; the first has no gradient of its input."""

    def __init__(self) -> None:
        """Draw the filters."""
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.b = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.c = nn.Conv2d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call `b` twice."""
        x = self.a(x)
        x = x + self.b(torch.relu_(self.b(x)))
        return self.c(x)


CALLS = [
    ("a", ConvShape(2, 4, 20, 20, 6, 3, 3, pad_h=1, pad_w=1)),
    ("b", ConvShape(2, 6, 20, 20, 6, 3, 3, pad_h=1, pad_w=1, groups=2, bias=True)),
    ("b", ConvShape(2, 6, 20, 20, 6, 3, 3, pad_h=1, pad_w=1, groups=2, bias=True)),
    ("c", ConvShape(2, 6, 20, 20, 6, 1, 1, bias=True)),
]


@pytest.fixture(autouse=True)
def _two_threads():
    """With one thread torch takes some small convolutions from oneDNN; other tests ask for one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def net():
    """Return a swapped network."""
    net = Net()
    swap.swap(net)
    return net


def proven(net, algorithm, backend=BACKEND):
    """Assign, warm up, prove."""
    picked = swap.assign(net, CALLS, algorithm, "fallback", backend)
    net(X).sum().backward()
    return picked, backward_pass.prove(net, lambda: net(X).sum().backward(), picked, backend)


TEXTS = {
    "auto": "profiler: aten::convolution_backward",
    "gemm": "profiler: aten::bmm[4,27,3,400] aten::bmm[4,3,400,27] aten::unfold_backward",
    "implicit_gemm": "profiler: aten::bmm[4,3,400,3] aten::bmm[4,3,3,400]",
    "implicit_precomp_gemm": "profiler: aten::bmm[2,27,3,800] aten::bmm[2,3,800,27] aten::index",
    "winograd": "profiler: aten::mm",
    "fft": "profiler: aten::_fft_r2c[24,24] aten::bmm",
}


@pytest.mark.parametrize("algorithm", [*FAMILIES, "auto"])
def test_the_gradients_of_every_algorithm_leave_its_own_traces(net, algorithm):
    """A real step: nothing contradicts, and only what fell back runs the framework's backward."""
    picked, found = proven(net, algorithm)
    assert [e.layer for e in found] == ["a", "b", "b", "c"]
    assert [e.problem for e in found] == [None] * 4
    for choice, of_call in zip(picked, found, strict=True):
        assert ("convolution_backward" in of_call.text) == (choice.used == "auto")
    if algorithm in TEXTS:
        assert found[1].text.startswith(TEXTS[algorithm])
    assert source(found) == "profiler"


@pytest.mark.parametrize("claimed", FAMILIES)
@pytest.mark.parametrize("ran", FAMILIES)
def test_a_false_claim_about_gradients_is_caught(net, claimed, ran):
    """Whatever ran backward, it does not pass for another family's.

    The members of two pairs differ in the size of blocks and tiles alone.
    """
    picked, _ = proven(net, ran)
    claims = [replace(choice, used=claimed) for choice in picked[1:2]]
    (found,) = backward_pass.prove(net, lambda: net(X).sum().backward(), claims, BACKEND)
    families = [name.removesuffix("_tiling").removesuffix("_nonfused") for name in (claimed, ran)]
    assert found.mismatch == (families[0] != families[1]), found


@pytest.mark.parametrize("claimed", FAMILIES)
def test_the_framework_s_backward_passes_for_no_named_family(net, claimed):
    """In the first layer, too, which has a gradient of filters alone."""
    picked, _ = proven(net, "auto")
    claims = [replace(choice, used=claimed) for choice in picked[:2]]
    found = backward_pass.prove(net, lambda: net(X).sum().backward(), claims, BACKEND)
    assert found[0].problem == "filter: ran aten::convolution_backward"
    assert found[1].problem == "data: ran aten::convolution_backward"


def test_the_backward_pass_of_direct_is_proven_by_the_library_itself(net):
    """Its own lines, of both gradients; for groups it may take an im2col GEMM, which is told."""
    if BACKEND.unsupported("direct", CALLS[0][1]):
        pytest.skip("this torch build has no oneDNN")
    _, found = proven(net, "direct")
    for number, call in enumerate(found):
        assert call.mismatch == ("gemm:" in call.text)
        assert call.text.startswith("profiler: aten::convolution_backward; onednn ")
        assert ("onednn data: " in call.text) == (number > 0)
        assert "onednn filter: " in call.text
        assert "convolution_direct" in call.text


def test_a_direct_gradient_by_way_of_im2col_is_a_mismatch(net):
    """What a CPU without vector units gets; lines of forward passes do not count."""
    picked = swap.assign(net, CALLS, "direct", "fallback", BACKEND)
    if picked[0].fallback:
        pytest.skip("this torch build has no oneDNN")
    with backward_pass.ranges(net), profile(activities=[ProfilerActivity.CPU]) as seen:
        net(X).sum().backward()
    sizes = (2, 4, 6, 20, 20, 3, 3)
    lines = [
        Primitive("jit:avx2", "convolution_direct", sizes, "forward_training"),
        Primitive("gemm:jit", "convolution_direct", sizes, "backward_weights"),
    ]
    found = backward_pass.read(seen.events(), picked, BACKEND, lines)
    assert found[0].problem == "filter: oneDNN ran gemm:jit"
    assert found[0].text.endswith("; onednn filter: gemm:jit convolution_direct")
    assert not found[1].mismatch


def test_gradients_that_the_profiler_did_not_see_have_no_evidence(net):
    """Not seen is not wrong: here a layer is left out, and a pass without backward."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    found = backward_pass.prove(net, lambda: net.a(X).sum().backward(), picked, BACKEND)
    assert [e.text == NONE for e in found] == [False, True, True, True]
    none = backward_pass.prove(net, lambda: net(X), picked, BACKEND)
    assert [e.text for e in none] == [NONE] * 4
    assert not any(e.mismatch for e in [*found, *none])
    assert source(none) == NONE


def test_hooks_on_gradients_are_gone_after_the_pass_even_if_it_fails(net):
    """A timed pass afterwards runs clean."""
    picked = swap.assign(net, CALLS, "gemm", "fallback", BACKEND)
    with pytest.raises(RuntimeError):
        backward_pass.prove(net, lambda: net(X[:, :2]), picked, BACKEND)
    assert not any(module._forward_hooks for module in net.modules())


def test_what_gradients_run_is_decided_with_the_back_end(net):
    """The reference back-end's are made of the same operators; the framework's are its own."""
    picked = swap.assign(net, CALLS, "winograd", "fallback", BACKEND)
    found = backward_pass.choices(picked, BACKEND)
    assert [c.used for c in found] == ["winograd", "winograd", "winograd", "auto"]
    assert [c.backend for c in found] == [*["reference"] * 3, "framework"]
    assert [c.fallback for c in found] == [False, False, False, True]
    assert found[3].reason == "kernel 1x1: needs 3x3"
