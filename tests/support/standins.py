"""Stand-ins for vendors' libraries: C code that computes on host memory, keeps a log, and fails.

Plans, argument order, scaling, layouts, workspaces, gradients and errors are exercised by the very
calls that a GPU would get.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from hpcsweep.catalog import ALGORITHMS
from hpcsweep.conv import swap
from hpcsweep.conv.shape import ConvShape

SOURCES = Path(__file__).parent / "native"
EXPLICIT = [name for name, known in ALGORITHMS.items() if known.cudnn is not None]
FALLBACK = swap.FALLBACK


def compile_library(name, folder, *options):
    """Compile native/NAME.c to a shared library; skip where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = folder / f"lib{Path(name).name}_standin.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", *options]
    subprocess.run([*command, "-o", target, SOURCES / f"{name}.c", "-lm"], check=True)
    return target


class StandIn:
    """A compiled stand-in, loaded through the very class that loads the real library."""

    def __init__(self, library_class, path):
        """Load it."""
        self.library = library_class(str(path))
        self._c = ctypes.CDLL(str(path))
        self._c.fake_calls.restype = ctypes.c_char_p
        self._c.fake_fail.argtypes = (ctypes.c_char_p, ctypes.c_int)
        self._c.fake_version.argtypes = (ctypes.c_size_t,)

    @property
    def calls(self):
        """Return the functions that were called."""
        return self._c.fake_calls().decode().splitlines()

    @property
    def ran(self):
        """Return direction (0 forward, 1 data, 2 filter) and algorithm of what was computed."""
        self._c.fake_ran.restype = ctypes.c_char_p
        return [tuple(map(int, line.split())) for line in self._c.fake_ran().decode().splitlines()]

    def fail(self, name, status):
        """Let a function fail from now on."""
        self._c.fake_fail(name.encode(), status)

    def __getattr__(self, name):
        """Reach the others."""
        return getattr(self._c, f"fake_{name}")


def with_gradients(model, x):
    """Return output, gradient of the input, and gradients of the parameters."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = model(x)
    model.zero_grad()
    # made on the host: torch's own kernels do nothing on the pretend GPU
    out.backward(torch.ones_like(out, device="cpu").to(out.device))
    return [out.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]


def check_every_algorithm(backend, geometry, *, nhwc, dtype=torch.float32):
    """Hold every algorithm that the library takes against the framework, both ways."""
    torch.manual_seed(0)
    plain, x = nn.Conv2d(4, 6, **geometry).to(dtype), torch.randn(2, 4, 11, 9, dtype=dtype)
    if nhwc:
        plain = plain.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    wanted = with_gradients(plain, x)
    for algorithm in EXPLICIT:
        model = nn.Sequential(plain)
        swap.swap(model)
        calls = [("0", ConvShape.of(plain, x))]
        (picked,) = swap.assign(model, calls, algorithm, FALLBACK, backend)
        for ours, theirs in zip(with_gradients(model, x), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert picked.backend == ("framework" if picked.fallback else backend.name)
        swap.restore(model)
