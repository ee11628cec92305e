"""Names of operators in a profiler's trace, as shell patterns: what tells algorithms apart."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

Patterns = tuple[str, ...]

CONVOLUTIONS: Final[Patterns] = ("*conv*",)
PRODUCTS: Final[Patterns] = ("aten::mm", "aten::bmm", "aten::addmm*", "aten::baddbmm*")
TRANSFORMS: Final[Patterns] = ("*fft*",)
# back-ends open a range named function:algorithm around each call of a vendor's library
LIBRARY_CALLS: Final[Patterns] = ("cudnnConvolution*:*", "miopenConvolution*:*")
ONEDNN: Final = "aten::mkldnn_convolution"
FRAMEWORK_BACKWARD: Final = "aten::convolution_backward"


@lru_cache(maxsize=10_000)
def matches(name: str, patterns: Patterns) -> bool:
    """Say whether a name fits one of the patterns; passes repeat the same few names."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
