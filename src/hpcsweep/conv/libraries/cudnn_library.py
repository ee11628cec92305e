"""cuDNN's C interface through ctypes: convolutions by algorithm, and the graph interface.

Values and signatures are those of the headers of cuDNN 9 (`cudnn_graph.h`, `cudnn_ops.h`,
`cudnn_cnn.h`); the tests compare every one of them with the headers in cuDNN's wheel. The functions
that convolve are marked deprecated since 9.0 and are all there in 9.26.

The graph interface describes everything by attributes of descriptors. What is asked and run
through it is in `cudnn_plans`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from hpcsweep import environment
from hpcsweep.catalog import ALGORITHMS
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import (
    Descriptor,
    Library,
    LibraryError,
    NotSupported,
    Signatures,
    beside_torch,
    first_usable,
)

NAME: Final = "libcudnn.so.9"
# of the headers from which the values are; another major version may number things anew
MAJOR: Final = 9
# the wheels that have the library, of the newest CUDA first
_PACKAGES: Final = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11")
# bytes of room for what cuDNN says of an error: some lines; it cuts what is longer itself
_WORDS: Final = 1024
# what cuDNN says of an error about which it has nothing to say
_NO_WORDS: Final = "none"

# the thousands of a cudnnStatus_t; the rest says more
_NOT_SUPPORTED: Final = 3
# cudnnDataType_t
DATA_TYPES: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
# cudnnTensorFormat_t
FORMATS: Final = {"nchw": 0, "nhwc": 1}
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
BACKWARD_DATA: Final = {
    "algo_0": 0, "algo_1": 1, "fft": 2, "fft_tiling": 3, "winograd": 4, "winograd_nonfused": 5,
}  # fmt: skip
# cudnnConvolutionBwdFilterAlgo_t
BACKWARD_FILTER: Final = {
    "algo_0": 0, "algo_1": 1, "fft": 2, "algo_3": 3, "winograd": 4, "winograd_nonfused": 5,
    "fft_tiling": 6,
}  # fmt: skip

_NEW: Final = (POINTER(c_void_p),)
_WORKSPACE: Final = (*(c_void_p,) * 5, c_int, POINTER(c_size_t))
# handle, alpha, descriptor and address twice, convolution, algorithm, workspace, beta, result
_RUN: Final = (*(c_void_p,) * 7, c_int, *(c_void_p, c_size_t), *(c_void_p,) * 3)
SIGNATURES: Final[Signatures] = {
    "cudnnCreate": _NEW,
    "cudnnDestroy": (c_void_p,),
    "cudnnSetStream": (c_void_p, c_void_p),
    "cudnnSetTensor4dDescriptorEx": (c_void_p, *(c_int,) * 9),
    "cudnnSetFilter4dDescriptor": (c_void_p, *(c_int,) * 6),
    "cudnnSetConvolution2dDescriptor": (c_void_p, *(c_int,) * 8),
    "cudnnSetConvolutionGroupCount": (c_void_p, c_int),
    "cudnnSetConvolutionMathType": (c_void_p, c_int),
}
for _described in ("Tensor", "Filter", "Convolution"):
    SIGNATURES[f"cudnnCreate{_described}Descriptor"] = _NEW
    SIGNATURES[f"cudnnDestroy{_described}Descriptor"] = (c_void_p,)
for _way in ("Forward", "BackwardData", "BackwardFilter"):
    SIGNATURES[f"cudnnGetConvolution{_way}WorkspaceSize"] = _WORKSPACE
    SIGNATURES[f"cudnnConvolution{_way}"] = _RUN


# cudnnBackendDescriptorType_t
DESCRIPTORS: Final = {
    "CONVOLUTION": 1, "ENGINE": 2, "ENGINECFG": 3, "ENGINEHEUR": 4, "EXECUTION_PLAN": 5,
    "KNOB_CHOICE": 7, "OPERATION_CONVOLUTION_FORWARD": 10, "OPERATIONGRAPH": 15, "TENSOR": 17,
    "DEVICEPROP": 38,
}  # fmt: skip
# cudnnBackendAttributeType_t
TYPES: Final = {
    "DATA_TYPE": 1, "INT64": 3, "FLOAT": 4, "CONVOLUTION_MODE": 7, "HEUR_MODE": 8,
    "KNOB_TYPE": 9, "NUMERICAL_NOTE": 11, "BACKEND_DESCRIPTOR": 15, "INT32": 23, "CHAR": 24,
}  # fmt: skip
_C_TYPES: Final[Mapping[str, Any]] = {
    "INT64": c_int64, "FLOAT": c_float, "BACKEND_DESCRIPTOR": c_void_p,
    "CHAR": c_char,
}  # fmt: skip
# cudnnBackendAttributeName_t, by the type of their values
_BY_TYPE: Final = {
    "DATA_TYPE": {"CONVOLUTION_COMP_TYPE": 100, "TENSOR_DATA_TYPE": 901},
    "CONVOLUTION_MODE": {"CONVOLUTION_CONV_MODE": 101},
    "INT64": {
        "CONVOLUTION_DILATIONS": 102, "CONVOLUTION_FILTER_STRIDES": 103,
        "CONVOLUTION_POST_PADDINGS": 104, "CONVOLUTION_PRE_PADDINGS": 105,
        "CONVOLUTION_SPATIAL_DIMS": 106, "EXECUTION_PLAN_WORKSPACE_SIZE": 402,
        "KNOB_CHOICE_KNOB_VALUE": 601, "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT": 802,
        "TENSOR_BYTE_ALIGNMENT": 900, "TENSOR_DIMENSIONS": 902, "TENSOR_STRIDES": 903,
        "TENSOR_UNIQUE_ID": 906, "ENGINE_GLOBAL_INDEX": 1301,
    },
    "FLOAT": {
        "OPERATION_CONVOLUTION_FORWARD_ALPHA": 700, "OPERATION_CONVOLUTION_FORWARD_BETA": 701,
    },
    "HEUR_MODE": {"ENGINEHEUR_MODE": 200},
    "KNOB_TYPE": {"KNOB_CHOICE_KNOB_TYPE": 600},
    "NUMERICAL_NOTE": {"ENGINE_NUMERICAL_NOTE": 1303},
    "BACKEND_DESCRIPTOR": {
        "ENGINEHEUR_OPERATION_GRAPH": 201, "ENGINEHEUR_RESULTS": 202, "ENGINEHEUR_DEVICEPROP": 204,
        "ENGINECFG_ENGINE": 300, "ENGINECFG_KNOB_CHOICES": 302,
        "EXECUTION_PLAN_ENGINE_CONFIG": 401, "EXECUTION_PLAN_DEVICEPROP": 407,
        "OPERATION_CONVOLUTION_FORWARD_CONV_DESC": 702, "OPERATION_CONVOLUTION_FORWARD_W": 703,
        "OPERATION_CONVOLUTION_FORWARD_X": 704, "OPERATION_CONVOLUTION_FORWARD_Y": 705,
        "OPERATIONGRAPH_OPS": 801, "ENGINE_OPERATION_GRAPH": 1300, "ENGINE_DEVICEPROP": 1307,
    },
    "INT32": {"DEVICEPROP_DEVICE_ID": 2700},
    "CHAR": {"DEVICEPROP_JSON_REPRESENTATION": 2702},
}  # fmt: skip
ATTRIBUTES: Final[dict[str, tuple[int, str]]] = {}
for _type, _values in _BY_TYPE.items():
    for _name, _value in _values.items():
        ATTRIBUTES[_name] = (_value, _type)
# cudnnBackendNumericalNote_t, in the order of its values
NOTES: Final = (
    "TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "FFT", "NONDETERMINISTIC",
    "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13", "STRICT_NAN_PROP",
)  # fmt: skip
# cudnnBackendHeurMode_t
HEUR_MODE_A: Final = 3
# descriptor, attribute, type of its values, how many they are
_ATTRIBUTE: Final = (c_void_p, c_int, c_int, c_int64)


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


class CudnnGraph(CudnnLibrary):
    """A loaded libcudnn with its graph interface."""

    signatures: ClassVar[Signatures] = {
        "cudnnBackendCreateDescriptor": (c_int, POINTER(c_void_p)),
        "cudnnBackendDestroyDescriptor": (c_void_p,),
        "cudnnBackendFinalize": (c_void_p,),
        "cudnnBackendSetAttribute": (*_ATTRIBUTE, c_void_p),
        "cudnnBackendGetAttribute": (*_ATTRIBUTE, POINTER(c_int64), c_void_p),
    }

    def make(self, kind: str, **attributes: Any) -> Described:  # noqa: ANN401
        """Return a finished descriptor; attributes are named without the kind.

        Raises:
            CudnnError: cuDNN refuses it, which is its answer to many questions.
        """
        descriptor = Described(self, kind)
        for name, values in attributes.items():
            descriptor.put(name, values)
        self.call("cudnnBackendFinalize", descriptor)
        return descriptor


class Described(Descriptor):
    """A descriptor of the graph interface; it keeps those that it was made of."""

    def __init__(self, library: CudnnGraph, kind: str) -> None:
        super().__init__(library, "cudnnBackendCreateDescriptor", DESCRIPTORS[kind])
        self._library = library
        self._kind = kind
        self._parts = list[object]()
        if not self:
            raise mute(library)

    def put(self, name: str, values: object) -> None:
        """Set an attribute to a value, or to several."""
        number, kind = ATTRIBUTES[f"{self._kind}_{name}"]
        plain = list(values) if isinstance(values, list | tuple | bytes) else [values]
        for place, value in enumerate(plain):
            if isinstance(value, Described):
                plain[place] = value.value
        self._parts.append(values)
        c_type = _C_TYPES.get(kind, c_int) * len(plain)
        content = (TYPES[kind], len(plain), c_type(*plain))
        self._library.call("cudnnBackendSetAttribute", self, number, *content)

    def values(self, name: str, most: int = 1) -> list[Any]:
        """Return the values of an attribute, at most so many."""
        _, kind = ATTRIBUTES[f"{self._kind}_{name}"]
        c_type = _C_TYPES.get(kind, c_int) * most
        return self._got(name, c_type())

    def number(self, name: str) -> int:
        """Return the one value of an attribute.

        Raises:
            LibraryUnusable: it has none, or several.
        """
        found = self.values(name)
        if len(found) != 1:
            raise mute(self._library)
        return int(found[0])

    def inside(self, name: str, kind: str, most: int = 1) -> list[Described]:
        """Return the descriptors of a kind that an attribute holds, at most so many."""
        made = [Described(self._library, kind) for _ in range(most)]
        addresses = [one.value for one in made]
        room = (c_void_p * most)(*addresses)
        return made[: len(self._got(name, room))]

    def _got(self, name: str, room: Any) -> list[Any]:  # noqa: ANN401 - an array of ctypes
        number, kind = ATTRIBUTES[f"{self._kind}_{name}"]
        count = c_int64()
        asked = (self, number, TYPES[kind], len(room))
        self._library.call("cudnnBackendGetAttribute", *asked, ctypes.byref(count), room)
        return list(room[: count.value])


def mute(library: CudnnLibrary) -> LibraryUnusable:
    """Return the error of a library whose functions say "success" and tell nothing."""
    return LibraryUnusable(
        f"cuDNN {version_text(library.version)} at {library.path} does not answer through its "
        f"graph interface; take that of torch's wheel: see {environment.CUDNN}, LD_LIBRARY_PATH"
    )


def version_text(version: int) -> str:
    """Return 92600 as 9.26.0, and 8907 as 8.9.7, which counted in thousands."""
    if version < 10_000:
        return f"{version // 1000}.{version // 100 % 10}.{version % 100}"
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


@lru_cache(maxsize=1)
def load() -> CudnnLibrary:
    """Return the cuDNN that torch uses; `LibraryUnusable` where there is none, or another one."""
    library = first_usable(candidates(), CudnnLibrary, environment.CUDNN)
    ours = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    if ours is not None and ours != library.version and not os.environ.get(environment.CUDNN):
        raise LibraryUnusable(
            f"{library.path} is cuDNN {version_text(library.version)}, torch uses "
            f"{version_text(ours)}: two versions in one process; see LD_LIBRARY_PATH"
        )
    return library


def candidates() -> Iterator[str]:
    """Return where the library may be: loaded, in its wheel or in torch's, on the path."""
    yield from loaded()
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            for file in metadata.files(package) or ():
                if file.name == NAME:
                    yield str(file.locate())
    yield from beside_torch(NAME)
    yield NAME


def loaded() -> Iterator[str]:
    """Return the libcudnn that is in this process already."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    # of the six columns of a line the last one is the path; a library has a line for each segment
    yield from dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "libcudnn.so" in line)
