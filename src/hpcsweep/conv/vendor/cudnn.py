"""The cuDNN back-end: `cudnnConvolutionForward` and its gradients with the algorithm spelled out.

Which algorithm runs is the caller's, not a heuristic's. Math is explicit, too: float32 without TF32
is FMA alone, with it cuDNN's default math; half types use tensor cores and add up in float32.

A gradient runs the counterpart of its layer's algorithm (`_GRADIENTS`); where there is none, or
cuDNN refuses the shape, it is the framework's own, and `gradients` says so.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.conv.backend import Expected
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.vendor import cudnn_library as library_of
from hpcsweep.conv.vendor.backend import VendorBackend
from hpcsweep.conv.vendor.ctypes_tools import Descriptor, strides
from hpcsweep.conv.vendor.cudnn_library import (
    CudnnBadParameter,
    CudnnError,
    CudnnNotSupported,
    Library,
)
from hpcsweep.conv.vendor.driver import NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcsweep.conv.shape import ConvShape
    from hpcsweep.conv.vendor.driver import Problem, Way

NAME: Final = "cudnn"

# what a layer's algorithm means for its gradients; DIRECT and the explicit GEMM have no counterpart
_GRADIENTS: Final[Mapping[Way, Mapping[str, str]]] = {
    "data": {
        "implicit_gemm": "algo_1",
        "implicit_precomp_gemm": "algo_1",
        "fft": "fft",
        "fft_tiling": "fft_tiling",
        "winograd": "winograd",
        "winograd_nonfused": "winograd_nonfused",
    },
    "filter": {
        "implicit_gemm": "algo_1",
        "implicit_precomp_gemm": "algo_3",
        "fft": "fft",
        "fft_tiling": "fft_tiling",
        "winograd_nonfused": "winograd_nonfused",
    },
}
_NUMBERS: Final[Mapping[Way, Mapping[str, int]]] = {
    "forward": library_of.FORWARD,
    "data": library_of.BACKWARD_DATA,
    "filter": library_of.BACKWARD_FILTER,
}
_FUNCTIONS: Final[Mapping[Way, str]] = {
    "forward": "Forward",
    "data": "BackwardData",
    "filter": "BackwardFilter",
}

# What kernels are called in cuDNN 9.26's libcudnn_engines_precompiled and in published traces.
# Not every cuDNN names them so: little `must`.
_WINOGRAD: Final = ("*inograd*",)
_FFT: Final = ("*fft*", "*FFT*")
_IM2COL: Final = ("*im2col*", "*explicit_convolve*")
_KERNELS: Final[Mapping[str, Expected]] = {
    "implicit_gemm": Expected(must_not=(*_WINOGRAD, *_FFT, *_IM2COL)),
    "implicit_precomp_gemm": Expected(must_not=(*_WINOGRAD, *_FFT, *_IM2COL)),
    "gemm": Expected(must_not=(*_WINOGRAD, *_FFT)),
    "direct": Expected(must_not=(*_WINOGRAD, *_FFT, *_IM2COL)),
    "fft": Expected(kernels=(_FFT,), must_not=_WINOGRAD),
    "fft_tiling": Expected(kernels=(_FFT,), must_not=_WINOGRAD),
    "winograd": Expected(kernels=(_WINOGRAD,), must_not=_FFT),
    "winograd_nonfused": Expected(kernels=(_WINOGRAD,), must_not=_FFT),
    # of gradients
    "algo_1": Expected(must_not=(*_WINOGRAD, *_FFT)),
    "algo_3": Expected(must_not=(*_WINOGRAD, *_FFT)),
}


@dataclass(frozen=True)
class Descriptors:
    """What cuDNN is told about a problem."""

    x: Descriptor
    weight: Descriptor
    convolution: Descriptor
    y: Descriptor

    @classmethod
    def of(cls, library: Library, problem: Problem) -> Descriptors:
        """Describe input, filters, geometry and output."""
        shape, layout = problem.shape, problem.layout
        dtype = library_of.DATA_TYPES[shape.dtype]
        sizes = (shape.n, shape.in_c, shape.in_h, shape.in_w)
        out = (shape.n, shape.out_c, shape.out_h, shape.out_w)
        weight = Descriptor(library, NAME, "Filter")
        library.call(
            "cudnnSetFilter4dDescriptor",
            *(weight, dtype, library_of.FORMATS[layout]),
            *(shape.out_c, shape.group_in, shape.kernel_h, shape.kernel_w),
        )
        return cls(
            _tensor(library, dtype, sizes, layout),
            weight,
            _convolution(library, shape, tf32=problem.tf32),
            _tensor(library, dtype, out, layout),
        )

    def output_size(self, library: Library) -> tuple[int, int, int, int]:
        """Return the output's size as cuDNN computes it."""
        found = [ctypes.c_int() for _ in range(4)]
        library.call(
            "cudnnGetConvolution2dForwardOutputDim",
            *(self.convolution, self.x, self.weight),
            *map(ctypes.byref, found),
        )
        n, c, h, w = (number.value for number in found)
        return n, c, h, w

    def in_order(self, way: Way) -> tuple[Descriptor, ...]:
        """Return first operand, second, convolution and result, as the functions take them."""
        return {
            "forward": (self.x, self.weight, self.convolution, self.y),
            "data": (self.weight, self.y, self.convolution, self.x),
            "filter": (self.x, self.y, self.convolution, self.weight),
        }[way]


