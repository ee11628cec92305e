"""The interface of what measures a workload, and its outcomes. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.proof.evidence import Proof
    from hpcsweep.point import Point


class Bench(Protocol):
    """What measures the points of one workload; `tunes`: torch has an autotuner here."""

    tunes: bool

    def environment(self) -> dict[str, Any]:
        """Return provenance for env.json; its `row` holds the cells repeated in each row."""

    def measure(self, point: Point, tries: int = 0) -> Measurement:
        """Measure one point; raise `CannotMeasure`, `OutOfMemory` or anything else."""

    def rest(self) -> None:
        """Set what each point sets to the same values, whatever the last one was."""


@dataclass(frozen=True)
class Measurement:
    """A measured point: cells of its overall row, its layer rows, its raw times in ms.

    `proof` has the evidence of the convolution calls among the layer rows, in their order; it
    stays on the node. `timed_s` are the seconds of the passes that the times come from, those with
    timers around layers included, and without the warm-up; None: nothing was timed.
    """

    row: Row
    layers: list[Row] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    proof: Proof | None = None
    timed_s: float | None = None


class CannotMeasure(Exception):
    """This machine, library or network cannot do the point; the text says why."""


class OutOfMemory(Exception):
    """The point needs more memory than there is; `peak` and `limit` are bytes, None if unknown."""

    def __init__(self, peak: int | None, limit: int | None, detail: str = "") -> None:
        self.peak, self.limit = peak, limit
        figures = f"peak {_gib(peak)}, limit {_gib(limit)}"
        super().__init__(f"out of memory ({figures}){': ' + detail if detail else ''}")


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / (1 << 30):.2f} GiB"
