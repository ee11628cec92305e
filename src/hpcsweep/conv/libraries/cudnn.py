"""The cuDNN back-end: `cudnnConvolutionForward` and its gradients with the algorithm spelled out.

The caller chooses the algorithm, not a heuristic. The math type is explicit, too: float32 uses FMA
alone without TF32, and cuDNN's default math with it; half types add up in float32. By NVIDIA's
guide only implicit_precomp_gemm and winograd_nonfused use tensor cores in these forward calls.

A gradient runs the counterpart of its layer's algorithm (`backward_name`). Where there is none, or
cuDNN refuses the shape, the framework computes it, and `gradients` says so.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any, ClassVar, Final

from hpcsweep import catalog
from hpcsweep.conv.backend import Direction, Expected
from hpcsweep.conv.libraries import (
    Descriptor,
    Library,
    NotSupported,
    Plan,
    Problem,
    cudnn_library,
    strides,
)
from hpcsweep.conv.libraries.cudnn_plans import FrontEnd
from hpcsweep.conv.libraries.library_backend import VendorBackend
from hpcsweep.conv.shape import ConvShape

NAME: Final = "cudnn"

# What cuDNN calls otherwise in a gradient; DIRECT and the explicit GEMM have no counterpart there.
# ALGO_0 and, for filters, ALGO_3 add in any order (cudnn_ops.h); what is here is deterministic.
_OTHER_NAMES: Final = {
    "implicit_gemm": "algo_1",
    "implicit_precomp_gemm": "algo_1",
}
# by direction: the function, and the numbers of its algorithms
_WAYS: Final = {
    Direction.FORWARD: ("cudnnConvolutionForward", cudnn_library.FORWARD),
    Direction.DATA: ("cudnnConvolutionBackwardData", cudnn_library.BACKWARD_DATA),
    Direction.FILTER: ("cudnnConvolutionBackwardFilter", cudnn_library.BACKWARD_FILTER),
}

# By how an algorithm adds up: kernels of these have said so in every cuDNN. Of the others names are
# compared where they tell.
_KERNELS: Final = {
    catalog.SUMS_FFT: ("*fft*", "*FFT*"),
    catalog.SUMS_WINOGRAD: ("*inograd*",),
}


def describe(library: Library, problem: Problem) -> tuple[Descriptor, ...]:
    """Return what cuDNN is told: first operand, second, convolution and result, in its order."""
    shape = problem.shape
    number = cudnn_library.DATA_TYPES[shape.dtype]
    operands = []
    for place, sizes in enumerate(problem.sizes):
        if place == problem.filters_at:
            operand = Descriptor(library, "cudnnCreateFilterDescriptor")
            form = cudnn_library.FORMATS[problem.layout]
            library.call("cudnnSetFilter4dDescriptor", operand, number, form, *sizes)
        else:
            operand = Descriptor(library, "cudnnCreateTensorDescriptor")
            steps = strides(sizes, problem.layout)
            library.call("cudnnSetTensor4dDescriptorEx", operand, number, *sizes, *steps)
        operands.append(operand)
    first, second, result = operands
    if problem.way is not Direction.FORWARD:  # cuDNN takes filters or input before the gradient
        first, second = second, first
    convolution = Descriptor(library, "cudnnCreateConvolutionDescriptor")
    geometry = (*shape.padding, *shape.stride, *shape.dilation)
    mode = cudnn_library.CROSS_CORRELATION
    compute = cudnn_library.DATA_TYPES["float64" if shape.dtype == "float64" else "float32"]
    library.call("cudnnSetConvolution2dDescriptor", convolution, *geometry, mode, compute)
    library.call("cudnnSetConvolutionGroupCount", convolution, shape.groups)
    math = math_type(shape.dtype, tf32=problem.tf32)
    library.call("cudnnSetConvolutionMathType", convolution, math)
    return first, second, convolution, result


def math_type(dtype: str, *, tf32: bool) -> int:
    """Return cuDNN's math type: what the framework itself would choose."""
    if dtype in {"float16", "bfloat16"}:
        return cudnn_library.TENSOR_OP_MATH
    if dtype == "float32" and not tf32:
        return cudnn_library.FMA_MATH
    return cudnn_library.DEFAULT_MATH


