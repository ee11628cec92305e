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
from zlib import crc32

# Kernels that help a convolution, and prove none: torch's own (but for those that convolve),
# copies, layouts, types, sums, addition of a bias, and what prepares a product.
_HELPERS: Final = re.compile(
    r"at::native::|^Mem[cs]\w* |elementwise|reduce_kernel|splitKreduce|epilogue::|spin_kernel"
    r"|[nN](chw|hwc)(To[nN](chw|hwc)|\w*(Padding|Folded))|transpose_|tensorTransform"
    r"|scalePackedTensor|[aA]dd\w*Tensor|[aA]dd_tensor|Bias|OpTensor|Op[1-5]dTensor"
    r"|compute\w*OffsetsKernel|im2col|^Im2d2Col|[cC]ol2[iI]m|generateWinogradTilesKernel"
    r"|softmax|cudnn::bn_|^nccl|convertTensor"
    # some tools write all names in lower case
    r"|(?i:flip_filter|tensor_reorder|set_array|rocclr|SubTensorOp|_reduction|batch_?norm"
    r"|reduce_[wd]grad|bias_diff|(set|transform)Tensor|al_transpose|n(chw|hwc)\w*(Padding|Folded))"
)
_CONVOLVES: Final = re.compile(r"at::native::.*(conv_|convolution)")


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
    algorithms: tuple[str, ...] = ()
    decides: bool = True
    products: bool = False


UNKNOWN: Final = "unknown"
# cuDNN's own names have up to 157 characters, tile sizes last
_LONGEST_KERNEL: Final = 160
# hexadecimal digits of a CRC-32
_MARK: Final = 8
_GEMM = "gemm"
_IMPLICIT = "implicit_gemm"
_PRECOMP = "implicit_precomp_gemm"
_ANY_GEMM: Final = (_GEMM, _IMPLICIT, _PRECOMP)
# both transform 32x32 pixels by the same kernels
_FFTS: Final = ("fft", "fft_tiling")
# what cuDNN's gradients are called, whose names say less
_CLAIMS: Final = {"algo_0": {_IMPLICIT}, "algo_1": {_IMPLICIT, _PRECOMP}}
_IM2COL: Final = r"im\d?d?2col|im3d2col|col2im"
# products that are attention's, and sums beside a convolution: their names fit lines below
_NO_CONVOLUTION: Final = r"sdpa|flash|fmha|attention|reduce_[wd]grad|bias_diff"
# The first line that fits counts, so that Winograd's products and names of GEMMs come in order.
KINDS: Final = (
    # what prepares, and is the algorithm's own
    Kind(r"generateWinogradTiles", ("winograd",), decides=False),
    Kind(_IM2COL, (_GEMM,), decides=False),
    Kind(r"compute\w*OffsetsKernel|kern_precompute_indices", (_PRECOMP,), decides=False),
    # AMD
    Kind(r"[mM]iopenGcnAsmWinograd|miopenSp3Asm|Conv_?Winograd|gcnAsmWinograd",
        ("winograd",), products=True),
    Kind(r"MIOpenConvFFT|MIOpenFFT", ("fft",), products=True),
    Kind(r"igemm_(fwd|bwd|wrw|v4r1|fprop)|[gG]ridwise_?[cC]onv|implicit_gemm_\w*(v\dr\d|xdlops)"
        r"|[iI]mplicit[gG]emm_?[vV]\d|mlir\w*(igemm|conv)", (_IMPLICIT,)),
    Kind(r"(2ck|ck::).*(conv|bwd_weight|bwd_data)|(2ck|ck::).*[gG]ridwise[gG]emm.*(Conv|conv)",
        (_IMPLICIT,)),
    Kind(r"naive_conv|miopenGcnAsmConv|gcnAsmConv|MIOpen(Group)?Conv|MIOpenCv(Fwd|Bwd|D)|MIOpenCDFGen"
        r"|gcnAsmBwdWrW|conv\d+x\d+(u|_wheel|c\d)", ("direct",)),
    # NVIDIA
    Kind(r"winograd_nonfused|winograd(Forward|Wgrad|Dgrad)(Data|Filter|Output|Delta)",
        ("winograd_nonfused",), products=True),
    Kind(r"[wW]inograd", ("winograd",)),
    Kind(r"fft[12]d_[rc]2[rc]|DSE::\w*fft|fft[12]d_\w*_\d+x\d+|cudnn\w*::\w*fft", _FFTS,
        products=True),
    Kind(r"explicit_convolve", (_GEMM,), products=True),
    Kind(r"precomputed_convolve", (_PRECOMP,)),
    Kind(r"implicit_convolve", (_IMPLICIT,)),
    Kind(r"conv2d_grouped_direct|conv2d_c\d+_k\d+|(dgrad|wgrad)2d_grouped_direct|depthwise|dw_conv",
        (_IMPLICIT, _PRECOMP, "direct")),
    Kind(r"(dgrad|wgrad)\w*_(alg|engine)|dgrad2d|wgrad2d_(alg|c\d|k\d)", (_IMPLICIT,)),
    Kind(r"s?[hi]?\d*_?s?cudnn_\d+x\d+|scudnn|[hi]\d+cudnn|s\d+cudnn|fp16_s?cudnn",
        (_PRECOMP,)),
    Kind(r"(xmma|cutlass|cudnn|gcgen|sm\d+)\w*.*(fprop|dgrad|wgrad|(?i:implicit_?gemm))",
        (_PRECOMP,)),
    # products of matrices, which several algorithms have inside
    Kind(r"[cC](f32)?[gG]emm", _FFTS, decides=False, products=True),
    Kind(r"Cijk_|rocblas_|hipblas", (_GEMM,), decides=False, products=True),
    Kind(r"gemm|gemv|nvjet|cublas", _ANY_GEMM, decides=False, products=True),
)  # fmt: skip


