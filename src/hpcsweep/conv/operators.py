"""Names of operators in a profiler's trace, as shell patterns: what tells algorithms apart.

An operator's name has a namespace; a range's need not, and a network's author chose it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

Patterns = tuple[str, ...]

CONVOLUTIONS: Final[Patterns] = ("*::*conv*",)
PRODUCTS: Final[Patterns] = ("aten::mm", "aten::bmm", "aten::addmm*", "aten::baddbmm*")
# back-ends open a range named function:algorithm around each call of a vendor's library
LIBRARY_CALLS: Final[Patterns] = ("cudnnConvolution*:*", "cudnnGraph*:*", "miopenConvolution*:*")
ONEDNN: Final = "aten::mkldnn_convolution"
FRAMEWORK_BACKWARD: Final = "aten::convolution_backward"
TRANSFORMS: Final[Patterns] = ("aten::_fft_*",)
# operators that tell one algorithm from another; those of a library's call are its own
TELLING: Final[Patterns] = (
    *PRODUCTS,
    *TRANSFORMS,
    *CONVOLUTIONS,
    "aten::unfold*",
    "aten::im2col",
    "aten::index_select",
    "aten::index_add_",
)
# run products inside that the profiler does not show
FUSED: Final[Patterns] = (
    *("*::*attention*", "*::*transformer*", "*::*rnn*", "*::*lstm*", "*::*gru*"),
    *("*::bilinear", "*::_trilinear"),  # those that interpolate have no products
)
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


@dataclass(frozen=True)
class Operation:
    """An operator or a library's call that tells one algorithm from another.

    `sizes` are [batch, m, k, n] of a matrix product and the last two dimensions of a transform.
    """

    name: str
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{','.join(map(str, self.sizes))}]" if self.sizes else self.name


def product(batch: int, m: int, k: int, n: int, *, adds: bool = False) -> Operation:
    """Return a matrix product by its sizes: of whatever operator, and of either order."""
    return Operation("added product" if adds else "product", (batch, min(m, n), k, max(m, n)))


@lru_cache(maxsize=10_000)
def matches(name: str, patterns: Patterns) -> bool:
    """Say whether a name fits one of the patterns; passes repeat the same few names."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def helps(kernel: str) -> bool:
    """Say whether a kernel only helps others to convolve."""
    return bool(_HELPERS.search(kernel)) and not _CONVOLVES.search(kernel)
