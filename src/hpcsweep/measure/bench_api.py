"""The interface of benches, and what becomes of a point. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from hpcsweep.catalog.columns import Row, check_declared
from hpcsweep.point import Point

if TYPE_CHECKING:
    from hpcsweep.conv.proof.evidence import Proof


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
