"""oneDNN's own reports of what it ran: its verbose lines, read while a pass runs.

A line names the implementation and the algorithm of each primitive, which no profiler sees::

    onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,...,
    alg:convolution_direct,mb1_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1,0.518

The library prints to the process's standard output, so that is redirected for the pass; lines that
are not the library's are passed on afterwards.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from hpcsweep.conv.backend import Direction
from hpcsweep.conv.shape import ConvShape

# its descriptor, to which the library prints past Python
_STDOUT: Final = 1
_MARK: Final = b"onednn_verbose"
_CONVOLUTION: Final = re.compile(
    r",exec,\w+,convolution,(?P<implementation>[^,]+),(?P<kind>\w+),.*"
    r",alg:(?P<algorithm>\w+),(?:g\d+)?mb(?P<n>\d+)_ic(?P<in_c>\d+)oc(?P<out_c>\d+)"
    r"_ih(?P<in_h>\d+)oh\d+kh(?P<kernel_h>\d+)sh\d+dh\d+ph\d+"
    r"_iw(?P<in_w>\d+)ow\d+kw(?P<kernel_w>\d+)"
)
# dnnl_prop_kind_t as verbose lines have it
_WAYS: Final = {
    "forward_training": Direction.FORWARD,
    "forward_inference": Direction.FORWARD,
    "backward_data": Direction.DATA,
    "backward_weights": Direction.FILTER,
}
# groups of the pattern and fields of `ConvShape`, enough to tell the calls of a network apart
_SIZES: Final = ("n", "in_c", "out_c", "in_h", "in_w", "kernel_h", "kernel_w")


@dataclass(frozen=True)
class Primitive:
    """One convolution that oneDNN ran; `sizes` are n, in_c, out_c, in_h, in_w, kernel_h, kernel_w.

    `implementation` is like ``jit:avx512_core``, ``brgconv:avx512_core`` or ``gemm:jit``.
    """

    implementation: str
    algorithm: str
    sizes: tuple[int, ...]
    way: Direction = Direction.FORWARD

    @property
    def is_direct(self) -> bool:
        """Whether this is the direct algorithm; an im2col GEMM may be reported under its name."""
        return self.algorithm == "convolution_direct" and "gemm:" not in self.implementation

    def does(self, shape: ConvShape) -> bool:
        """Say whether this may be the convolution of that shape."""
        return self.sizes == tuple(getattr(shape, name) for name in _SIZES)


def parse(lines: Iterable[str]) -> list[Primitive]:
    """Return the convolutions among verbose lines, in order of execution."""
    primitives = []
    for line in lines:
        words = _CONVOLUTION.search(line)
        if words is None or words["kind"] not in _WAYS:
            continue
        sizes = tuple(int(words[name]) for name in _SIZES)
        way = _WAYS[words["kind"]]
        primitives.append(Primitive(words["implementation"], words["algorithm"], sizes, way))
    return primitives


def assign(
    primitives: Iterable[Primitive], way: Direction, shapes: Sequence[ConvShape | None]
) -> list[Primitive | None]:
    """Give each call that reached oneDNN the next report that has its direction and sizes.

    `shapes` are those of the forward pass's calls, in order; None for a call that did not reach it.
    In a forward pass, reports that are passed over belong to convolutions that no layer made. A
    backward pass begins with the last call, and may run branches in another order.
    """
    waiting = [primitive for primitive in primitives if primitive.way is way]
    assigned: list[Primitive | None] = [None] * len(shapes)
    calls = list(enumerate(shapes))
    if way is not Direction.FORWARD:
        calls.reverse()
    for call, shape in calls:
        for place, primitive in enumerate(waiting):
            if shape and primitive.does(shape):
                assigned[call] = primitive
                passed_over = [] if way is Direction.FORWARD else waiting[:place]
                waiting = passed_over + waiting[place + 1 :]
                break
    return assigned


@contextmanager
def listening() -> Iterator[list[str]]:
    """Yield a list that holds oneDNN's lines once the block has ended."""
    lines: list[str] = []
    if not torch.backends.mkldnn.is_available():
        yield lines
        return
    mkldnn = torch.backends.mkldnn
    with tempfile.TemporaryFile() as heard:
        _flush()
        saved = os.dup(_STDOUT)
        os.dup2(heard.fileno(), _STDOUT)
        try:
            with mkldnn.verbose(mkldnn.VERBOSE_ON):
                yield lines
        finally:
            _flush()
            os.dup2(saved, _STDOUT)
            os.close(saved)
            heard.seek(0)
            others = b""
            for line in heard:
                if _MARK in line:
                    lines.append(line.decode(errors="replace"))
                else:
                    others += line
            os.write(_STDOUT, others)


def _flush() -> None:
    """Let Python and C write what they hold back for standard output."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
