"""The interface of benches, and what becomes of a point that is measured, or cannot be.

A worker of no-op points imports this, so torch is imported only to look at an error of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from hpcsweep.catalog.columns import Row, check_declared
from hpcsweep.point import Point

if TYPE_CHECKING:
    from hpcsweep.conv.proof import Proof


class Bench(Protocol):
    """Measures the points of one workload.

    `history` is what its points showed of the machine, for the bench of the next worker.
    """

    history: dict[str, Any]

    def environment(self) -> dict[str, Any]:
        """Return provenance for env.json; its `row` holds the cells repeated in each row."""

    def measure(
        self, point: Point, tries: int = 0, progress: Progress | None = None
    ) -> Measurement:
        """Measure one point; raise `CannotMeasure`, `OutOfMemory` or anything else."""


class Progress(Protocol):
    """Hears of a point that has its times, before each check that may end the process.

    `skipped` are checks that ended the process of an earlier point: they are left out.
    """

    skipped: frozenset[str]

    def begins(self, check: str, so_far: Measurement, rest: Sequence[str]) -> None:
        """Hear that a check begins; `so_far` is the point without it and the `rest` after it."""


_GIB: Final = 1 << 30
# Messages of allocators and libraries that have no exception type of their own.
_NO_MEMORY: Final = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "_STATUS_ALLOC_FAILED",
    "_ALLOCATION_FAILED",  # of cuDNN 9
)
# of torch, when it tried every plan; it swallows that memory ran out
_NO_ENGINE: Final = "unable to find an engine"
# in the words of torch's kernels, of its dispatcher, and of some operators
_NO_OPERATOR: Final = ("not implemented for '", "Could not run 'aten::", "Unsupported dtype")


@dataclass(frozen=True)
class Measurement:
    """A measured point: cells of its overall row, its layer rows, its raw times in ms.

    `proof` has the evidence of the convolution calls among the layer rows, in their order; it
    stays on the node. `timed_s` are the seconds of all timed passes, those with timers around
    layers included, without warm-up; None: nothing was timed.

    Raises:
        UndeclaredCell: a row has a cell that no record declares.
    """

    row: Row
    layers: list[Row] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    proof: Proof | None = None
    timed_s: float | None = None

    def __post_init__(self) -> None:
        check_declared(self.row, "overall")
        for layer in self.layers:
            check_declared(layer, "layers")


class CannotMeasure(Exception):
    """This machine, library or network cannot do the point; the text says why.

    If that `spoiled` the process, the next point needs another one.
    """

    def __init__(self, text: str, *, spoiled: bool = False) -> None:
        self.spoiled = spoiled
        super().__init__(text)


class OutOfMemory(Exception):
    """The point needs more memory than there is; `peak` and `limit` are bytes, None if unknown."""

    def __init__(self, peak: int | None, limit: int | None, detail: str = "") -> None:
        self.peak = peak
        self.limit = limit
        figures = f"peak {_gib(peak)}, limit {_gib(limit)}"
        super().__init__(f"out of memory ({figures}){': ' + detail if detail else ''}")


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / _GIB:.2f} GiB"


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception means that memory ran out, on the device or on the host."""
    import torch  # noqa: PLC0415 - no-op points do without it

    text = str(error)
    if _NO_ENGINE in text and torch.cuda.is_initialized():
        return torch.cuda.memory_stats().get("num_ooms", 0) > 0
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)


def is_missing_operator(error: BaseException) -> bool:
    """Say whether an exception means that an operator lacks this dtype or device."""
    return any(text in str(error) for text in _NO_OPERATOR)
