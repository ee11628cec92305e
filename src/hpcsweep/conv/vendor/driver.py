"""What `vendor` asks of a vendor's library: a driver that turns problems into plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from hpcsweep.conv.backend import Expected
    from hpcsweep.conv.shape import ConvShape

Way = Literal["forward", "data", "filter"]


class NotSupported(RuntimeError):
    """A library's answer to a problem that it does not do; no error."""


@dataclass(frozen=True)
class Problem:
    """One convolution in one direction: everything that a plan depends on."""

    way: Way
    algorithm: str
    shape: ConvShape
    layout: str
    tf32: bool


class Plan(Protocol):
    """How a library does a problem."""

    @property
    def workspace_bytes(self) -> int:
        """Return the scratch memory that a run needs."""
        ...

    @property
    def call(self) -> str:
        """Return what a run calls, for traces: the library's function, and the algorithm."""
        ...

    def run(self, first: int, second: int, out: int, workspace: int, stream: int) -> None:
        """Queue the work on a stream; tensors by address.

        first and second are input and filters, gradient and filters, or gradient and input.
        """
        ...


class Driver(Protocol):
    """A vendor's library."""

    @property
    def name(self) -> str:
        """Return what the column `backend` says."""
        ...

    def plan(self, problem: Problem, device: int) -> Plan:
        """Return how a problem is done on a device; raise `NotSupported`, or its error."""
        ...

    def backward_name(self, way: Way, algorithm: str) -> str | None:
        """Return what a gradient runs when its layer runs an algorithm; None: the framework's."""
        ...

    def expected(self, algorithm: str) -> Expected:
        """Return the kernels that prove an algorithm, or disprove it."""
        ...
