"""What a vendor's library is called with: its functions and descriptors, problems and plans."""

from __future__ import annotations

import ctypes
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from hpcsweep.conv.backend import Direction, LibraryUnusable
from hpcsweep.conv.shape import ConvShape

Size = tuple[int, int, int, int]
T = TypeVar("T")


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
    signatures: ClassVar[Mapping[str, tuple[Any, ...]]]

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

    def __init__(self, library: Library, prefix: str, kind: str) -> None:
        """Create one: `prefix` is cudnn or miopen, `kind` such as `Tensor`."""
        self._as_parameter_ = ctypes.c_void_p()
        library.call(f"{prefix}Create{kind}Descriptor", ctypes.byref(self._as_parameter_))
        destroy = f"{prefix}Destroy{kind}Descriptor"
        end = weakref.finalize(self, _destroy, library, destroy, self._as_parameter_)
        end.atexit = False  # the process's end frees it, and the library may be gone by then


def _destroy(library: Library, function: str, descriptor: ctypes.c_void_p) -> None:
    with suppress(RuntimeError):
        library.call(function, descriptor)


def strides(sizes: tuple[int, ...], layout: str) -> tuple[int, int, int, int]:
    """Return the strides, in elements, of a tensor whose sizes are in the order NCHW."""
    _, c, h, w = sizes
    return (c * h * w, 1, w * c, c) if layout == "nhwc" else (c * h * w, h * w, w, 1)


def first_usable(paths: Iterable[str], load: Callable[[str], T]) -> T:
    """Return the first library that loads; the last one's error where none does."""
    *others, last = paths
    for path in others:
        with suppress(LibraryUnusable):
            return load(path)
    return load(last)


def _open_once(path: str, vendor: str) -> ctypes.CDLL:
    """Return a library without loading a second copy where it is in the process already."""
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

    @property
    def sizes(self) -> tuple[Size, Size, Size]:
        """Sizes of the first operand, the second and the result.

        These are input, filters, output; or gradient, filters, gradient of the input; or
        gradient, input, gradient of the filters.
        """
        x = self.shape.input_size
        weight = self.shape.filter_size
        y = self.shape.output_size
        return {
            Direction.FORWARD: (x, weight, y),
            Direction.DATA: (y, weight, x),
            Direction.FILTER: (y, x, weight),
        }[self.way]

    @property
    def filters_at(self) -> int:
        """Which of the three the filters are."""
        return 2 if self.way is Direction.FILTER else 1


@dataclass(frozen=True)
class Plan(ABC):
    """How a library does a problem: its function, what the function is told, its scratch memory.

    `algorithm` is the name of what runs; `descriptors` are in the function's order.
    """

    function: str
    algorithm: str
    device: int
    descriptors: tuple[Descriptor, ...]
    workspace_bytes: int

    @property
    def call(self) -> str:
        """What a run calls, for traces: the library's function, and the algorithm."""
        return f"{self.function}:{self.algorithm}"

    @property
    def name_and_notes(self) -> tuple[str | None, str | None]:
        """The library's own name of the plan, and its notes on it, where it has any."""
        return None, None

    @abstractmethod
    def run(self, first: int, second: int, out: int, workspace: int, stream: int) -> None:
        """Queue the work on a stream; tensors by address, in the order of `Problem.sizes`."""


def no_gpu(vendor: str, gpu: str, error: Exception) -> LibraryUnusable:
    """Return the error of a library that makes no handle."""
    return LibraryUnusable(f"{vendor} finds no {gpu} GPU here, or makes no handle on it ({error})")
