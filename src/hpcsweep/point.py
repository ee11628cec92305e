"""The point: one fully resolved configuration, the unit of measurement, resume and failure.

A point's id is 16 hex digits of SHA-256 over the canonical JSON of everything that changes the
number: the workload, the axis values and the measurement settings. It never holds an index, a
path or a time, so an id computed on a login node equals the one computed on a compute node.

Values equal to their default are left out of the canonical form (`catalog` owns the defaults).
So an axis that a later version adds does not change the ids of what was measured before; in
return a default, once released, never changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping  # noqa: TC003 - `typed_json` asks for it
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

ID_DIGITS = 16
LABEL = ("model", "input_size", "batch_size", "algorithm")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Point:
    """One configuration: every axis of its workload by name, the `measure` settings, its id."""

    workload: str
    axes: Mapping[str, Any]
    measure: Mapping[str, Any] = field(default_factory=dict)
    point_id: str = ""

    def label(self, names: Iterable[str] = LABEL) -> str:
        """Return some values for people: ``resnet18 224 1 gemm``."""
        return " ".join(_text(self.axes[name]) for name in names if name in self.axes)


def canonical_json(value: object) -> str:
    """Serialise with sorted keys and no spaces; numerically equal int and float agree."""
    if type(value) is int:  # the same text at a fifth of the time
        return repr(value)
    return _ENCODER.encode(_normal(value))


def point_id(workload: str, axes: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    """Return the id of a configuration whose defaults were already left out."""
    text = canonical_json({"axes": axes, "measure": measure, "workload": workload})
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:ID_DIGITS]


def without_defaults(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that differ from their default (``True`` is not ``1``)."""
    return {
        key: value
        for key, value in values.items()
        if key not in defaults or not same(value, defaults[key])
    }


def same(a: object, b: object) -> bool:
    """Say whether two values are equal, and both or neither of them a bool."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _normal(value: object) -> object:
    """Give 1.0 and 1 one spelling, at every depth."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(k): _normal(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(v) for v in value]
    return value


def _text(value: object) -> str:
    return canonical_json(value) if isinstance(value, dict | list) else str(value)
