"""oneDNN's verbose lines: heard, understood, and kept out of the program's own output."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import torch
from torch import nn

from hpcsweep.conv.proof import onednn
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.shape import ConvShape

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch build has no oneDNN"
)
NEW = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,jit_dw:avx512_core,forward_training,"
    "src:f32:a:blocked:aBcd16b::f0 wei:f32:a:blocked:Abcde16a::f0 bia:undef::undef::: "
    "dst:f32:a:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,"
    "g64mb1_ic64oc64_ih56oh54kh3sh1dh0ph0_iw57ow55kw3sw1dw0pw0,0.0668945\n"
)
OLD = NEW.replace(",v1,", ",").replace("jit_dw:avx512_core", "gemm:jit").replace("g64mb1", "mb2")
REORDER = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0 "
    "dst:f32::blocked:aBcd16b::f0,attr-scratchpad:user,,1x64x56x56,0.0190\n"
)
CREATION = NEW.replace(",exec,", ",create:cache_miss,")


def test_convolutions_that_ran_are_found_among_the_lines() -> None:
    """With and without the format's version; creations and other primitives are left out."""
    assert onednn.parse([CREATION, REORDER, NEW, "nonsense\n", OLD]) == [
        Primitive("jit_dw:avx512_core", "convolution_direct", (1, 64, 64, 56, 57, 3, 3)),
        Primitive("gemm:jit", "convolution_direct", (2, 64, 64, 56, 57, 3, 3)),
    ]


def test_an_im2col_gemm_under_the_name_of_direct_is_not_direct() -> None:
    """The library reports the algorithm that it was asked for; the implementation tells."""
    direct, gemm = onednn.parse([NEW, OLD])
    assert direct.is_direct
    assert not gemm.is_direct


@needs_onednn
def test_a_real_convolution_is_heard_with_its_sizes(capfd: pytest.CaptureFixture[str]) -> None:
    """What else is printed meanwhile, by Python or below it, goes where it should."""
    x, weight = torch.randn(2, 16, 12, 14), torch.randn(8, 16, 3, 5)
    with onednn.listening() as lines, torch.inference_mode():
        print("from Python")
        torch.ops.aten.mkldnn_convolution(x, weight, None, (1, 2), (1, 1), (1, 1), 1)
        os.write(1, b"from below\n")
    (primitive,) = onednn.parse(lines)
    assert primitive.algorithm == "convolution_direct"
    assert primitive.does(ConvShape(2, 16, 12, 14, 8, 3, 5, pad_h=1, pad_w=2))
    assert not primitive.does(ConvShape(2, 16, 12, 14, 8, 3, 3, pad_h=1, pad_w=2))
    assert sorted(capfd.readouterr().out.splitlines()) == ["from Python", "from below"]


@needs_onednn
def test_the_library_falls_silent_after_the_block_even_if_it_fails(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Standard output is restored, and what was heard until then is kept."""
    x, weight = torch.randn(1, 16, 12, 12), torch.randn(16, 16, 3, 3)

    def convolve() -> None:
        torch.ops.aten.mkldnn_convolution(x, weight, None, (1, 1), (1, 1), (1, 1), 1)

    with suppress(ZeroDivisionError), onednn.listening() as heard:
        convolve()
        raise ZeroDivisionError
    convolve()
    assert len(onednn.parse(heard)) == 1
    assert capfd.readouterr().out == ""


def test_without_onednn_nothing_is_heard_and_nothing_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some builds have no oneDNN."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with onednn.listening() as lines:
        nn.functional.conv2d(torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3))
    assert lines == []