@dataclass(frozen=True)
class Recognition:
    """What the kernels of a call, of one direction, say of its algorithm.

    `telling` are those that say something, each with the algorithms that it may belong to;
    `unknown` those that the table does not name.
    """

    telling: tuple[tuple[str, frozenset[str]], ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def algorithms(self) -> frozenset[str]:
        """Those that all kernels may belong to; where they disagree, each of theirs."""
        every = [names for _, names in self.telling] or [frozenset[str]()]
        return frozenset.intersection(*every) or frozenset.union(*every)

    @property
    def name(self) -> str:
        """The one algorithm that all kernels belong to, else `unknown`."""
        alone = len(self.algorithms) == 1 and not self.unknown
        return next(iter(self.algorithms)) if alone else UNKNOWN

    def against(self, claimed: str) -> str:
        """Return the first kernel that does not belong to an algorithm that is claimed, or ""."""
        claims = _CLAIMS.get(claimed, {claimed})
        for kernel, algorithms in self.telling:
            if not algorithms & claims:
                return kernel
        return ""

    def grade(self, claimed: str) -> Grade:
        """Return what this says of an algorithm that is claimed."""
        if self.against(claimed):
            return Grade.CONTRADICTED
        alone = bool(self.telling) and self.algorithms <= _CLAIMS.get(claimed, {claimed})
        return Grade.RECOGNISED if alone and not self.unknown else Grade.COMPATIBLE

    def __str__(self) -> str:
        return " or ".join(sorted(self.algorithms)) or UNKNOWN


def helps(kernel: str) -> bool:
    """Say whether a kernel only helps others to convolve."""
    return bool(_HELPERS.search(kernel)) and not _CONVOLVES.search(kernel)


# passes repeat the same few names; there is room for those of many networks
@lru_cache(maxsize=10_000)
def kind_of(kernel: str) -> Kind | None:
    """Return the line of the table that names a kernel; some tools write all in lower case."""
    if re.search(_NO_CONVOLUTION, kernel, re.IGNORECASE):
        return None
    for kind in KINDS:
        if re.search(kind.pattern, kernel, re.IGNORECASE):
            return kind
    return None


def recognise(kernels: Iterable[str]) -> Recognition:
    """Return the algorithm of a call from its kernels' full names, those of one direction.

    What prepares a convolution proves none: it tells only beside a product of matrices, so that an
    im2col and a product are explicit GEMM; an im2col tells beside all that convolves. A product
    tells where nothing else has one inside.
    """
    unknown = []
    known = []
    deciding = []
    products = []
    columns = []  # what makes them of an image
    has_products_inside = False
    for kernel in kernels:
        kind = kind_of(kernel)
        if kind is None:
            if not helps(kernel):
                unknown.append(kernel)
            continue
        named = (kernel, frozenset(kind.algorithms))
        known.append(named)
        if kind.decides:
            deciding.append(named)
            has_products_inside = has_products_inside or kind.products
        elif kind.products:
            products.append(named)
        if kind.pattern == _IM2COL:
            columns.append(named)
    telling = []
    if deciding:
        telling = deciding + ([] if has_products_inside else products) + columns
    elif products and not unknown:
        telling = known
    return Recognition(tuple(dict.fromkeys(telling)), tuple(unknown))


def kernel_word(name: str) -> str:
    """Return a kernel's name as one word: no return type, no arguments, no blanks.

    What makes two kernels different, such as a tile's size, often stands at the end of the name,
    so one that is too long ends with a checksum of all of it.
    """
    text = name.removeprefix("void ").strip()
    if text.endswith(")"):
        text = text[: _opening(text)] or text
    text = "".join(text.split())
    if len(text) <= _LONGEST_KERNEL:
        return text
    return f"{text[: _LONGEST_KERNEL - _MARK - 1]}~{crc32(text.encode()):0{_MARK}x}"


def _opening(text: str) -> int:
    """Return where the parenthesis opens that the last character closes."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if not depth:
            return place
    return 0
