"""MIOpen as a driver, on a stand-in that computes on host memory: no AMD GPU was reached yet.

Call order, argument order, layouts, solutions, gradients and errors are exercised by the very
calls that a GPU would get; values and structures are those of the named public header.
"""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import nn

from hpcsweep import environment
from hpcsweep.conv import backend as backends
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import miopen
from hpcsweep.conv.libraries.miopen import Miopen, MiopenLibrary, Solution
from hpcsweep.conv.shape import ConvShape
from standins import check_every_algorithm


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("geometry", [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (3, 5), "stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"kernel_size": 3, "groups": 2, "padding": 1, "bias": False},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "padding": "same", "dilation": 2},
    {"kernel_size": 4, "padding": "same"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("nhwc", [False, True], ids=["nchw", "nhwc"])
def test_forward_and_gradients_are_those_of_the_framework(miopen_backend, geometry, nhwc):
    """Every algorithm that the library has, through a swapped layer and autograd."""
    check_every_algorithm(miopen_backend, geometry, nhwc=nhwc)


def test_what_has_no_solution_says_what_there_is(miopen_backend):
    """An algorithm that MIOpen never has, and one that this shape has not."""
    shape = ConvShape(1, 4, 16, 16, 4, 3, 3, 2, 2)
    assert miopen_backend.unsupported("winograd_nonfused", shape).startswith(
        "MIOpen has no winograd_nonfused (it has gemm, direct, fft, winograd, implicit_gemm)"
    )
    assert miopen_backend.unsupported("winograd", shape) == (
        "MIOpen offers no winograd for this shape (but: direct, gemm, implicit_gemm); "
        "that may be its guess"
    )
    assert miopen_backend.unsupported("gemm", shape) is None
    assert miopen_backend.about("gemm", shape)[0] == 4 * 4 * 9 * 7 * 7


def test_a_solution_is_compiled_before_it_runs_and_only_once(miopen_backend, fake_miopen):
    """Immediate mode wants that; the second call is free of it."""
    layer, x = nn.Conv2d(2, 2, 3), torch.randn(1, 2, 8, 8)
    shape = ConvShape.of(layer, x)
    with torch.no_grad():
        for _ in range(3):
            miopen_backend.forward("direct", x, layer.weight, layer.bias, shape)
    wanted = "miopenConvolutionForwardCompileSolution", "miopenConvolutionForwardImmediate"
    seen = [name for name in fake_miopen.calls if name in wanted]
    assert seen == [wanted[0], *[wanted[1]] * 4]  # the first of these is the try


def test_errors_name_function_status_and_words(miopen_backend, fake_miopen):
    """They are the answer for one layer, for its row."""
    fake_miopen.fail("miopenConvolutionForwardGetSolution", 7)
    reason = miopen_backend.unsupported("gemm", ConvShape(1, 4, 18, 16, 4, 3, 3))
    asked = "miopenConvolutionForwardGetSolution"
    assert reason == f"failed when planned: {asked}: miopenStatusUnknownError"


def test_a_solution_that_does_not_compile_gives_way_to_the_next(miopen_backend, fake_miopen):
    """The first of an algorithm is not all that there is of it."""
    fake_miopen.uncompilable(104)
    shape = ConvShape(1, 4, 18, 16, 4, 3, 3)
    assert miopen_backend.unsupported("implicit_gemm", shape) is None
    compiled = "miopenConvolutionForwardCompileSolution"
    assert fake_miopen.calls.count(compiled) == 2
    fake_miopen.fail(compiled, 5)
    reason = miopen_backend.unsupported("direct", shape)
    assert reason.startswith(f"failed when planned: {compiled}: miopenStatusInternalError")
    fake_miopen.fail("nothing", 0)
    assert miopen_backend.unsupported("gemm", shape) is None


@pytest.mark.parametrize("switch", ["of cuDNN", "of torch"])
def test_where_determinism_is_asked_for_it_is_refused_with_the_reason(
    miopen_backend, monkeypatch, switch
):
    """Solutions may add in any order, and MIOpen does not say which do."""
    shape = ConvShape(1, 4, 18, 16, 4, 3, 3)
    assert miopen_backend.unsupported("gemm", shape) is None
    if switch == "of cuDNN":
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    else:
        torch.use_deterministic_algorithms(mode=True)
    try:
        reason = miopen_backend.unsupported("gemm", shape)
        gradients = miopen_backend.gradients("gemm", shape)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert reason == "MIOpen does not say which of its solutions are deterministic"
    for gradient in gradients:
        assert gradient.algorithm is None
        assert gradient.reason.endswith(reason)
    monkeypatch.undo()
    assert miopen_backend.unsupported("gemm", shape) is None


def test_without_a_gpu_it_says_so(fake_miopen):
    """Before anything is timed."""
    fake_miopen.fail("miopenCreateWithStream", 5)
    alone = Miopen(lambda: fake_miopen.library, "cpu")
    with pytest.raises(LibraryUnusable, match="no AMD GPU here"):
        alone.unsupported("gemm", ConvShape(1, 4, 19, 16, 4, 3, 3))


def test_a_rocm_build_gets_this_back_end(monkeypatch):
    """Torch calls its devices cuda, too."""
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert backends.choose("cuda").name == "miopen"


def test_a_solution_is_an_algorithm_by_its_number_and_the_first_one_is_the_heuristic(
    miopen_backend,
):
    """Each that MIOpen offers is a plan; its family is in the notes, gradients take the guess's."""
    layer = nn.Conv2d(4, 8, 3, padding=1)
    shape = ConvShape.of(layer, torch.zeros(1, 4, 9, 9))
    names = miopen_backend.plans(shape, 20)
    assert names
    assert all(name.startswith("sol") for name in names)
    assert miopen_backend.plans(shape, 1) == names[:1]
    x = torch.randn(1, 4, 9, 9)
    for name in names:
        assert miopen_backend.unsupported(name, shape) is None
        _, plan, family = miopen_backend.about(name, shape)
        assert plan == name
        assert miopen_backend.unsupported(family, shape) is None
        found = miopen_backend.forward(name, x, layer.weight, layer.bias, shape)
        torch.testing.assert_close(found, layer(x))
        assert {g.algorithm for g in miopen_backend.gradients(name, shape)} <= {"heuristic", None}
    assert miopen_backend.about("heuristic", shape)[1] == names[0]
    assert "MIOpen offers no sol9999" in miopen_backend.unsupported("sol9999", shape)


def test_a_solution_has_the_headers_size():
    """Float, size_t, uint64 and an enum, as a C compiler lays them out on 64 bits."""
    assert ctypes.sizeof(Solution) == 32
    assert [getattr(Solution, name).offset for name, _ in Solution._fields_] == [0, 8, 16, 24]


def test_another_major_version_is_refused(fake_miopen):
    """Before anything is timed."""
    fake_miopen.version(7)
    with pytest.raises(LibraryUnusable, match=r"MIOpen 7\.3\.0, not 2 or 3"):
        MiopenLibrary(fake_miopen.library.path)


def test_a_library_that_is_missing_is_told(tmp_path, monkeypatch):
    """With the loader's own words."""
    monkeypatch.setenv(environment.MIOPEN, str(tmp_path / "libMIOpen.so.1"))
    miopen.load.cache_clear()
    with pytest.raises(LibraryUnusable, match="MIOpen cannot be loaded"):
        miopen.load()
    miopen.load.cache_clear()
