"""Says by their names which convolution algorithm a call's kernels belong to.

One table has the names: those of cuDNN 7 to 9 as they stand in its libraries and in published
profiler traces (pytorch/kineto, HolisticTraceAnalysis), those of MIOpen as in its sources and in
AMD-AGI/TraceLens. A kernel that no line names is unknown, and nothing is concluded from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from hpcsweep.conv.operators import helps


class Grade(Enum):
    """What kernels say of an algorithm that is claimed."""

    RECOGNISED = "recognised"  # they belong to this algorithm alone
    COMPATIBLE = "compatible"  # nothing contradicts it
    CONTRADICTED = "contradicted"  # they belong to another one


@dataclass(frozen=True)
class Kind:
    """Kernels of one name: the algorithms that they may belong to.

    Those that prepare and the products of matrices (`decides` is False) tell the algorithm only
    where nothing else does, or nothing that has products inside.
    """

    pattern: str
    library: str
    algorithms: tuple[str, ...] = ()
    decides: bool = True
    products: bool = False

    def names(self, kernel: str) -> bool:
        """Say whether a kernel has this name."""
        return re.search(self.pattern, kernel) is not None


_GEMM, _IMPLICIT, _PRECOMP = "gemm", "implicit_gemm", "implicit_precomp_gemm"
_ANY_GEMM: Final = (_GEMM, _IMPLICIT, _PRECOMP)
_FFTS: Final = ("fft", "fft_tiling")  # both transform 32x32 pixels by the same kernels
_CUDNN, _MIOPEN, _ANY = "cudnn", "miopen", "any"
# what cuDNN's gradients are called, whose names say less
_CLAIMS: Final = {"algo_0": {_IMPLICIT}, "algo_1": {_IMPLICIT, _PRECOMP}}
# The first line that fits counts, so that Winograd's products and names of GEMMs come in order.
KINDS: Final = (
    # what prepares, and is the algorithm's own
    Kind(r"generateWinogradTiles", _CUDNN, ("winograd",), decides=False),
    Kind(r"im2col", _CUDNN, (_GEMM,), decides=False),
    Kind(r"Im\d?d?2[cC]ol|Im3d2Col", _MIOPEN, (_GEMM,), decides=False),
    Kind(r"[cC]ol2[iI]m", _ANY, (_GEMM,), decides=False),
    Kind(r"compute\w*OffsetsKernel", _CUDNN, (_PRECOMP,), decides=False),
    # AMD
    Kind(r"[mM]iopenGcnAsmWinograd|miopenSp3Asm|Conv_?Winograd|gcnAsmWinograd", _MIOPEN,
        ("winograd",), products=True),
    Kind(r"MIOpenConvFFT|MIOpenFFT", _MIOPEN, ("fft",), products=True),
    Kind(r"igemm_(fwd|bwd|wrw|v4r1|fprop)|[gG]ridwise_?[cC]onv|implicit_gemm_\w*(v\dr\d|xdlops)"
        r"|[iI]mplicit[gG]emm_?[vV]\d", _MIOPEN, (_IMPLICIT,)),
    Kind(r"(2ck|ck::).*(conv|bwd_weight|bwd_data)|(2ck|ck::).*[gG]ridwise[gG]emm.*(Conv|conv)",
        _MIOPEN, (_IMPLICIT,)),
    Kind(r"naive_conv|miopenGcnAsmConv|gcnAsmConv|MIOpenConvUni|MIOpenCv(Fwd|Bwd|BwdWrW)|MIOpenConv"
        r"|gcnAsmBwdWrW|conv\d+x\d+(u|_wheel)", _MIOPEN, ("direct",)),
    # NVIDIA
    Kind(r"winograd_nonfused|winograd(Forward|Wgrad|Dgrad)(Data|Filter|Output|Delta)", _CUDNN,
        ("winograd_nonfused",), products=True),
    Kind(r"[wW]inograd", _CUDNN, ("winograd",)),
    Kind(r"fft[12]d_[rc]2[rc]|DSE::\w*fft|fft[12]d_\w*_\d+x\d+|cudnn\w*::\w*fft", _CUDNN, _FFTS,
        products=True),
    Kind(r"explicit_convolve", _CUDNN, (_GEMM,), products=True),
    Kind(r"precomputed_convolve", _CUDNN, (_PRECOMP,)),
    Kind(r"implicit_convolve", _CUDNN, (_IMPLICIT,)),
    Kind(r"(dgrad|wgrad)\w*_(alg|engine)|dgrad2d|wgrad2d_(alg|c\d|k\d)", _CUDNN, (_IMPLICIT,)),
    Kind(r"conv2d_grouped_direct|conv2d_c\d+_k\d+|(dgrad|wgrad)2d_grouped_direct|depthwise|dw_conv",
        _CUDNN, (_IMPLICIT, _PRECOMP, "direct")),
    Kind(r"s?[hi]?\d*_?s?cudnn_\d+x\d+|scudnn|[hi]\d+cudnn|s\d+cudnn|fp16_s?cudnn", _CUDNN,
        (_PRECOMP,)),
    Kind(r"(xmma|cutlass|cudnn|gcgen|sm\d+)\w*.*(fprop|dgrad|wgrad|implicit_?gemm)", _CUDNN,
        (_PRECOMP,)),
    # products of matrices, which several algorithms have inside
    Kind(r"g?c(f32)?gemm", _CUDNN, _FFTS, decides=False, products=True),
    Kind(r"Cijk_|rocblas_|hipblas", _MIOPEN, (_GEMM,), decides=False, products=True),
    Kind(r"gemm|gemv|nvjet|cublas", _ANY, _ANY_GEMM, decides=False, products=True),
)  # fmt: skip


@dataclass(frozen=True)
class Recognition:
    """The algorithms that a call's kernels may belong to, and those kernels that nobody knows.

    `by` is the kernel that tells; empty where none does.
    """

    algorithms: frozenset[str] = frozenset()
    by: str = ""
    unknown: tuple[str, ...] = ()

    def grade(self, claimed: str) -> Grade:
        """Return what this says of an algorithm that is claimed."""
        names = _CLAIMS.get(claimed, {claimed})
        if self.algorithms and not self.algorithms & names:
            return Grade.CONTRADICTED
        alone = bool(self.algorithms) and self.algorithms <= names and not self.unknown
        return Grade.RECOGNISED if alone else Grade.COMPATIBLE

    def __str__(self) -> str:
        return " or ".join(sorted(self.algorithms)) or "unknown"


@lru_cache(maxsize=10_000)
def kind_of(kernel: str) -> Kind | None:
    """Return the line of the table that names a kernel."""
    return next((kind for kind in KINDS if kind.names(kernel)), None)


def recognise(kernels: Iterable[str]) -> Recognition:
    """Return the algorithm of a call from its kernels' full names, those of one direction.

    Kernels that tell have to agree; where they do not, as in calls of two gradients, each of their
    algorithms may be meant. An im2col and a product are explicit GEMM.
    """
    named = [(kernel, kind_of(kernel)) for kernel in kernels]
    unknown = tuple(kernel for kernel, kind in named if kind is None and not helps(kernel))
    known = [(kernel, kind) for kernel, kind in named if kind is not None]
    deciding = [(kernel, kind) for kernel, kind in known if kind.decides]
    if deciding and not any(kind.products for _, kind in deciding):
        deciding += [(kernel, kind) for kernel, kind in known if not kind.decides and kind.products]
    if not (telling := deciding or known):
        return Recognition(unknown=unknown)
    every = [frozenset(kind.algorithms) for _, kind in telling]
    shared = frozenset.intersection(*every) or frozenset.union(*every)
    if unknown and not deciding:
        return Recognition(unknown=unknown)
    kernel = next(name for name, kind in telling if shared.intersection(kind.algorithms))
    return Recognition(shared, kernel, unknown)
