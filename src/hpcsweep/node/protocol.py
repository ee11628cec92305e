"""The messages between supervisor and worker: one JSON object a line, through the worker's socket.

The worker says `Hello` once; then each `PointRequest` has one `Outcome`, which names the point and
the request. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import columns

# not only for type checkers: `typed_json` evaluates the annotations of the messages
from hpcsweep.point import Point
from hpcsweep.store import typed_json
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

_OVERALL: Final = {column.name: column.kind for column in columns.OVERALL}
_LAYERS: Final = {column.name: column.kind for column in columns.LAYERS}
_TYPES: Final = {"int": (int,), "float": (int, float), "bool": (bool,)}
_REST: Final = "__other__"  # of a layer pass: a difference of means


@dataclass(frozen=True, kw_only=True)
class PointRequest:
    """Asks the worker to measure a point.

    `tries` is the number of earlier tries, for injected faults. `nonce` differs in each request,
    since a point may be requested twice.
    """

    point: Point
    tries: int = 0
    nonce: str = ""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The worker is ready, or refuses the machine."""

    env: dict[str, Any] = field(default_factory=dict)  # for env.json; `row`: cells of every row
    refused: str = ""
    tunes: bool = False  # the framework has an autotuner on this device


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The status of a point, and its measured values."""

    status: PointStatus
    reason: str = ""
    row: dict[str, Any] = field(default_factory=dict)  # cells of overall.csv
    layers: list[dict[str, Any]] = field(default_factory=list)  # rows of layers.csv
    samples: list[float] = field(default_factory=list)  # times of the passes, in ms
    timed_s: float | None = None  # seconds of all timed passes
    fatal: bool = False  # the worker is beyond repair: the next point needs another one
    left: list[str] = field(default_factory=list)  # what the point changed or left running
    point_id: str = ""
    nonce: str = ""


def answer_to(request: PointRequest, reply: Mapping[str, Any]) -> Outcome:
    """Read a reply as the outcome of a request.

    Raises:
        ValueError: it has another form, answers another request, or has a value that no column can.
    """
    outcome = typed_json.from_plain(Outcome, reply)
    if (outcome.point_id, outcome.nonce) != (request.point.point_id, request.nonce):
        raise ValueError(f"it answers {outcome.point_id or 'no point'}, not this request")
    _check(outcome.row, _OVERALL)
    for row in outcome.layers:
        if not isinstance(row, dict):
            raise ValueError(f"a layer's row cannot be {row!r:.80}")  # noqa: TRY004 - as typed_json
        _check(row, _LAYERS)
    _check({"timed_s": outcome.timed_s}, {"timed_s": "float"})
    for ms in outcome.samples:
        _check({"samples_ms": ms}, {"samples_ms": "float"})
    return outcome


def _check(row: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """Raise `ValueError` where a cell has no column, another type, or is no possible time."""
    for name, value in row.items():
        if name not in kinds:
            raise ValueError(f"there is no column `{name}`")
        types = _TYPES.get(kinds[name])
        if value is None or types is None:
            continue
        is_time = kinds[name] == "float" and name.endswith(("_ms", "_s"))
        least = -math.inf if row.get("layer") == _REST else 0.0
        if type(value) not in types or (is_time and not least <= value < math.inf):
            raise ValueError(f"`{name}` cannot be {value!r:.80}")
