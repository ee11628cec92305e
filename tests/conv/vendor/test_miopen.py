"""The MIOpen back-end, on a stand-in that computes on host memory: no AMD GPU was reached yet.

Call order, argument order, layouts, solutions, gradients and errors are exercised by the very
calls that a GPU would get; values and structures are those of the named public header.
"""

from __future__ import annotations

import ctypes
import os

import pytest
import torch
from torch import nn

from hpcsweep import environment
from hpcsweep.catalog import ALGORITHMS
from hpcsweep.conv import backend as backends
from hpcsweep.conv import swap
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.vendor import miopen, miopen_library
from hpcsweep.conv.vendor.backend import VendorBackend
from hpcsweep.conv.vendor.miopen import Miopen
from hpcsweep.conv.vendor.miopen_library import Library, MiopenError, Solution
from nativelib import compile_library

EXPLICIT = [name for name in ALGORITHMS if name not in {"auto", "autotune"}]


class StandIn:
    """The compiled stand-in, with its log."""

    def __init__(self, path):
        """Load it through the very class that loads the real one."""
        self.library = Library(str(path))
        self._c = self.library._library
        self._c.fake_calls.restype = ctypes.c_char_p
        self._c.fake_fail.argtypes = (ctypes.c_char_p, ctypes.c_int)
        self._c.fake_version.argtypes = (ctypes.c_size_t,)

    @property
    def calls(self):
        """Return the functions that were called."""
        return self._c.fake_calls().decode().splitlines()

    def fail(self, name, status):
        """Let a function fail from now on."""
        self._c.fake_fail(name.encode(), status)

    def __getattr__(self, name):
        """Reach the others."""
        return getattr(self._c, f"fake_{name}")


@pytest.fixture(scope="module")
def _compiled(tmp_path_factory):
    return StandIn(compile_library("miopen", tmp_path_factory.mktemp("miopen")))


@pytest.fixture
def fake(_compiled):
    """Return the stand-in, without memories."""
    _compiled.forget()
    return _compiled


@pytest.fixture
def backend(fake):
    """Return a back-end that runs on the stand-in and host memory."""
    return VendorBackend(Miopen(lambda: fake.library), "cpu")


def test_a_solution_has_the_headers_size():
    """Float, size_t, uint64 and an enum, as a C compiler lays them out on 64 bits."""
    assert ctypes.sizeof(Solution) == 32
    assert [getattr(Solution, name).offset for name, _ in Solution._fields_] == [0, 8, 16, 24]


@pytest.mark.parametrize("geometry", [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (3, 5), "stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"kernel_size": 3, "groups": 2, "padding": 1, "bias": False},
    {"kernel_size": 1, "stride": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("nhwc", [False, True], ids=["nchw", "nhwc"])
def test_forward_and_gradients_are_those_of_the_framework(backend, geometry, nhwc):
    """Every algorithm that the library has, through a swapped layer and autograd."""
    torch.manual_seed(0)
    plain, x = nn.Conv2d(4, 6, **geometry), torch.randn(2, 4, 11, 9)
    if nhwc:
        plain = plain.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    wanted = _with_gradients(plain, x)
    for algorithm in EXPLICIT:
        model = nn.Sequential(plain)
        swap.swap(model)
        calls = [("0", ConvShape.of(plain, x))]
        (picked,) = swap.assign(model, calls, algorithm, swap.FALLBACK, backend)
        for ours, theirs in zip(_with_gradients(model, x), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert picked.backend == ("framework" if picked.fallback else "miopen")
        swap.restore(model)


def _with_gradients(model, x):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = model(x)
    out.square().sum().backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return [out.detach(), x.grad, *grads]


def test_what_has_no_solution_says_what_there_is(backend):
    """An algorithm that MIOpen never has, and one that this shape has not."""
    shape = ConvShape(1, 4, 16, 16, 4, 3, 3, 2, 2)
    assert backend.unsupported("winograd_nonfused", shape).startswith(
        "MIOpen has no winograd_nonfused (it has gemm, direct, fft, winograd, implicit_gemm)"
    )
    assert backend.unsupported("winograd", shape) == (
        "no winograd solution for this shape (there are: direct, gemm, implicit_gemm)"
    )
    assert backend.unsupported("gemm", shape) is None
    assert backend.workspace_bytes("gemm", shape) == 4 * 4 * 9 * 7 * 7


def test_a_solution_is_compiled_before_it_runs_and_only_once(backend, fake):
    """Immediate mode wants that; the second call is free of it."""
    layer, x = nn.Conv2d(2, 2, 3), torch.randn(1, 2, 8, 8)
    shape = ConvShape.of(layer, x)
    with torch.no_grad():
        for _ in range(3):
            backend.forward("direct", x, layer.weight, layer.bias, shape)
    wanted = "miopenConvolutionForwardCompileSolution", "miopenConvolutionForwardImmediate"
    seen = [name for name in fake.calls if name in wanted]
    assert seen == [wanted[0], *[wanted[1]] * 4]  # the first of these is the try


def test_errors_name_function_status_and_words(backend, fake):
    """A typed error, for the row."""
    fake.fail("miopenConvolutionForwardGetSolution", 7)
    with pytest.raises(MiopenError, match="ForwardGetSolution: miopenStatusUnknownError"):
        backend.unsupported("gemm", ConvShape(1, 4, 18, 16, 4, 3, 3))


def test_without_a_gpu_and_with_another_version_it_says_so(fake):
    """Both before anything is timed."""
    fake.fail("miopenCreateWithStream", 5)
    alone = VendorBackend(Miopen(lambda: fake.library), "cpu")
    with pytest.raises(LibraryUnusable, match="no AMD GPU here"):
        alone.unsupported("gemm", ConvShape(1, 4, 19, 16, 4, 3, 3))
    fake.version(7)
    with pytest.raises(LibraryUnusable, match=r"MIOpen 7\.3\.0, not 2 or 3"):
        Library(fake.library.path)


def test_a_library_that_is_missing_is_told(tmp_path, monkeypatch):
    """With the loader's own words."""
    monkeypatch.setenv(environment.MIOPEN, str(tmp_path / "libMIOpen.so.1"))
    miopen_library.load.cache_clear()
    with pytest.raises(LibraryUnusable, match="MIOpen cannot be loaded"):
        miopen_library.load()
    miopen_library.load.cache_clear()


def test_each_process_has_databases_of_its_own_unless_told(monkeypatch, tmp_path):
    """A run with little workspace poisons a shared one."""
    for name in miopen._PRIVATE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(miopen._PRIVATE[0], str(tmp_path))
    miopen.keep_to_oneself()
    assert os.environ[miopen._PRIVATE[0]] == str(tmp_path)
    assert os.path.isdir(os.environ[miopen._PRIVATE[1]])  # noqa: PTH112


def test_a_rocm_build_gets_this_back_end(monkeypatch):
    """Torch calls its devices cuda, too."""
    monkeypatch.setattr(torch.version, "hip", "6.2")
    for name in miopen._PRIVATE:
        monkeypatch.setenv(name, "somewhere")
    assert backends.choose("cuda").name == "miopen"


def test_descriptors_are_given_back(fake):
    """Nothing lives on when a back-end is gone, but the handle of the thread."""
    import gc

    from hpcsweep.conv.vendor import operator

    before = fake.live()
    one = VendorBackend(Miopen(lambda: fake.library), "cpu")
    one.unsupported("gemm", ConvShape(1, 4, 16, 16, 4, 3, 3))
    assert fake.live() > before + 4
    del one
    operator.ENGINES.clear()
    gc.collect()
    assert fake.live() <= before + 1
