"""Algorithms of cuDNN and MIOpen: what such a library is called with, through ctypes.

Which library serves a call, and what torch sees of it, is in `library_backend`.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from hpcsweep.conv.backend import Direction, LibraryUnusable
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape, Size

T = TypeVar("T")
# what the C functions of a library take, by name
Signatures = dict[str, tuple[Any, ...]]
MEMORY_FORMATS: Final = {NCHW: torch.contiguous_format, NHWC: torch.channels_last}
_NO_RANGE: Final = nullcontext()


class NotSupported(RuntimeError):
    """A library's answer to a problem that it cannot do."""


class LibraryError(RuntimeError):
    """A call of a library failed; the text has its name, the status and the library's own words."""


class Library(ABC):
    """A loaded C library that takes these signatures and whose every status is checked.

    Raises:
        LibraryUnusable: it is missing, lacks a function, or is of another major version.
    """

    vendor: ClassVar[str]
    version: Any  # as the library numbers itself
    signatures: ClassVar[Signatures]

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = _open_once(path, self.vendor)
        self._check_version()
        self._functions = {name: self._bind(name) for name in self.signatures}

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes converts
        """Call a function; raise where its status is not 0, which is success."""
        status = self._functions[name](*arguments)
        if status:
            raise self._error(name, status)

    @abstractmethod
    def _check_version(self) -> None: ...

    @abstractmethod
    def _error(self, function: str, status: int) -> Exception: ...

    def _bind(self, name: str) -> Any:  # noqa: ANN401 - a ctypes function
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise LibraryUnusable(f"{self.path}: this {self.vendor} has no {name}") from error
        function.restype = ctypes.c_int
        function.argtypes = self.signatures[name]
        return function


class Descriptor:
    """A library's descriptor, destroyed with its Python object."""

    def __init__(self, library: Library, create: str, *kind: int) -> None:
        """Create one by a function, which may be told a kind."""
        self._as_parameter_ = ctypes.c_void_p()
        library.call(create, *kind, ctypes.byref(self._as_parameter_))
        destroy = create.replace("Create", "Destroy")
        end = weakref.finalize(self, _destroy, library, destroy, self._as_parameter_)
        end.atexit = False  # the process's end frees it, and the library may be gone by then


def _destroy(library: Library, function: str, descriptor: ctypes.c_void_p) -> None:
    with suppress(RuntimeError):
        library.call(function, descriptor)


def strides(sizes: Size, layout: str) -> Size:
    """Return the strides, in elements, of a tensor whose sizes are in the order NCHW."""
    _, c, h, w = sizes
    if layout == NHWC:
        return c * h * w, 1, w * c, c
    return c * h * w, h * w, w, 1


def determinism_wanted() -> bool:
    """Say whether a point asks for the same bits every time, by either switch of torch."""
    return torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()


def tf32_allowed() -> bool:
    """Say whether torch lets convolutions use TF32, by the switch that this torch has."""
    cudnn = torch.backends.cudnn
    precision = getattr(getattr(cudnn, "conv", None), "fp32_precision", None)
    return bool(cudnn.allow_tf32) if precision is None else precision == "tf32"


def first_usable(paths: Iterable[str], load: Callable[[str], T], variable: str = "") -> T:
    """Return the first library that loads; the last one's error where none does.

    What the user names in an environment variable is the only one that is tried.
    """
    named = os.environ.get(variable)
    *others, last = [named] if named else paths
    for path in others:
        with suppress(LibraryUnusable):
            return load(path)
    return load(last)


def beside_torch(name: str) -> list[str]:
    """Return the path of a library in torch's own wheel, if it is there."""
    own = Path(torch.__file__).parent / "lib" / name
    return [str(own)] if own.exists() else []


def _open_once(path: str, vendor: str) -> ctypes.CDLL:
    """Return a library without loading a second copy where it is in the process already."""
    # two copies in one process would have two sets of handles and of global state
    with suppress(OSError):
        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise LibraryUnusable(f"{vendor} cannot be loaded: {error}") from error


@dataclass(frozen=True)
class Problem:
    """One convolution in one direction: everything that a plan depends on."""

    way: Direction
    algorithm: str
    shape: ConvShape
    layout: str
    tf32: bool
    deterministic: bool = False

    @classmethod
    def of(cls, way: Direction, algorithm: str, shape: ConvShape) -> Problem:
        """Return the problem of a call under torch's switches; torch adds its bias."""
        if shape.bias:  # a copy costs a tenth of a call
            shape = replace(shape, bias=False)
        tf32 = shape.dtype == "float32" and tf32_allowed()
        return cls(way, algorithm, shape, shape.layout, tf32, determinism_wanted())

    @property
    def sizes(self) -> tuple[Size, Size, Size]:
        """Sizes of the first operand, the second and the result.

        These are input, filters, output; or gradient, filters, gradient of the input; or
        gradient, input, gradient of the filters.
        """
        x = self.shape.input_size
        weight = self.shape.filter_size
        y = self.shape.output_size
        if self.way is Direction.FORWARD:
            return x, weight, y
        if self.way is Direction.DATA:
            return y, weight, x
        return y, x, weight

    @property
    def filters_at(self) -> int:
        """Which of the three the filters are."""
        return 2 if self.way is Direction.FILTER else 1


@dataclass(frozen=True)
class Plan:
    """How a library does a problem: the function that it calls, and its scratch memory.

    `algorithm` is the name of what runs. `run` queues the work on a stream; it takes the addresses
    of the operands in the order of `Problem.sizes`, of the scratch memory, and the stream. `name`
    is the library's own, and `notes` are its notes on the plan, where it has any.
    """

    function: str
    algorithm: str
    workspace_bytes: int
    run: Callable[[int, int, int, int, int], None]
    name: str | None = None
    notes: str | None = None

    @property
    def call(self) -> str:
        """What a run calls, for traces: the library's function, and the algorithm."""
        return f"{self.function}:{self.algorithm}"

    def compute(self, first: Tensor, second: Tensor, size: Sequence[int], layout: str) -> Tensor:
        """Run on the current stream; return the result.

        Operands that are not in the layout of the problem are converted, as by the framework.
        """
        form = MEMORY_FORMATS[layout]
        first = first.contiguous(memory_format=form)
        second = second.contiguous(memory_format=form)
        # made in its layout: converting it would be a kernel
        out = torch.empty(size, dtype=first.dtype, device=first.device, memory_format=form)
        scratch = out.new_empty(self.workspace_bytes, dtype=torch.uint8)
        addresses = first.data_ptr(), second.data_ptr(), out.data_ptr(), scratch.data_ptr()
        stream = 0
        if first.device.type == "cuda":
            stream = int(torch.cuda.current_stream(first.device).cuda_stream)
        # a range costs, and asking nothing
        profiled = torch.autograd._profiler_enabled()  # noqa: SLF001 - it has no other name
        with record_function(self.call) if profiled else _NO_RANGE:
            self.run(*addresses, stream)
        return out


def no_gpu(vendor: str, gpu: str, error: Exception) -> LibraryUnusable:
    """Return the error of a library that makes no handle."""
    return LibraryUnusable(f"{vendor} finds no {gpu} GPU here, or makes no handle on it ({error})")
