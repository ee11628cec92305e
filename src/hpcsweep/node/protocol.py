"""What supervisor and worker tell each other: one JSON object a line, through the worker's pipes.

The worker says `Hello` once; then each `Request` has one `Outcome`. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# `typed_json`, which reads and writes the messages, asks for both
from hpcsweep.point import Point
from hpcsweep.store.state import PointStatus


@dataclass(frozen=True, kw_only=True)
class Request:
    """Measure a point; `tries` is how often it may have been tried before, for injected faults."""

    point: Point
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The worker is ready, or refuses the machine."""

    env: dict[str, Any] = field(default_factory=dict)  # for env.json; `row`: cells of every row
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a point ended, and what was measured of it."""

    status: PointStatus
    reason: str = ""
    row: dict[str, Any] = field(default_factory=dict)  # cells of overall.csv
    layers: list[dict[str, Any]] = field(default_factory=list)  # rows of layers.csv
    samples: list[float] = field(default_factory=list)  # times of the passes, in ms
    timed_s: float | None = None  # seconds of all timed passes
    fatal: bool = False  # the worker is beyond repair: the next point needs a new one
