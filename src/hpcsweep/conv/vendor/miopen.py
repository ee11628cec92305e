"""The MIOpen back-end: immediate mode, with a solution of the wanted algorithm.

MIOpen groups its solutions (kernels with their parameters) by algorithm. For each problem the
fastest solution of the algorithm that was asked for, by MIOpen's own estimate, is compiled and run;
what none has is unsupported. That cost is paid while support is asked, and told in the column
`algorithm_setup_ms`.

Not proven on hardware: written from the public header (see `miopen_library`), and exercised on a
stand-in that computes on the host.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep.conv.backend import Expected
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.vendor import miopen_library as library_of
from hpcsweep.conv.vendor.backend import VendorBackend
from hpcsweep.conv.vendor.ctypes_tools import Descriptor, strides
from hpcsweep.conv.vendor.driver import NotSupported
from hpcsweep.conv.vendor.miopen_library import Library, MiopenError, Solution

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcsweep.conv.vendor.driver import Problem, Way

NAME: Final = "miopen"
_MOST_SOLUTIONS: Final = 128
_NAMES: Final = {number: name for name, number in library_of.ALGORITHMS.items()}
_FUNCTIONS: Final[Mapping[Way, str]] = {
    "forward": "Forward",
    "data": "BackwardData",
    "filter": "BackwardWeights",
}
# A user's database remembers what was found with whatever workspace there was; a run with little
# poisons it for the next one. So each process has its own, unless the user or the job says where.
_PRIVATE: Final = ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR")

# What kernels of the families are called in MIOpen's sources (see `miopen_library` for the
# revision). No name is demanded: none of them was seen on hardware yet.
_FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "winograd": ("miopenSp3AsmConv*", "*inograd*"),
    "fft": ("MIOpenConvFFT*",),
    "direct": ("miopenGcnAsmConv*", "naive_conv_*", "MIOpenCvFwd*", "MIOpenConvUni*"),
    "implicit_gemm": ("igemm_*", "*implicit_gemm*", "*gridwise_convolution*"),
    "gemm": ("Im2d2Col*",),
}


def _tensor(library: Library, dtype: int, sizes: tuple[int, ...], layout: str) -> Descriptor:
    found, four = Descriptor(library, NAME, "Tensor"), ctypes.c_int * 4
    library.call(
        "miopenSetTensorDescriptor", found, dtype, 4, four(*sizes), four(*strides(sizes, layout))
    )
    return found


def describe(library: Library, problem: Problem) -> tuple[Descriptor, ...]:
    """Return what MIOpen is told: first operand, second, convolution, result, in its order."""
    shape, layout = problem.shape, problem.layout
    dtype = library_of.DATA_TYPES[shape.dtype]
    x = _tensor(library, dtype, (shape.n, shape.in_c, shape.in_h, shape.in_w), layout)
    y = _tensor(library, dtype, (shape.n, shape.out_c, shape.out_h, shape.out_w), layout)
    filters = (shape.out_c, shape.group_in, shape.kernel_h, shape.kernel_w)
    weight = _tensor(library, dtype, filters, layout)
    convolution = Descriptor(library, NAME, "Convolution")
    library.call(
        "miopenInitConvolutionDescriptor",
        *(convolution, library_of.CROSS_CORRELATION),
        *(shape.pad_h, shape.pad_w, shape.stride_h, shape.stride_w),
        *(shape.dilation_h, shape.dilation_w),
    )
    library.call("miopenSetConvolutionGroupCount", convolution, shape.groups)
    return {
        "forward": (weight, x, convolution, y),
        "data": (y, weight, convolution, x),
        "filter": (y, x, convolution, weight),
    }[problem.way]


@dataclass(frozen=True)
class MiopenPlan:
    """A compiled solution and the descriptors of its problem."""

    driver: Miopen
    device: int
    way: Way
    solution: int
    workspace_bytes: int
    descriptors: tuple[Descriptor, ...]
    algorithm: str

    @property
    def call(self) -> str:
        """Return the function, and the algorithm that MIOpen says the solution is of."""
        return f"miopenConvolution{_FUNCTIONS[self.way]}Immediate:{self.algorithm}"

    def run(self, first: int, second: int, out: int, workspace: int, stream: int) -> None:
        """Queue the convolution."""
        if self.way == "forward":
            first, second = second, first  # MIOpen takes filters before the input
        a, b, convolution, result = self.descriptors
        self.driver.library.call(
            f"miopenConvolution{_FUNCTIONS[self.way]}Immediate",
            self.driver.handle(self.device, stream),
            *(a, first, b, second, convolution, result, out),
            *(workspace, self.workspace_bytes, self.solution),
        )


@dataclass
class Miopen:
    """The driver: solutions, and a handle per thread and device."""

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
        if device in known:
            self.library.call("miopenSetStream", known[device], stream)
            return known[device]
        made = ctypes.c_void_p()
        try:
            self.library.call("miopenCreateWithStream", ctypes.byref(made), stream)
        except MiopenError as error:
            raise LibraryUnusable(f"MIOpen finds no AMD GPU here ({error})") from error
        known[device] = made
        return made

    def plan(self, problem: Problem, device: int) -> MiopenPlan:
        """Find the fastest solution of the algorithm, and compile it."""
        wanted = library_of.ALGORITHMS.get(problem.algorithm)
        if wanted is None:
            known = ", ".join(library_of.ALGORITHMS)
            raise NotSupported(f"MIOpen has no {problem.algorithm} (it has {known})")
        if problem.shape.dtype not in library_of.DATA_TYPES:
            raise NotSupported(f"MIOpen convolves no {problem.shape.dtype}")
        descriptors = describe(self.library, problem)
        solutions = self._solutions(problem.way, descriptors, device)
        fitting = [solution for solution in solutions if solution.algorithm == wanted]
        if not fitting:
            raise NotSupported(_nothing_fits(problem.algorithm, solutions))
        best = min(fitting, key=lambda solution: solution.time)
        self.library.call(
            f"miopenConvolution{_FUNCTIONS[problem.way]}CompileSolution",
            *(self.handle(device, 0), *descriptors, best.solution_id),
        )
        return MiopenPlan(
            *(self, device, problem.way, best.solution_id, best.workspace_size, descriptors),
            _NAMES[best.algorithm],
        )

    def backward_name(self, way: Way, algorithm: str) -> str | None:
        """Return the same family; MIOpen has no FFT for the gradient of filters."""
        return None if way == "filter" and algorithm == "fft" else algorithm

    def expected(self, algorithm: str) -> Expected:
        """Return the kernels that disprove an algorithm: those of the other families."""
        others = [family for family in _FAMILIES if family != algorithm]
        if algorithm == "gemm":  # a rocBLAS kernel may be called anything
            others = ["winograd", "fft"]
        return Expected(must_not=tuple(name for family in others for name in _FAMILIES[family]))

    def _solutions(
        self, way: Way, descriptors: tuple[Descriptor, ...], device: int
    ) -> list[Solution]:
        """Return what MIOpen offers for a problem."""
        room = (Solution * _MOST_SOLUTIONS)()
        count = ctypes.c_size_t()
        self.library.call(
            f"miopenConvolution{_FUNCTIONS[way]}GetSolution",
            *(self.handle(device, 0), *descriptors),
            *(_MOST_SOLUTIONS, ctypes.byref(count), room),
        )
        return list(room[: count.value])


def _nothing_fits(algorithm: str, solutions: list[Solution]) -> str:
    there = dict.fromkeys(_NAMES.get(s.algorithm, str(s.algorithm)) for s in solutions)
    return f"no {algorithm} solution for this shape (there are: {', '.join(there) or 'none'})"


def create(device_type: str) -> VendorBackend:
    """Return the back-end; the library is loaded when it is first asked."""
    keep_to_oneself()
    return VendorBackend(Miopen(), device_type)


def keep_to_oneself() -> None:
    """Give MIOpen databases of this process alone, where nobody has said where they are."""
    missing = [name for name in _PRIVATE if not os.environ.get(name)]
    if not missing:
        return
    folder = tempfile.mkdtemp(prefix="hpcsweep-miopen-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in missing:
        os.environ[name] = str(Path(folder) / name.lower())
        Path(os.environ[name]).mkdir()
