"""The cuDNN back-end: `cudnnConvolutionForward` and its gradients with the algorithm spelled out.

The caller chooses the algorithm, not a heuristic. The math type is explicit, too: float32 uses FMA
alone without TF32, and cuDNN's default math with it; half types add up in float32. By NVIDIA's
guide only implicit_precomp_gemm and winograd_nonfused use tensor cores in these forward calls.

A gradient runs the counterpart of its layer's algorithm (`_GRADIENTS`). Where there is none, or
cuDNN refuses the shape, the framework computes it, and `gradients` says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

from hpcsweep import catalog
from hpcsweep.conv.backend import Direction, Expected
from hpcsweep.conv.libraries import cudnn_library
from hpcsweep.conv.libraries.cudnn_library import CudnnLibrary
from hpcsweep.conv.libraries.cudnn_plans import FrontEnd
from hpcsweep.conv.libraries.driver import (
    Descriptor,
    NotSupported,
    Plan,
    Problem,
    Size,
    strides,
)
from hpcsweep.conv.libraries.library_backend import VendorBackend
from hpcsweep.conv.shape import ConvShape

NAME: Final = "cudnn"

# The counterpart of a layer's algorithm in a gradient; DIRECT and the explicit GEMM have none,
# nor has Winograd for filters.
# ALGO_0 and, for filters, ALGO_3 add in any order (cudnn_ops.h); what is here is deterministic.
_GRADIENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("implicit_gemm", "implicit_precomp_gemm"), "algo_1"),
    **{name: name for name in ("fft", "fft_tiling", "winograd", "winograd_nonfused")},
}
# by direction: the function, and the numbers of its algorithms
_WAYS: Final[Mapping[Direction, tuple[str, Mapping[str, int]]]] = {
    Direction.FORWARD: ("cudnnConvolutionForward", cudnn_library.FORWARD),
    Direction.DATA: ("cudnnConvolutionBackwardData", cudnn_library.BACKWARD_DATA),
    Direction.FILTER: ("cudnnConvolutionBackwardFilter", cudnn_library.BACKWARD_FILTER),
}

# Kernels of these have said so in every cuDNN; of the others names are compared where they tell.
_TELLING: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("fft", "fft_tiling"), ("*fft*", "*FFT*")),
    **dict.fromkeys(("winograd", "winograd_nonfused"), ("*inograd*",)),
}


def describe(library: CudnnLibrary, problem: Problem) -> tuple[Descriptor, ...]:
    """Return what cuDNN is told: first operand, second, convolution and result, in its order."""
    shape = problem.shape
    first, second, result = (
        _filters(library, shape, problem.layout)
        if place == problem.filters_at
        else _tensor(library, shape.dtype, sizes, problem.layout)
        for place, sizes in enumerate(problem.sizes)
    )
    if problem.way is not Direction.FORWARD:  # cuDNN takes filters or input before the gradient
        first, second = second, first
    return first, second, _convolution(library, shape, tf32=problem.tf32), result


def _tensor(library: CudnnLibrary, dtype: str, sizes: Size, layout: str) -> Descriptor:
    descriptor = Descriptor(library, NAME, "Tensor")
    number = cudnn_library.DATA_TYPES[dtype]
    library.call(
        "cudnnSetTensor4dDescriptorEx", descriptor, number, *sizes, *strides(sizes, layout)
    )
    return descriptor


def _filters(library: CudnnLibrary, shape: ConvShape, layout: str) -> Descriptor:
    descriptor = Descriptor(library, NAME, "Filter")
    number = cudnn_library.DATA_TYPES[shape.dtype]
    form = cudnn_library.FORMATS[layout]
    library.call("cudnnSetFilter4dDescriptor", descriptor, number, form, *shape.filter_size)
    return descriptor


def _convolution(library: CudnnLibrary, shape: ConvShape, *, tf32: bool) -> Descriptor:
    descriptor = Descriptor(library, NAME, "Convolution")
    compute = cudnn_library.DATA_TYPES["float64" if shape.dtype == "float64" else "float32"]
    library.call(
        "cudnnSetConvolution2dDescriptor",
        *(descriptor, *shape.padding, *shape.stride, *shape.dilation),
        *(cudnn_library.CROSS_CORRELATION, compute),
    )
    library.call("cudnnSetConvolutionGroupCount", descriptor, shape.groups)
    library.call("cudnnSetConvolutionMathType", descriptor, math_type(shape.dtype, tf32=tf32))
    return descriptor


def math_type(dtype: str, *, tf32: bool) -> int:
    """Return cuDNN's math type: what the framework itself would choose."""
    if dtype == "float32":
        return cudnn_library.DEFAULT_MATH if tf32 else cudnn_library.FMA_MATH
    half = dtype in {"float16", "bfloat16"}
    return cudnn_library.TENSOR_OP_MATH if half else cudnn_library.DEFAULT_MATH


