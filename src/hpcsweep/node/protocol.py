"""The messages between supervisor and worker: one JSON object a line, through the worker's socket.

The worker says `Hello` once; then each `Request` has one `Reply`, whose outcomes name their points.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# not only for type checkers: `typed_json` evaluates the annotations of the messages
from hpcsweep.point import Point
from hpcsweep.store.state import PointStatus


@dataclass(frozen=True, kw_only=True)
class Request:
    """Asks the worker to measure points, one after the other.

    `tries` is the number of earlier tries, for injected faults. `history` is what earlier points,
    also of other workers, showed of the machine (`Bench.history`).
    """

    points: tuple[Point, ...]
    tries: int = 0
    history: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The worker is ready, or refuses the machine."""

    env: dict[str, Any] = field(default_factory=dict)  # for env.json; `row`: cells of every row
    refused: str = ""


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
    point_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The outcomes of the points of a request, in order; those after a fatal one are missing."""

    outcomes: tuple[Outcome, ...]
    history: dict[str, Any] = field(default_factory=dict)
