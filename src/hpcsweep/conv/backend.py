"""What a convolution back-end offers, what proves that it ran, and which one serves a device.

A back-end is one module of this package that offers ``create(device_type) -> Backend``. Platforms
without a line in `BACKENDS` get the reference back-end.

An operator's name in a trace has a namespace; a range's need not, and a network's author chose it.
"""

from __future__ import annotations

import importlib
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from hpcsweep import catalog
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import HpcsweepError, UsageError, suggest

if TYPE_CHECKING:
    import torch

# platform (the device type, but `hip` where torch calls an AMD GPU `cuda`) to module
BACKENDS: Final = {"cuda": "libraries.cudnn", "hip": "libraries.miopen"}
_ANYWHERE: Final = "reference"
# what the column `backend` says of the reference back-end, and of the framework's own layers
REFERENCE: Final = "reference"
FRAMEWORK: Final = "framework"


# shell patterns of names
Patterns = tuple[str, ...]
# of any namespace: extensions of torch have operators of their own
CONVOLUTIONS: Final = ("*::*conv*",)
PRODUCTS: Final = ("aten::mm", "aten::bmm", "aten::addmm*", "aten::baddbmm*")
# products that add to their first operand
ADDING: Final = ("aten::addmm", "aten::baddbmm")
# back-ends open a range named function:algorithm around each call of a vendor's library
LIBRARY_CALLS: Final = ("cudnnConvolution*:*", "cudnnGraph*:*", "miopenConvolution*:*")
# torch's own names: of the call that hands a convolution to oneDNN, of the whole call, and of what
# autograd runs for it
ONEDNN: Final = "aten::mkldnn_convolution"
FRAMEWORK_FORWARD: Final = ("aten::conv*",)
FRAMEWORK_BACKWARD: Final = "aten::convolution_backward"


# room for the names of many networks, each with some hundred; an entry keeps a few short strings
@lru_cache(maxsize=10_000)
def matches(name: str, patterns: Patterns) -> bool:
    """Say whether a name fits one of the patterns; passes repeat the same few names."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class UnknownAlgorithm(UsageError):
    """A name that is not in the taxonomy."""

    def __init__(self, name: object) -> None:
        names = ", ".join(catalog.ALGORITHMS)
        hint = suggest(str(name), catalog.ALGORITHMS)
        super().__init__(f"unknown convolution algorithm '{name}'{hint}\nthere are: {names}")


class LibraryUnusable(HpcsweepError):
    """A convolution library that is missing, too old, or of another major version."""


class Direction(Enum):
    """The direction of a convolution: the output, or the gradient of the input or the filters."""

    FORWARD = "forward"
    DATA = "data"
    FILTER = "filter"


@dataclass(frozen=True)
class Operation:
    """An operator or a library's call that tells one algorithm from another.

    `sizes` are [batch, m, k, n] of a matrix product and the last two dimensions of a transform.
    """

    name: str
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{','.join(map(str, self.sizes))}]" if self.sizes else self.name


def product(batch: int, m: int, k: int, n: int, *, adds: bool = False) -> Operation:
    """Return a matrix product by its sizes: of whatever operator, and of either order."""
    name = "added product" if adds else "product"
    # torch may run A B as the transpose of B' A'
    fewer, more = sorted((m, n))
    return Operation(name, (batch, fewer, k, more))


def comparable(ran: Operation) -> Operation:
    """Return an operation that ran as algorithms name theirs: not by the operator's variant."""
    if not matches(ran.name, PRODUCTS):
        return Operation(ran.name.removesuffix("_"), ran.sizes)
    if not ran.sizes:
        return Operation("product")
    return product(*ran.sizes, adds=ran.name.startswith(ADDING))


@dataclass(frozen=True)
class Expected:
    """What the profiler must and must not see in a call that runs an algorithm.

    `work` has the operations that tell one algorithm from another (`proof.profiler_events.TELLING`)
    as `comparable` gives them: each has to run, and no other one may. None: none is named.

    Patterns are shell patterns over the names of operators, library calls and kernels. At least one
    name has to match in every group of `must`, and none may match `must_not`. `kernels` are
    groups as in `must` for the names of kernels alone; they count where any was recorded.

    `algorithm` is what the kernels must not contradict by their names (see `proof.kernels`).
    `inside` names the operator to look into; None means the whole call. `onednn_direct` means that
    a report of oneDNN, if there is one, must name its direct algorithm.
    """

    must: tuple[Patterns, ...] = ()
    must_not: Patterns = ()
    kernels: tuple[Patterns, ...] = ()
    work: abc.Set[Operation] | None = None
    inside: str | None = None
    algorithm: str | None = None
    onednn_direct: bool = False


@dataclass(frozen=True)
class Gradient:
    """How the gradient of a layer's input (`data`) or of its filters (`filter`) is computed.

    `algorithm` is the back-end's name of what runs; None is the framework's own, and `reason` says
    why.
    """

    way: Direction
    algorithm: str | None
    expected: Expected
    reason: str | None = None
    workspace_bytes: int | None = None


Convolve = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor | None"], "torch.Tensor"]


class Backend(Protocol):
    """Runs convolutions with an explicit algorithm on tensors of one kind of device.

    What is known to need more bytes of scratch memory than `most_workspace` is unsupported.
    """

    most_workspace: float

    @property
    def name(self) -> str:
        """What the column `backend` says."""

    def unsupported(self, algorithm: str, shape: ConvShape) -> str | None:
        """Return None if the algorithm can do the shape, else the reason in a few words."""

    def forward(
        self,
        algorithm: str,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        shape: ConvShape,
    ) -> torch.Tensor:
        """Convolve; the call was found supported before."""

    def prepared(self, algorithm: str, shape: ConvShape) -> Convolve:
        """Return `forward` for many calls of one shape, with what they share looked up once."""

    def expected(self, algorithm: str, shape: ConvShape) -> Expected:
        """Return what the profiler must see in such a call."""

    def gradients(self, algorithm: str, shape: ConvShape) -> tuple[Gradient, ...]:
        """Return how the gradients of a layer that runs the algorithm are computed."""

    def plans(self, shape: ConvShape, most: int) -> list[str]:
        """Return names to try one by one: at most so many of the heuristic's, then the others."""

    def about(self, algorithm: str, shape: ConvShape) -> tuple[int | None, str | None, str | None]:
        """Return the scratch memory of a supported call, and the library's name of it and notes."""


def choose(device_type: str) -> Backend:
    """Return the back-end of a device type as torch names it (`cpu`, `cuda`, `mps`)."""
    torch: Any = importlib.import_module("torch")  # by name: others need what is here without it
    platform = "hip" if device_type == "cuda" and torch.version.hip else device_type
    name = BACKENDS.get(platform, _ANYWHERE)
    module = importlib.import_module(f"hpcsweep.conv.{name}")
    return cast("Backend", module.create(device_type))
