"""The direct algorithm: where oneDNN cannot run, it says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hpcsweep.conv.reference.backend import Reference
from hpcsweep.conv.shape import ConvShape
from references import BACKEND, PLAIN

if TYPE_CHECKING:
    import pytest


def test_direct_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong device, wrong type, wrong CPU, wrong build."""
    double = ConvShape(1, 3, 9, 9, 4, 3, 3, dtype="float64")
    assert BACKEND.unsupported("direct", double) == "oneDNN has no float64"
    assert Reference("cuda").unsupported("direct", PLAIN) == "oneDNN does not run on cuda"
    for dtype, probe in (("bfloat16", "bf16"), ("float16", "fp16")):
        shape = ConvShape(1, 3, 9, 9, 4, 3, 3, dtype=dtype)
        name = f"_is_mkldnn_{probe}_supported"
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: False)
        assert BACKEND.unsupported("direct", shape) == f"this CPU has no {dtype} for oneDNN"
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: True)
        assert BACKEND.unsupported("direct", shape) is None
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert BACKEND.unsupported("direct", PLAIN) == "this torch build has no oneDNN"
