"""Which back-end serves a device."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from hpcsweep.conv import backend
from hpcsweep.conv.reference.reference_backend import Reference


@pytest.mark.parametrize("device_type", ["cpu", "mps", "xpu", "privateuseone"])
def test_a_device_without_its_own_back_end_gets_the_reference(device_type: str) -> None:
    """Any sweep runs end to end anywhere, and the rows say so."""
    chosen = backend.choose(device_type)
    assert chosen == Reference(device_type)
    assert chosen.name == "reference"


@pytest.mark.parametrize(("hip", "platform"), [(None, "cuda"), ("6.4", "hip")])
def test_a_back_end_slots_in_as_one_file_and_one_line(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, platform: str
) -> None:
    """AMD GPUs are `cuda` to torch, but a platform of their own."""
    module = types.ModuleType("hpcsweep.conv.other")
    module.create = lambda device_type: ("other", device_type)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hpcsweep.conv.other", module)
    monkeypatch.setattr(backend, "BACKENDS", {platform: "other"})
    monkeypatch.setattr(torch.version, "hip", hip)
    assert backend.choose("cuda") == ("other", "cuda")
    assert backend.choose("cpu") == Reference("cpu")
