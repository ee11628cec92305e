"""Algorithms of cuDNN and MIOpen: what such a library is called with, through ctypes.

Which library serves a call, and what torch sees of it, is in `library_backend`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

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

    def function(self, name: str) -> Callable[..., object]:
        """Return a function, which raises where its status is not 0: that is success."""
        return self._functions[name]

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes converts
        """Call a function; raise where its status is not 0."""
        self._functions[name](*arguments)

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
        function.errcheck = self._check_status
        return function

    def _check_status(self, status: int, function: Any, _arguments: object) -> None:  # noqa: ANN401
        if status:
            raise self._error(function.__name__, status)


class Descriptor(ctypes.c_void_p):
    """A library's descriptor by its address, destroyed with its Python object."""

    def __init__(self, library: Library, create: str, *kind: int) -> None:
        """Create one by a function, which may be told a kind."""
        super().__init__()
        library.call(create, *kind, ctypes.byref(self))
        destroy = create.replace("Create", "Destroy")
        address = self.value or 0
        end = weakref.finalize(self, _destroy, library, destroy, address)
        end.atexit = False  # the process's end frees it, and the library may be gone by then


def _destroy(library: Library, function: str, address: int) -> None:
    with suppress(RuntimeError):
        library.call(function, address)


def strides(sizes: Size, layout: str) -> Size:
    """Return the strides, in elements, of a tensor whose sizes are in the order NCHW."""
    _, c, h, w = sizes
    if layout == NHWC:
        return c * h * w, 1, w * c, c
    return c * h * w, h * w, w, 1


# What each call asks. torch's own functions: the public names take up to ten times as long, or
# there are none.
# ruff: noqa: SLF001
_C: Any = torch._C
is_deterministic: Final[Callable[[], bool]] = _C._get_cudnn_deterministic
is_deterministic_everywhere: Final[Callable[[], bool]] = _C._get_deterministic_algorithms
is_profiled: Final[Callable[[], bool]] = torch.autograd._profiler_enabled
is_tracing: Final[Callable[[], bool]] = _C._is_tracing
modes: Final[Callable[[], int]] = _C._len_torch_dispatch_stack
# the switch of TF32 that this torch has; the first one since 2.9
tf32_switch: Final[Callable[[], str | bool]] = (
    partial(_C._get_fp32_precision_getter, "cuda", "conv")
    if hasattr(_C, "_get_fp32_precision_getter")
    else _C._get_cudnn_allow_tf32
)


def determinism_wanted() -> bool:
    """Say whether a point asks for the same bits every time, by either switch of torch."""
    return is_deterministic() or is_deterministic_everywhere()


def tf32_allowed() -> bool:
    """Say whether torch lets convolutions use TF32."""
    return tf32_switch() in {"tf32", True}


def current_stream(x: Tensor) -> int:
    """Return the address of the current stream on a tensor's device; 0 on the host."""
    return int(_C._cuda_getCurrentRawStream(x.get_device())) if x.is_cuda else 0


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

    problem: Problem
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

    def compute(self, first: Tensor, second: Tensor) -> Tensor:
        """Run on the current stream; return the result. A profiler sees a range around it."""
        with record_function(self.call) if is_profiled() else _NO_RANGE:
            return self.queued(first, second)

    @cached_property
    def queued(self) -> Callable[[Tensor, Tensor], Tensor]:
        """What runs on the current stream, with all that calls share looked up once.

        Operands that are not in the layout of the problem are converted, as by the framework.
        """
        *_, size = self.problem.sizes
        form = MEMORY_FORMATS[self.problem.layout]
        workspace_bytes = self.workspace_bytes
        run = self.run

        def queued(first: Tensor, second: Tensor) -> Tensor:
            first = first.contiguous(memory_format=form)
            second = second.contiguous(memory_format=form)
            device = first.device
            # made in its layout: converting it would be a kernel. Sizes one by one: a tuple is
            # read more slowly
            out = torch.empty(*size, dtype=first.dtype, device=device, memory_format=form)
            address = 0
            if workspace_bytes:
                scratch = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
                address = scratch.data_ptr()
            addresses = first.data_ptr(), second.data_ptr(), out.data_ptr(), address
            run(*addresses, current_stream(first))
            return out

        return queued


class Handles(Generic[T]):
    """The handles of a library: one for each thread and device, made when it is first asked for.

    A handle is set to a stream only where its last call had another one.
    """

    def __init__(self, create: Callable[[], T], set_stream: Callable[[T, int], object]) -> None:
        self._create = create
        self._set_stream = set_stream
        self._made: dict[tuple[int, int], T] = {}
        self._streams: dict[tuple[int, int], int] = {}

    def get(self, device: int, stream: int) -> T:
        """Return this thread's handle of a device, set to a stream.

        Raises:
            LibraryUnusable: the library finds no GPU here.
        """
        key = threading.get_ident(), device
        if self._streams.get(key) != stream:
            if key not in self._made:
                self._made[key] = self._create()
            self._set_stream(self._made[key], stream)
            self._streams[key] = stream
        return self._made[key]


def no_gpu(vendor: str, gpu: str, error: Exception) -> LibraryUnusable:
    """Return the error of a library that makes no handle."""
    return LibraryUnusable(f"{vendor} finds no {gpu} GPU here, or makes no handle on it ({error})")