class Cudnn(VendorBackend):
    """cuDNN as a back-end."""

    name: ClassVar[str] = NAME
    gpus: ClassVar[str] = "NVIDIA"
    creates: ClassVar[tuple[Any, ...]] = ("cudnnCreate",)

    def plan(self, problem: Problem, device: int) -> Plan:
        """Describe a problem and ask for its workspace: that status is the answer to both.

        A plan, an engine or the heuristic's choice comes from NVIDIA's front-end.
        """
        if _is_of_front_end(problem.algorithm):
            return self._front_end.plan(problem, device)
        function, numbers = _WAYS[problem.way]
        number = numbers.get(problem.algorithm)
        if number is None:
            raise NotSupported(f"cuDNN has no {problem.algorithm}")
        if problem.shape.dtype not in cudnn_library.DATA_TYPES:
            raise NotSupported(f"cuDNN convolves no {problem.shape.dtype}")
        described = describe(self.library, problem)
        of_first, of_second, convolution, result = described
        handle = self.handles.get(device, 0)
        size = ctypes.c_size_t()
        asking = function.replace("cudnn", "cudnnGet") + "WorkspaceSize"
        self.library.call(asking, handle, *described, number, ctypes.byref(size))
        # the factors of the result, and of what was in its memory
        factor = ctypes.c_double if problem.shape.dtype == "float64" else ctypes.c_float
        one = ctypes.byref(factor(1))
        zero = ctypes.byref(factor(0))
        handle_of = self.handles.get
        convolve = self.library.function(function)
        swaps = problem.way is not Direction.FORWARD
        workspace_bytes = size.value

        def run(first: int, second: int, out: int, workspace: int, stream: int) -> None:
            if swaps:
                first, second = second, first
            handle = handle_of(device, stream)
            convolve(
                handle, one, of_first, first, of_second, second,
                convolution, number, workspace, workspace_bytes, zero, result, out,
            )  # fmt: skip

        return Plan(problem, function, problem.algorithm, workspace_bytes, run)

    def plans(self, shape: ConvShape, most: int) -> list[str]:
        """Return the names of mode A's plans, then of the engines that it left out."""
        problem = Problem.of(Direction.FORWARD, catalog.HEURISTIC, shape)
        return self._front_end.names(problem, self.device, most)

    @cached_property
    def _front_end(self) -> FrontEnd:
        return FrontEnd(cudnn_library.version_text(self.library.version))

    def backward_name(self, way: Direction, algorithm: str) -> str | None:
        """Return the counterpart of a layer's algorithm in a gradient; a plan is of one way."""
        if _is_of_front_end(algorithm):
            return catalog.HEURISTIC
        if way is Direction.FILTER and algorithm == "winograd":  # cuDNN has not implemented it
            return None
        _, numbers = _WAYS[way]
        return algorithm if algorithm in numbers else _OTHER_NAMES.get(algorithm)

    def _kernels(self, algorithm: str) -> Expected:
        """Return the kernels that prove an algorithm, or disprove it."""
        if _is_of_front_end(algorithm):
            return Expected()
        known = catalog.ALGORITHMS.get(algorithm)  # a gradient's name may be none of a layer's
        if known is None or known.sums not in _KERNELS:
            return Expected(algorithm=algorithm)
        return Expected(algorithm=algorithm, kernels=(_KERNELS[known.sums],))


def _is_of_front_end(algorithm: str) -> bool:
    return algorithm == catalog.HEURISTIC or catalog.is_plan(algorithm)


def create(device_type: str) -> Cudnn:
    """Return the back-end; the library is loaded when it is first asked."""
    return Cudnn(cudnn_library.load, device_type)