@dataclass(frozen=True)
class CudnnPlan(Plan):
    """An algorithm by its number, and the factors of result and previous content: 1 and 0."""

    backend: Cudnn
    forward: bool
    number: int
    one: Any
    zero: Any

    def run(self, first: int, second: int, out: int, workspace: int, stream: int) -> None:
        """Queue the convolution."""
        if not self.forward:
            first, second = second, first
        a, b, convolution, result = self.descriptors
        self.backend.library.call(
            self.function,
            *(self.backend.handle(self.device, stream), self.one),
            *(a, first, b, second, convolution, self.number),
            *(workspace, self.workspace_bytes, self.zero, result, out),
        )


class Cudnn(VendorBackend[CudnnLibrary]):
    """cuDNN as a back-end."""

    name: ClassVar[str] = NAME
    gpus: ClassVar[str] = "NVIDIA"
    creates: ClassVar[tuple[Any, ...]] = ("cudnnCreate",)

    def plan(self, problem: Problem, device: int) -> Plan:
        """Describe a problem and ask for its workspace: that status is the answer to both.

        A plan, an engine or the heuristic's choice comes from NVIDIA's front-end.
        """
        if problem.algorithm == catalog.HEURISTIC or catalog.is_plan(problem.algorithm):
            return self._front_end.plan(problem, device)
        function, numbers = _WAYS[problem.way]
        number = numbers.get(problem.algorithm)
        if number is None:
            raise NotSupported(f"cuDNN has no {problem.algorithm}")
        if problem.shape.dtype not in cudnn_library.DATA_TYPES:
            raise NotSupported(f"cuDNN convolves no {problem.shape.dtype}")
        described = describe(self.library, problem)
        size = self._workspace(function, described, number, device)
        factor = ctypes.c_double if problem.shape.dtype == "float64" else ctypes.c_float
        return CudnnPlan(
            *(function, problem.algorithm, device, described, size),
            *(self, problem.way is Direction.FORWARD, number),
            *(ctypes.byref(factor(1)), ctypes.byref(factor(0))),
        )

    def _names(self, problem: Problem, device: int, most: int) -> list[str]:
        """Return the names of mode A's plans, then of the engines that it left out."""
        return self._front_end.names(problem, device, most)

    @cached_property
    def _front_end(self) -> FrontEnd:
        return FrontEnd(cudnn_library.version_text(self.library.version))

    def backward_name(self, way: Direction, algorithm: str) -> str | None:
        """Return the counterpart of a layer's algorithm in a gradient; a plan is of one way."""
        if algorithm == catalog.HEURISTIC or catalog.is_plan(algorithm):
            return catalog.HEURISTIC
        if way is Direction.FILTER and algorithm == "winograd":
            return None
        return _GRADIENTS.get(algorithm)

    def _kernels(self, algorithm: str) -> Expected:
        """Return the kernels that prove an algorithm, or disprove it."""
        needed = (_TELLING[algorithm],) if algorithm in _TELLING else ()
        named = None if catalog.is_plan(algorithm) or algorithm == catalog.HEURISTIC else algorithm
        return Expected(algorithm=named, kernels=needed)

    def _workspace(
        self, function: str, described: tuple[Descriptor, ...], number: int, device: int
    ) -> int:
        asking = function.replace("cudnn", "cudnnGet") + "WorkspaceSize"
        size = ctypes.c_size_t()
        handle = self.handle(device, 0)
        self.library.call(asking, handle, *described, number, ctypes.byref(size))
        return size.value


def create(device_type: str) -> Cudnn:
    """Return the back-end; the library is loaded when it is first asked."""
    return Cudnn(cudnn_library.load, device_type)