def _tensor(
    library: Library, dtype: int, sizes: tuple[int, int, int, int], layout: str
) -> Descriptor:
    found = Descriptor(library, NAME, "Tensor")
    library.call("cudnnSetTensor4dDescriptorEx", found, dtype, *sizes, *strides(sizes, layout))
    return found


def _convolution(library: Library, shape: ConvShape, *, tf32: bool) -> Descriptor:
    found = Descriptor(library, NAME, "Convolution")
    compute = library_of.DATA_TYPES["float64" if shape.dtype == "float64" else "float32"]
    library.call(
        "cudnnSetConvolution2dDescriptor",
        found,
        *(shape.pad_h, shape.pad_w, shape.stride_h, shape.stride_w),
        *(shape.dilation_h, shape.dilation_w, library_of.CROSS_CORRELATION, compute),
    )
    library.call("cudnnSetConvolutionGroupCount", found, shape.groups)
    library.call("cudnnSetConvolutionMathType", found, math_type(shape.dtype, tf32=tf32))
    return found


def math_type(dtype: str, *, tf32: bool) -> int:
    """Return cuDNN's math type: what the framework itself would choose."""
    if dtype == "float32":
        return library_of.DEFAULT_MATH if tf32 else library_of.FMA_MATH
    half = dtype in {"float16", "bfloat16"}
    return library_of.TENSOR_OP_MATH if half else library_of.DEFAULT_MATH


@dataclass(frozen=True)
class CudnnPlan:
    """An algorithm, the descriptors of a problem, and the scratch memory that cuDNN wants."""

    driver: Cudnn
    device: int
    way: Way
    algorithm: int
    descriptors: Descriptors
    workspace_bytes: int
    one: Any
    zero: Any

    @property
    def call(self) -> str:
        """Return the function and the algorithm's name."""
        names = {number: name for name, number in _NUMBERS[self.way].items()}
        return f"cudnnConvolution{_FUNCTIONS[self.way]}:{names[self.algorithm]}"

    def run(self, first: int, second: int, out: int, workspace: int, stream: int) -> None:
        """Queue the convolution."""
        if self.way != "forward":
            # cuDNN takes filters or input first, this back-end the gradient
            first, second = second, first
        a, b, convolution, result = self.descriptors.in_order(self.way)
        self.driver.library.call(
            f"cudnnConvolution{_FUNCTIONS[self.way]}",
            *(self.driver.handle(self.device, stream), self.one),
            *(a, first, b, second, convolution, self.algorithm),
            *(workspace, self.workspace_bytes, self.zero, result, out),
        )


@dataclass
class Cudnn:
    """The driver: plans, and a handle per thread and device."""

    find: Callable[[], Library] = library_of.load
    name: str = NAME
    _library: Library | None = None
    _handles: threading.local = field(default_factory=threading.local)

    @property
    def library(self) -> Library:
        """Return the library; it is loaded when it is first needed."""
        if self._library is None:
            self._library = self.find()
        return self._library

    def handle(self, device: int, stream: int) -> ctypes.c_void_p:
        """Return this thread's handle of a device, set to a stream."""
        known: dict[int, ctypes.c_void_p] = self._handles.__dict__.setdefault("of", {})
        if device not in known:
            made = ctypes.c_void_p()
            try:
                self.library.call("cudnnCreate", ctypes.byref(made))
            except CudnnError as error:
                if error.status != library_of.NOT_INITIALIZED:
                    raise
                raise LibraryUnusable(f"cuDNN finds no NVIDIA GPU here ({error})") from error
            known[device] = made
        self.library.call("cudnnSetStream", known[device], stream)
        return known[device]

    def plan(self, problem: Problem, device: int) -> CudnnPlan:
        """Describe a problem and ask for its workspace: that status is the answer to both."""
        number = _NUMBERS[problem.way].get(problem.algorithm)
        if number is None:
            raise NotSupported(f"cuDNN has no {problem.algorithm}")
        if problem.shape.dtype not in library_of.DATA_TYPES:
            raise NotSupported(f"cuDNN convolves no {problem.shape.dtype}")
        found = Descriptors.of(self.library, problem)
        number_type = ctypes.c_double if problem.shape.dtype == "float64" else ctypes.c_float
        return CudnnPlan(
            *(self, device, problem.way, number, found),
            self._workspace(problem.way, number, found, device),
            *(ctypes.byref(number_type(1)), ctypes.byref(number_type(0))),
        )

    def backward_name(self, way: Way, algorithm: str) -> str | None:
        """Return the counterpart of a layer's algorithm in a gradient."""
        return _GRADIENTS[way].get(algorithm)

    def expected(self, algorithm: str) -> Expected:
        """Return the kernels that prove an algorithm, or disprove it."""
        return _KERNELS[algorithm]

    def _workspace(self, way: Way, number: int, found: Descriptors, device: int) -> int:
        size = ctypes.c_size_t()
        try:
            self.library.call(
                f"cudnnGetConvolution{_FUNCTIONS[way]}WorkspaceSize",
                self.handle(device, 0),
                *found.in_order(way),
                number,
                ctypes.byref(size),
            )
        except CudnnBadParameter as error:
            # so it answers, too, where an algorithm has limits of its own
            raise CudnnNotSupported(
                error.function, error.status, str(error), error.words
            ) from error
        return size.value


def create(device_type: str) -> VendorBackend:
    """Return the back-end; the library is loaded when it is first asked."""
    return VendorBackend(Cudnn(), device_type)
