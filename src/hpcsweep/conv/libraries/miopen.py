"""The MIOpen back-end: immediate mode, with a solution of the wanted algorithm.

MIOpen groups its solutions (kernels with their parameters) by algorithm, and orders them by the
times of its database, or by a guess for a problem that is not in it. Of the requested algorithm the
first solution that compiles runs; the row has its name, and by name each can be asked for. A
problem for which MIOpen offers no solution of an algorithm is unsupported, which may be its guess,
too. Compilation and a try happen while support is asked; the column `algorithm_setup_ms` has their
time.

Values, structures and signatures are those of ``include/miopen/miopen.h`` of ROCm/MIOpen at
2d1fd997a6fc (version 3.3, October 2024). The functions are part of the stable interface since
MIOpen 2.0; nothing below ``MIOPEN_BETA_API`` is used.

Not proven on hardware: written from the public header, and exercised on a stand-in that computes on
the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from typing import Any, ClassVar, Final

from hpcsweep import catalog, environment
from hpcsweep.conv.backend import Direction, Expected, LibraryUnusable
from hpcsweep.conv.libraries import (
    Descriptor,
    Library,
    LibraryError,
    NotSupported,
    Plan,
    Problem,
    Signatures,
    beside_torch,
    first_usable,
    strides,
)
from hpcsweep.conv.libraries.library_backend import VendorBackend
from hpcsweep.conv.shape import ConvShape

NAME: Final = "miopen"
# the name that a ROCm package installs, then that of its development files
_FILES: Final = ("libMIOpen.so.1", "libMIOpen.so")
# the interface below is stable since 2.0; 3 is that of the header
_MAJORS: Final = (2, 3)
# for which there is room: MIOpen has some dozens of solvers, and fills no more than it is given
_MOST_SOLUTIONS: Final = 128

# miopenDataType_t
_DATA_TYPES: Final = {"float16": 0, "float32": 1, "bfloat16": 5, "float64": 6}
# miopenConvAlgorithm_t
_NAMES: Final = {
    known.miopen: name for name, known in catalog.ALGORITHMS.items() if known.miopen is not None
}
_NUMBERS: Final = {name: number for number, name in sorted(_NAMES.items())}
# miopenConvolutionMode_t: cross-correlation; groups are a count of their own
_CROSS_CORRELATION: Final = 0
_FUNCTIONS: Final = {
    Direction.FORWARD: "miopenConvolutionForward",
    Direction.DATA: "miopenConvolutionBackwardData",
    Direction.FILTER: "miopenConvolutionBackwardWeights",
}


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
# handle, descriptor and address twice, convolution, result, workspace, solution
_RUN: Final = (*(c_void_p,) * 9, c_size_t, c_uint64)
_NEW: Final = (POINTER(c_void_p),)
SIGNATURES: Final[Signatures] = {
    "miopenGetVersion": (POINTER(c_size_t), POINTER(c_size_t), POINTER(c_size_t)),
    "miopenCreateWithStream": (POINTER(c_void_p), c_void_p),
    "miopenSetStream": (c_void_p, c_void_p),
    "miopenDestroy": (c_void_p,),
    "miopenCreateTensorDescriptor": _NEW,
    "miopenSetTensorDescriptor": (c_void_p, c_int, c_int, POINTER(c_int), POINTER(c_int)),
    "miopenDestroyTensorDescriptor": (c_void_p,),
    "miopenCreateConvolutionDescriptor": _NEW,
    "miopenInitConvolutionDescriptor": (c_void_p, *(c_int,) * 7),
    "miopenSetConvolutionGroupCount": (c_void_p, c_int),
    "miopenDestroyConvolutionDescriptor": (c_void_p,),
}
for _function in _FUNCTIONS.values():
    SIGNATURES[f"{_function}GetSolution"] = _SOLUTIONS
    SIGNATURES[f"{_function}CompileSolution"] = _ONE
    SIGNATURES[f"{_function}Immediate"] = _RUN


class MiopenError(LibraryError):
    """A call of MIOpen failed."""

    def __init__(self, function: str, status: int, words: str) -> None:
        self.function = function
        self.status = status
        super().__init__(f"{function}: {words or f'status {status}'}")


class MiopenLibrary(Library):
    """A loaded libMIOpen; a failed call raises `MiopenError`."""

    vendor = "MIOpen"
    signatures = SIGNATURES

    def _check_version(self) -> None:
        major, minor, patch = c_size_t(), c_size_t(), c_size_t()
        ask = self._bind("miopenGetVersion")
        ask(ctypes.byref(major), ctypes.byref(minor), ctypes.byref(patch))
        self.version = major.value, minor.value, patch.value
        if major.value not in _MAJORS:
            version = ".".join(str(number) for number in self.version)
            known = " or ".join(str(number) for number in _MAJORS)
            raise LibraryUnusable(f"{self.path}: MIOpen {version}, not {known}")

    def _error(self, function: str, status: int) -> MiopenError:
        words = self._library.miopenGetErrorString
        words.restype = c_char_p
        words.argtypes = (c_int,)
        return MiopenError(function, status, (words(status) or b"").decode("ascii", "replace"))


@lru_cache(maxsize=1)
def load() -> MiopenLibrary:
    """Return the MIOpen that torch uses; `LibraryUnusable` where there is none."""
    paths = []
    for name in _FILES:
        paths += beside_torch(name)
    return first_usable([*paths, *_FILES], MiopenLibrary, environment.MIOPEN)


def describe(library: Library, problem: Problem) -> tuple[Descriptor, ...]:
    """Return what MIOpen is told: first operand, second, convolution, result, in its order."""
    shape = problem.shape
    number = _DATA_TYPES[shape.dtype]
    four = ctypes.c_int * 4
    operands = []
    for sizes in problem.sizes:
        operand = Descriptor(library, "miopenCreateTensorDescriptor")
        lengths = (4, four(*sizes), four(*strides(sizes, problem.layout)))
        library.call("miopenSetTensorDescriptor", operand, number, *lengths)
        operands.append(operand)
    first, second, result = operands
    if problem.way is Direction.FORWARD:  # MIOpen takes filters before the input
        first, second = second, first
    convolution = Descriptor(library, "miopenCreateConvolutionDescriptor")
    geometry = (*shape.padding, *shape.stride, *shape.dilation)
    library.call("miopenInitConvolutionDescriptor", convolution, _CROSS_CORRELATION, *geometry)
    library.call("miopenSetConvolutionGroupCount", convolution, shape.groups)
    return first, second, convolution, result


class Miopen(VendorBackend):
    """MIOpen as a back-end."""

    name: ClassVar[str] = NAME
    gpus: ClassVar[str] = "AMD"
    creates: ClassVar[tuple[Any, ...]] = ("miopenCreateWithStream", 0)

    def plan(self, problem: Problem, device: int) -> Plan:
        """Compile the first solution of the algorithm that can be."""
        name = problem.algorithm.partition("@")[0]
        wanted = _NUMBERS.get(name)
        if wanted is None and not name.startswith("sol") and name != catalog.HEURISTIC:
            names = ", ".join(_NUMBERS)
            raise NotSupported(f"MIOpen has no {problem.algorithm} (it has {names})")
        if problem.shape.dtype not in _DATA_TYPES:
            raise NotSupported(f"MIOpen convolves no {problem.shape.dtype}")
        if problem.deterministic:
            raise NotSupported("MIOpen does not say which of its solutions are deterministic")
        function = _FUNCTIONS[problem.way]
        described = describe(self.library, problem)
        solutions = self._solutions(function, described, device)
        fitting = []
        others: dict[str, None] = {}  # the algorithms of the rest, each once
        for offered in solutions:
            if wanted == offered.algorithm or name in {_name(offered), catalog.HEURISTIC}:
                fitting.append(offered)
            else:
                others[_NAMES.get(offered.algorithm, str(offered.algorithm))] = None
        if name == catalog.HEURISTIC:
            fitting = fitting[:1]
        if not fitting:
            raise NotSupported(
                f"MIOpen offers no {problem.algorithm} for this shape "
                f"(but: {', '.join(others) or 'none'}); that may be its guess"
            )
        solution = self._compiled(function, described, device, fitting)
        size = solution.workspace_size
        called = f"{function}Immediate"
        handle_of = self.handles.get
        convolve = self.library.function(called)
        number = solution.solution_id
        of_first, of_second, convolution, result = described
        swaps = problem.way is Direction.FORWARD

        def run(first: int, second: int, out: int, workspace: int, stream: int) -> None:
            if swaps:
                first, second = second, first
            operands = (of_first, first, of_second, second, convolution, result, out)
            convolve(handle_of(device, stream), *operands, workspace, size, number)

        algorithm = _NAMES[solution.algorithm]  # what MIOpen says that it is of
        return Plan(problem, called, algorithm, size, run, _name(solution), notes=algorithm)

    def plans(self, shape: ConvShape, most: int) -> list[str]:
        """Return the solutions that MIOpen offers, in its order; it offers no others."""
        problem = Problem.of(Direction.FORWARD, catalog.HEURISTIC, shape)
        described = describe(self.library, problem)
        solutions = self._solutions(_FUNCTIONS[problem.way], described, self.device)
        return [_name(solution) for solution in solutions[:most]]

    def backward_name(self, way: Direction, algorithm: str) -> str | None:
        """Return the same family, a plan being of one way; FFT has no gradient of filters."""
        if catalog.is_plan(algorithm):
            return catalog.HEURISTIC
        return None if way is Direction.FILTER and algorithm == "fft" else algorithm

    def _kernels(self, algorithm: str) -> Expected:
        """Return that the kernels must not be those of another algorithm."""
        return Expected(algorithm=algorithm if algorithm in _NUMBERS else None)

    def _solutions(
        self, function: str, described: tuple[Descriptor, ...], device: int
    ) -> list[Solution]:
        """Return what MIOpen offers for a problem."""
        handle = self.handles.get(device, 0)
        room = (Solution * _MOST_SOLUTIONS)()
        count = ctypes.c_size_t()
        answer = (_MOST_SOLUTIONS, ctypes.byref(count), room)
        self.library.call(f"{function}GetSolution", handle, *described, *answer)
        return list(room[: count.value])

    def _compiled(
        self,
        function: str,
        described: tuple[Descriptor, ...],
        device: int,
        solutions: Sequence[Solution],
    ) -> Solution:
        """Return the first solution that compiles; where none does, raise the last one's error."""
        *others, last = solutions
        handle = self.handles.get(device, 0)
        function = f"{function}CompileSolution"
        for solution in others:
            with suppress(MiopenError):
                self.library.call(function, handle, *described, solution.solution_id)
                return solution
        self.library.call(function, handle, *described, last.solution_id)
        return last


def _name(solution: Solution) -> str:
    """Return a solution's name; MIOpen's interface tells its number alone, which never changes."""
    return f"sol{solution.solution_id}"


def create(device_type: str) -> Miopen:
    """Return the back-end; the library is loaded when it is first asked."""
    return Miopen(load, device_type)
