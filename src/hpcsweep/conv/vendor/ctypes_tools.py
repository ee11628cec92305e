"""What both C interfaces need of ctypes: one copy of a library, signatures, descriptors."""

from __future__ import annotations

import ctypes
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hpcsweep.conv.errors import LibraryUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


class Calls(Protocol):
    """A library whose every status is checked."""

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes converts
        """Call a function; raise where its status is not success."""
        ...


class Descriptor:
    """A library's descriptor, destroyed with its Python object."""

    def __init__(self, library: Calls, prefix: str, kind: str) -> None:
        """Create one: `prefix` is cudnn or miopen, `kind` such as `Tensor`."""
        self._as_parameter_ = ctypes.c_void_p()
        library.call(f"{prefix}Create{kind}Descriptor", ctypes.byref(self._as_parameter_))
        destroy = f"{prefix}Destroy{kind}Descriptor"
        end = weakref.finalize(self, _destroy, library, destroy, self._as_parameter_)
        end.atexit = False  # the process's end frees it, and the library may be gone by then


def _destroy(library: Calls, function: str, descriptor: ctypes.c_void_p) -> None:
    with suppress(RuntimeError):
        library.call(function, descriptor)


def strides(sizes: tuple[int, ...], layout: str) -> tuple[int, int, int, int]:
    """Return the strides, in elements, of a tensor whose sizes are in the order NCHW."""
    _, c, h, w = sizes
    return (c * h * w, 1, w * c, c) if layout == "nhwc" else (c * h * w, h * w, w, 1)


def open_once(path: str, vendor: str) -> ctypes.CDLL:
    """Return a library without loading a second copy where it is in the process already.

    Raises:
        LibraryUnusable: it cannot be loaded.

    """
    with suppress(OSError):
        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise LibraryUnusable(f"{vendor} cannot be loaded: {error}") from error


def bind(library: ctypes.CDLL, name: str, types: tuple[Any, ...], missing: str) -> Any:  # noqa: ANN401
    """Return a function that takes these types and returns a status.

    Raises:
        LibraryUnusable: the library lacks it; `missing` is said.

    """
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise LibraryUnusable(missing) from error
    function.restype, function.argtypes = ctypes.c_int, types
    return function


def first_usable(paths: Iterable[str], load: Callable[[str], T]) -> T:
    """Return the first library that loads; the last one's error where none does."""
    *others, last = paths
    for path in others:
        with suppress(LibraryUnusable):
            return load(path)
    return load(last)
