"""MIOpen's C interface through ctypes: the part that immediate mode needs.

Values, structures and signatures are those of ``include/miopen/miopen.h`` of ROCm/MIOpen at
2d1fd997a6fc (version 3.3, October 2024). The functions are part of the stable interface since
MIOpen 2.0; nothing below ``MIOPEN_BETA_API`` is used.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from hpcsweep import environment
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.vendor import ctypes_tools
from hpcsweep.conv.vendor.driver import LibraryError

NAME: Final = "libMIOpen.so.1"
_MAJORS: Final = (2, 3)

# miopenStatus_t
STATUSES: Final[Mapping[int, str]] = {
    0: "miopenStatusSuccess",
    1: "miopenStatusNotInitialized",
    2: "miopenStatusInvalidValue",
    3: "miopenStatusBadParm",
    4: "miopenStatusAllocFailed",
    5: "miopenStatusInternalError",
    6: "miopenStatusNotImplemented",
    7: "miopenStatusUnknownError",
    8: "miopenStatusUnsupportedOp",
    9: "miopenStatusGpuOperationsSkipped",
    10: "miopenStatusVersionMismatch",
}
# miopenDataType_t
DATA_TYPES: Final[Mapping[str, int]] = {"float16": 0, "float32": 1, "bfloat16": 5, "float64": 6}
# miopenConvAlgorithm_t: one numbering for all directions
ALGORITHMS: Final[Mapping[str, int]] = {
    "gemm": 0,
    "direct": 1,
    "fft": 2,
    "winograd": 3,
    "implicit_gemm": 5,
}
# miopenConvolutionMode_t: cross-correlation; groups are a count of their own
CROSS_CORRELATION: Final = 0


class Solution(ctypes.Structure):
    """miopenConvSolution_t: what MIOpen offers for a problem; `time` may be invented."""

    _fields_ = (
        ("time", ctypes.c_float),
        ("workspace_size", c_size_t),
        ("solution_id", c_uint64),
        ("algorithm", c_int),
    )


_PROBLEM: Final = (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)  # handle, descriptors
_SOLUTIONS: Final = (*_PROBLEM, c_size_t, POINTER(c_size_t), POINTER(Solution))
_ONE: Final = (*_PROBLEM, c_uint64)
_RUN: Final = (
    c_void_p,
    *(c_void_p, c_void_p, c_void_p, c_void_p),
    c_void_p,
    *(c_void_p, c_void_p),
    *(c_void_p, c_size_t, c_uint64),
)
DIRECTIONS: Final = ("Forward", "BackwardData", "BackwardWeights")
SIGNATURES: Final[Mapping[str, tuple[Any, ...]]] = {
    "miopenGetVersion": (POINTER(c_size_t), POINTER(c_size_t), POINTER(c_size_t)),
    "miopenCreateWithStream": (POINTER(c_void_p), c_void_p),
    "miopenSetStream": (c_void_p, c_void_p),
    "miopenDestroy": (c_void_p,),
    "miopenCreateTensorDescriptor": (POINTER(c_void_p),),
    "miopenSetTensorDescriptor": (c_void_p, c_int, c_int, POINTER(c_int), POINTER(c_int)),
    "miopenDestroyTensorDescriptor": (c_void_p,),
    "miopenCreateConvolutionDescriptor": (POINTER(c_void_p),),
    "miopenInitConvolutionDescriptor": (c_void_p, *(c_int,) * 7),
    "miopenSetConvolutionGroupCount": (c_void_p, c_int),
    "miopenDestroyConvolutionDescriptor": (c_void_p,),
    **{f"miopenConvolution{way}GetSolution": _SOLUTIONS for way in DIRECTIONS},
    **{f"miopenConvolution{way}CompileSolution": _ONE for way in DIRECTIONS},
    **{f"miopenConvolution{way}Immediate": _RUN for way in DIRECTIONS},
}


class MiopenError(LibraryError):
    """A call of MIOpen failed."""

    def __init__(self, function: str, status: int, words: str) -> None:
        self.function, self.status = function, status
        name = STATUSES.get(status, f"status {status}")
        super().__init__(f"{function}: {name}{': ' + words if words and words != name else ''}")


class MiopenLibrary(ctypes_tools.Library):
    """A loaded libMIOpen; a failed call raises `MiopenError`."""

    vendor = "MIOpen"
    signatures = SIGNATURES

    def _check_version(self) -> None:
        numbers = [c_size_t() for _ in range(3)]
        self._bind("miopenGetVersion")(*map(ctypes.byref, numbers))
        major, minor, patch = self.version = tuple(number.value for number in numbers)
        if major not in _MAJORS:
            known = " or ".join(map(str, _MAJORS))
            raise LibraryUnusable(f"{self.path}: MIOpen {major}.{minor}.{patch}, not {known}")

    def _error(self, function: str, status: int) -> MiopenError:
        words = self._library.miopenGetErrorString
        words.restype, words.argtypes = c_char_p, (c_int,)
        return MiopenError(function, status, (words(status) or b"").decode("ascii", "replace"))

    def _missing(self, name: str) -> str:
        return f"{self.path}: no {name}; is this MIOpen 2 or 3?"


@lru_cache(maxsize=1)
def load() -> MiopenLibrary:
    """Return the MIOpen that torch uses; `LibraryUnusable` where there is none."""
    return ctypes_tools.first_usable(_candidates(), MiopenLibrary)


def _candidates() -> Iterator[str]:
    """Return where the library may be: named by the user, in torch's wheel, on the path."""
    if named := os.environ.get(environment.MIOPEN):
        yield named
        return
    own = Path(torch.__file__).parent / "lib"
    for name in (NAME, "libMIOpen.so"):
        if (own / name).exists():
            yield str(own / name)
    yield NAME
    yield "libMIOpen.so"
