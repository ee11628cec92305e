"""cuDNN's C interface through ctypes: the convolutions with an explicit algorithm.

Values and signatures are those of the headers of cuDNN 9 (`cudnn_graph.h`, `cudnn_ops.h`,
`cudnn_cnn.h`); the tests compare every one of them with the headers in cuDNN's wheel. The functions
are marked deprecated since 9.0 and are all there in 9.26.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

from hpcsweep import environment
from hpcsweep.catalog import ALGORITHMS
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries.driver import Library, LibraryError, NotSupported, first_usable

NAME: Final = "libcudnn.so.9"
MAJOR: Final = 9  # of the headers from which the values are
_PACKAGES: Final = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11")
_WORDS: Final = 1024  # bytes of room for what it says of an error; what is longer it cuts itself
_NO_WORDS: Final = "none"  # what cuDNN says of an error about which it has nothing to say

_NOT_SUPPORTED: Final = 3  # the thousands of a cudnnStatus_t; the rest says more
# cudnnDataType_t
DATA_TYPES: Final[Mapping[str, int]] = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
# cudnnTensorFormat_t
FORMATS: Final[Mapping[str, int]] = {"nchw": 0, "nhwc": 1}
# cudnnConvolutionMode_t
CROSS_CORRELATION: Final = 1
# cudnnMathType_t; ALLOW_CONVERSION (2) would compute float32 in float16, and is never used
DEFAULT_MATH: Final = 0
TENSOR_OP_MATH: Final = 1
FMA_MATH: Final = 3


# cudnnConvolutionFwdAlgo_t
FORWARD: Final = {
    name: known.cudnn for name, known in ALGORITHMS.items() if known.cudnn is not None
}
# cudnnConvolutionBwdDataAlgo_t
BACKWARD_DATA: Final[Mapping[str, int]] = {
    "algo_0": 0, "algo_1": 1, "fft": 2, "fft_tiling": 3, "winograd": 4, "winograd_nonfused": 5,
}  # fmt: skip
# cudnnConvolutionBwdFilterAlgo_t
BACKWARD_FILTER: Final[Mapping[str, int]] = {
    "algo_0": 0, "algo_1": 1, "fft": 2, "algo_3": 3, "winograd": 4, "winograd_nonfused": 5,
    "fft_tiling": 6,
}  # fmt: skip

_NEW: Final = (POINTER(c_void_p),)
_WORKSPACE: Final = (*(c_void_p,) * 5, c_int, POINTER(c_size_t))
# handle, alpha, descriptor and address twice, convolution, algorithm, workspace, beta, result
_RUN: Final = (*(c_void_p,) * 7, c_int, *(c_void_p, c_size_t), *(c_void_p,) * 3)
_WAYS: Final = ("Forward", "BackwardData", "BackwardFilter")
_DESCRIPTORS: Final = ("Tensor", "Filter", "Convolution")
SIGNATURES: Final[Mapping[str, tuple[Any, ...]]] = {
    "cudnnCreate": _NEW,
    "cudnnDestroy": (c_void_p,),
    "cudnnSetStream": (c_void_p, c_void_p),
    **{f"cudnnCreate{kind}Descriptor": _NEW for kind in _DESCRIPTORS},
    **{f"cudnnDestroy{kind}Descriptor": (c_void_p,) for kind in _DESCRIPTORS},
    "cudnnSetTensor4dDescriptorEx": (c_void_p, *(c_int,) * 9),
    "cudnnSetFilter4dDescriptor": (c_void_p, *(c_int,) * 6),
    "cudnnSetConvolution2dDescriptor": (c_void_p, *(c_int,) * 8),
    "cudnnSetConvolutionGroupCount": (c_void_p, c_int),
    "cudnnSetConvolutionMathType": (c_void_p, c_int),
    **{f"cudnnGetConvolution{way}WorkspaceSize": _WORKSPACE for way in _WAYS},
    **{f"cudnnConvolution{way}": _RUN for way in _WAYS},
}


class CudnnError(LibraryError):
    """A call of cuDNN failed."""

    def __init__(self, function: str, status: int, name: str, words: str = "") -> None:
        self.function = function
        self.status = status
        self.words = words
        super().__init__(f"{function}: {name}{': ' + words if words else ''}")


class CudnnNotSupported(CudnnError, NotSupported):
    """cuDNN cannot do a problem by an algorithm: the normal answer for many layers."""

    def __str__(self) -> str:
        return self.words or super().__str__()  # a reason for a table


class CudnnLibrary(Library):
    """A loaded libcudnn; a failed call raises the `CudnnError` of its kind."""

    vendor = "cuDNN"
    signatures = SIGNATURES

    def _check_version(self) -> None:
        self._library.cudnnGetVersion.restype = c_size_t
        self.version = int(self._library.cudnnGetVersion())
        if self.version // 10_000 != MAJOR:
            raise LibraryUnusable(
                f"{self.path}: cuDNN {version_text(self.version)} is not of version {MAJOR}; give "
                "this profile an environment whose torch has cuDNN 9 (torch 2.4 and later)"
            )
        self._library.cudnnGetErrorString.restype = c_char_p
        self._library.cudnnGetErrorString.argtypes = (c_int,)
        self._library.cudnnGetLastErrorString.restype = None
        self._library.cudnnGetLastErrorString.argtypes = (c_char_p, c_size_t)

    def _error(self, function: str, status: int) -> CudnnError:
        name = self._library.cudnnGetErrorString(status) or b"unknown status"
        kind = CudnnNotSupported if status // 1000 == _NOT_SUPPORTED else CudnnError
        buffer = ctypes.create_string_buffer(_WORDS)
        self._library.cudnnGetLastErrorString(buffer, _WORDS)  # of this thread
        words = " ".join(buffer.value.decode("utf-8", "replace").split())
        if words == _NO_WORDS:
            words = ""
        return kind(function, status, name.decode("ascii", "replace"), words)


def version_text(version: int) -> str:
    """Return 92600 as 9.26.0, and 8907 as 8.9.7, which counted in thousands."""
    if version < 10_000:
        return f"{version // 1000}.{version // 100 % 10}.{version % 100}"
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


@lru_cache(maxsize=1)
def load() -> CudnnLibrary:
    """Return the cuDNN that torch uses; `LibraryUnusable` where there is none, or another one."""
    library = first_usable(candidates(), CudnnLibrary)
    ours = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    if ours is not None and ours != library.version and not os.environ.get(environment.CUDNN):
        raise LibraryUnusable(
            f"{library.path} is cuDNN {version_text(library.version)}, torch uses "
            f"{version_text(ours)}: two versions in one process; see LD_LIBRARY_PATH"
        )
    return library


def candidates() -> Iterator[str]:
    """Return where the library may be: named by the user, loaded, in its wheel, on the path."""
    named = os.environ.get(environment.CUDNN)
    if named:
        yield named
        return
    yield from loaded()
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            for file in metadata.files(package) or ():
                if file.name == NAME:
                    yield str(file.locate())
    own = Path(torch.__file__).parent / "lib" / NAME
    if own.exists():
        yield str(own)
    yield NAME


def loaded() -> Iterator[str]:
    """Return the libcudnn that is in this process already."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    # of the six columns of a line the last one is the path; a library has a line for each segment
    yield from dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "libcudnn.so" in line)
