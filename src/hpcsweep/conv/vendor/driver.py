"""A driver turns problems into plans: what a vendor's library needs to serve as a back-end."""

from __future__ import annotations

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from hpcsweep.conv.backend import Expected, Way
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.vendor.ctypes_tools import Descriptor, Library
from hpcsweep.records import dataclass, field

Size = tuple[int, int, int, int]
L = TypeVar("L", bound="Library")


class NotSupported(RuntimeError):
    """A library's answer to a problem that it cannot do."""


class LibraryError(RuntimeError):
    """A call of a library failed; the text has its name, the status and the library's own words."""


@dataclass(frozen=True)
class Problem:
    """One convolution in one direction: everything that a plan depends on."""

    way: Way
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
        x, weight, y = self.shape.input_size, self.shape.filter_size, self.shape.output_size
        return {Way.FORWARD: (x, weight, y), Way.DATA: (y, weight, x), Way.FILTER: (y, x, weight)}[
            self.way
        ]

    @property
    def filters_at(self) -> int:
        """Which of the three the filters are."""
        return 2 if self.way is Way.FILTER else 1


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
    def told(self) -> tuple[str | None, str | None]:
        """The library's own name of the plan, and its notes on it, where it has any."""
        return None, None

    @property
    def candidates(self) -> tuple[Plan, ...]:
        """The plans of the problem that can be taken; the one that takes least when tried is."""
        return (self,)

    @abstractmethod
    def run(self, first: int, second: int, out: int, workspace: int, stream: int) -> None:
        """Queue the work on a stream; tensors by address, in the order of `Problem.sizes`."""


@dataclass
class Driver(ABC, Generic[L]):
    """A vendor's library, loaded when it is first needed, and a handle per thread and device."""

    find: Callable[[], L]
    name: ClassVar[str]
    _library: L | None = None
    _handles: threading.local = field(default_factory=threading.local)

    @property
    def library(self) -> L:
        """The library.

        Raises:
            LibraryUnusable: it cannot be loaded.
        """
        if self._library is None:
            self._library = self.find()
        return self._library

    def handle(self, device: int, stream: int) -> ctypes.c_void_p:
        """Return this thread's handle of a device, set to a stream.

        Raises:
            LibraryUnusable: the library finds no GPU here.
        """
        known: dict[int, ctypes.c_void_p] = self._handles.__dict__.setdefault("of", {})
        if device not in known:
            made = ctypes.c_void_p()
            self._create_handle(ctypes.byref(made))
            known[device] = made
        self.library.call(f"{self.name}SetStream", known[device], stream)
        return known[device]

    @abstractmethod
    def plan(self, problem: Problem, device: int) -> Plan:
        """Return how a problem is done on a device; raise `NotSupported`, or its error."""

    @abstractmethod
    def plans(self, problem: Problem, device: int, most: int) -> list[str]:
        """Return the names of plans: at most so many of the heuristic's, then those left out."""

    @abstractmethod
    def backward_name(self, way: Way, algorithm: str) -> str | None:
        """Return what a gradient runs when its layer runs an algorithm; None: the framework's."""

    @abstractmethod
    def expected(self, algorithm: str) -> Expected:
        """Return the kernels that prove an algorithm, or disprove it."""

    @abstractmethod
    def _create_handle(self, made: object) -> None: ...


def no_gpu(vendor: str, gpu: str, error: Exception) -> LibraryUnusable:
    """Return the error of a library that finds no GPU."""
    return LibraryUnusable(f"{vendor} finds no {gpu} GPU here ({error})")
