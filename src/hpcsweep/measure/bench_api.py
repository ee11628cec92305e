"""What becomes of a point besides an exception of its own: standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcsweep.catalog.columns import Row


@dataclass(frozen=True)
class Measured:
    """A measured point: cells of its overall row, its layer rows, its raw times in ms."""

    row: Row
    layers: list[Row] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)


class Unsupported(Exception):
    """This machine, library or network cannot do the point; the text says why."""


class OutOfMemory(Exception):
    """The point did not fit; `peak` and `limit` are bytes, or None where unknown."""

    def __init__(self, peak: int | None, limit: int | None, detail: str = "") -> None:
        """Keep the figures and say them."""
        self.peak, self.limit = peak, limit
        figures = f"peak {_gib(peak)}, limit {_gib(limit)}"
        super().__init__(f"out of memory ({figures}){': ' + detail if detail else ''}")


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / (1 << 30):.2f} GiB"
