"""Which back-end serves a device, and names of operators, held against what torch calls them."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from hpcsweep.conv import backend
from hpcsweep.conv.backend import (
    CONVOLUTIONS,
    FRAMEWORK_BACKWARD,
    LIBRARY_CALLS,
    ONEDNN,
    PRODUCTS,
    LibraryUnusable,
    UnknownAlgorithm,
    matches,
)
from hpcsweep.conv.reference import Reference
from hpcsweep.errors import HpcsweepError, UsageError


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


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("aten::conv2d", CONVOLUTIONS),
        ("aten::cudnn_convolution", CONVOLUTIONS),
        (ONEDNN, CONVOLUTIONS),
        (FRAMEWORK_BACKWARD, CONVOLUTIONS),
        ("aten::baddbmm_", PRODUCTS),
        ("cudnnConvolutionForward:gemm", LIBRARY_CALLS),
        ("miopenConvolutionBackwardDataImmediate:direct", LIBRARY_CALLS),
    ],
)
def test_names_fit_their_patterns_and_no_others(name: str, patterns: tuple[str, ...]) -> None:
    """A call of a library is no operator that convolves."""
    every = (CONVOLUTIONS, PRODUCTS, LIBRARY_CALLS)
    assert [one for one in every if matches(name, one)] == [patterns]


@pytest.mark.parametrize("name", [ONEDNN, FRAMEWORK_BACKWARD])
def test_operators_that_are_named_exist(name: str) -> None:
    """A torch that renames one is noticed."""
    assert hasattr(torch.ops.aten, name.removeprefix("aten::"))


def test_an_unknown_name_is_told_with_the_nearest_and_with_all() -> None:
    """Two lines, and the exit code of bad input."""
    error = UnknownAlgorithm("winogard")
    first, second = str(error).splitlines()
    assert "'winogard'" in first
    assert "did you mean 'winograd'" in first
    assert "implicit_precomp_gemm" in second
    assert isinstance(error, UsageError)


def test_a_library_that_cannot_be_used_is_an_error_of_ours() -> None:
    """The user sees its text unchanged."""
    assert issubclass(LibraryUnusable, HpcsweepError)
