"""What both C interfaces need of ctypes: one copy of a library, signatures, descriptors."""

from __future__ import annotations

import ctypes
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from hpcsweep.conv.errors import LibraryUnusable

T = TypeVar("T")


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

    @abstractmethod
    def _missing(self, name: str) -> str: ...

    def _bind(self, name: str) -> Any:  # noqa: ANN401 - a ctypes function
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise LibraryUnusable(self._missing(name)) from error
        function.restype, function.argtypes = ctypes.c_int, self.signatures[name]
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
