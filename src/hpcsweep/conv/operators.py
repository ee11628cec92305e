"""Names of operators in a profiler's trace, as shell patterns: what tells algorithms apart."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

Patterns = tuple[str, ...]

CONVOLUTIONS: Final[Patterns] = ("*conv*",)
PRODUCTS: Final[Patterns] = ("aten::mm", "aten::bmm", "aten::addmm*", "aten::baddbmm*")
TRANSFORMS: Final[Patterns] = ("*fft*",)
# back-ends open a range named function:algorithm around each call of a vendor's library
LIBRARY_CALLS: Final[Patterns] = ("cudnnConvolution*:*", "miopenConvolution*:*")
ONEDNN: Final = "aten::mkldnn_convolution"
FRAMEWORK_BACKWARD: Final = "aten::convolution_backward"


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Say whether a name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
