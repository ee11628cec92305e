"""The messages between supervisor and worker: one JSON object a line, through the worker's socket.

The worker says `Hello` once; then each `Request` has one `Reply`, whose outcomes name their points.
Before it, `Timed` says of a point that its times are there, and which check begins: if the process
ends in the check, these times have their row. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog.record import row_of
from hpcsweep.catalog.row_records import OutcomeCells
from hpcsweep.store import chunk_file

# not only for type checkers: `typed_json` evaluates the annotations of the messages
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from hpcsweep.point import Point

# The second argument of the program `node.worker`, where it is to fork workers.
TEMPLATE: Final = "template"


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """Asks the worker to measure points, one after the other.

    `tries` is the number of earlier tries, for injected faults. `history` is what earlier points,
    also of other workers, showed of the machine (`Bench.history`). `skipped` are the checks to be
    left out, since they ended the process of an earlier point.
    """

    points: tuple[Point, ...]
    tries: int = 0
    skipped: tuple[str, ...] = ()
    history: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return the message; of its points it has the axes by column, as most are constant."""
        others = {"tries": self.tries, "skipped": self.skipped, "history": self.history}
        return {**chunk_file.to_columns(self.points), **others}

    @classmethod
    def from_plain(cls, message: Mapping[str, Any]) -> Self:
        """Return the request that a message is."""
        points = tuple(chunk_file.from_columns(message))
        others = {name: message[name] for name in ("tries", "history")}
        return cls(points=points, skipped=tuple(message["skipped"]), **others)


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The worker is ready, or refuses the machine."""

    env: dict[str, Any] = field(default_factory=dict)  # for env.json; `row`: cells of every row
    refused: str = ""
    exit_code: int = 0  # of the refusal


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The status of a point, and its measured values."""

    status: PointStatus
    reason: str = ""
    trace: str = ""  # of the exception, for the log
    row: dict[str, Any] = field(default_factory=dict)  # cells of overall.csv
    layers: list[dict[str, Any]] = field(default_factory=list)  # rows of layers.csv
    samples: list[float] = field(default_factory=list)  # times of the passes, in ms
    timed_s: float | None = None  # seconds of all timed passes
    seconds: float = 0.0  # that the worker spent on the point
    fatal: bool = False  # the worker is beyond repair: the next point needs another one
    killer: str = ""  # the check that ended the process; the times are good
    point_id: str = ""

    def to_plain(self) -> dict[str, Any]:
        """Return the outcome without what is empty: most is, of most points."""
        filled = {name: value for name, value in vars(self).items() if value}
        return {**filled, "timed_s": self.timed_s}  # 0 is a time, and None is none


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A point has its times, and a check begins, in which the process may end.

    `so_far` is the point's outcome without the check and the `rest` of them, which come after it.
    """

    so_far: Outcome
    check: str
    rest: list[str] = field(default_factory=list)

    def ended(self, why: str) -> Outcome:
        """Return the outcome of the point, if the process ended in the check."""
        missing = [f"{self.check}: {why}", *self.rest]
        skipped = self.so_far.row.get("checks_missing")
        if skipped:
            missing.insert(0, skipped)
        row = {**self.so_far.row, **row_of(OutcomeCells(checks_missing="; ".join(missing)))}
        return replace(self.so_far, row=row, killer=self.check)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The outcomes of the points of a request, in order; those after a fatal one are missing."""

    outcomes: tuple[Outcome, ...]
    history: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return the message."""
        return {"outcomes": [one.to_plain() for one in self.outcomes], "history": self.history}
