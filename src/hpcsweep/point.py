"""A point is one complete configuration: the unit that is measured, resumed, and can fail.

A point's id is 16 hex digits of SHA-256 over the canonical JSON of everything that changes the
result: workload, axes and settings of the measurement, but no index, path or time. Values that
equal their default (see `catalog`) are left out, so a new axis does not change the ids of earlier
points, and a released default never changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ID_DIGITS = 16  # 64 bits: two of a billion points have one id with a chance of 3 %
MAP_DIGITS = 6  # of the few maps of one sweep
LABEL = ("model", "input_size", "batch_size", "algorithm")  # what people tell points by
NO_MAPS: Mapping[str, str] = {}
_POINT_ID = re.compile(f"[0-9a-f]{{{ID_DIGITS}}}")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Point:
    """One configuration: every axis of its workload by name, the `measure` settings, its id."""

    workload: str
    axes: Mapping[str, Any]
    measure: Mapping[str, Any] = field(default_factory=dict)
    point_id: str = ""

    def label(self, maps: Mapping[str, str] = NO_MAPS, more: Iterable[str] = ()) -> str:
        """Return ``resnet18 224 1 gemm``; `maps` has names by canonical JSON.

        `more` are other axes, of which the value is named: ``resnet18 32 8 auto amp fp16``.
        """
        words = []
        for name in LABEL:
            value = self.axes.get(name)
            if value is None:
                continue
            if name == "input_size" and self.axes.get("input_width"):
                value = f"{value}x{self.axes['input_width']}"
            if name == "algorithm":
                value = algorithm_name(value, maps)
            words.append(str(value))
        words += [f"{name} {self.axes.get(name)}" for name in more]
        visit = str(self.axes.get("visit") or 1)  # of a row, it is text
        if visit != "1":
            words.append(f"visit {visit}")
        if self.axes.get("on_node"):
            words.append(f"on {self.axes['on_node']}")
        return " ".join(words)


def is_point_id(text: object) -> bool:
    """Say whether a text that a record holds is the id of a point, which names files."""
    return isinstance(text, str) and bool(_POINT_ID.fullmatch(text))


def varying(points: Iterable[Point]) -> tuple[str, ...]:
    """Return the axes that a label must name to tell points apart, beside those of each label."""
    names = differing([*points])
    return tuple(name for name in names if name not in {*LABEL, "input_width", "visit", "on_node"})


def differing(points: Sequence[Point]) -> tuple[str, ...]:
    """Return the axes that have not one value in all points; what differs first comes first."""
    every = [point.axes for point in points]
    places = {}
    for name in every[0] if every else ():
        values = [axes.get(name) for axes in every]
        if not is_constant(values):
            others = (place for place, value in enumerate(values) if not same(value, values[0]))
            places[name] = next(others, len(values))
    return tuple(sorted(places, key=places.__getitem__))


def is_constant(values: Sequence[Any]) -> bool:
    """Say whether all values are the same; True equals 1, and is another value."""
    return values.count(values[0]) == len(values) and len({*map(type, values)}) == 1


def canonical_json(value: object) -> str:
    """Return JSON with sorted keys and no spaces; 1 and 1.0 are written alike."""
    if type(value) is int:  # the same text at a fifth of the time
        return repr(value)
    return _ENCODER.encode(_normal(value))


def point_id(workload: str, axes: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    """Return the id of a configuration, given without the values that are defaults."""
    text = canonical_json({"axes": axes, "measure": measure, "workload": workload})
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:ID_DIGITS]


def without_defaults(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that differ from their default (``True`` is not ``1``)."""
    return {
        name: value
        for name, value in values.items()
        if name not in defaults or not same(value, defaults[name])
    }


def same(a: object, b: object) -> bool:
    """Say whether two values are equal, and both or neither of them a bool."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _normal(value: object) -> object:
    """Turn whole floats into integers, at every depth."""
    # YAML has 1 and 1.0, and a sweep file must have one id for both
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(k): _normal(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(v) for v in value]
    return value


def map_name(layers: object) -> str:
    """Return the short name of a map of algorithms, which may be canonical JSON already."""
    text = layers if isinstance(layers, str) else canonical_json(layers)
    whole = text.encode("utf-8", "surrogatepass")
    return f"map-{hashlib.sha256(whole).hexdigest()[:MAP_DIGITS]}"


def algorithm_name(algorithm: object, maps: Mapping[str, str] = NO_MAPS) -> str:
    """Return the name of an algorithm, or the short name of a map or of its canonical JSON."""
    text = canonical_json(algorithm) if isinstance(algorithm, dict) else str(algorithm)
    return str(maps.get(text) or map_name(text)) if text.startswith("{") else text
