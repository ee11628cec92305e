"""Converts JSON objects to dataclasses and back; missing keys take defaults, types are checked.

The supervisor imports this module, so it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")
_CHECKSUM: Final = "crc"
_PLAIN: Final = frozenset((str, int, float, bool, dict, list, NoneType))


def from_plain(kind: type[T], record: Mapping[str, Any]) -> T:
    """Convert a JSON object to a record of the dataclass `kind`.

    Keys without a field are left out: a newer version wrote them. A null takes the default where
    the field cannot be None. `ValueError` names a key of a wrong type, or missing keys.
    """
    values: dict[str, Any] = {}
    for name, (hint, usual, nullable) in _fields(cast("Hashable", kind)).items():
        value = record.get(name)
        if value is None:
            if nullable and name in record:
                values[name] = None
            continue
        if type(value) is usual:  # most values
            values[name] = value
            continue
        try:
            values[name] = _value(value, hint)
        except (TypeError, OverflowError):
            raise ValueError(f"`{name}` cannot be {value!r:.80}") from None
    try:
        return kind(**values)
    except TypeError:  # a field without a default
        raise ValueError(f"keys are missing; there are {', '.join(record) or 'none'}") from None


def to_plain(value: Any) -> Any:  # noqa: ANN401 - a dataclass, or what one holds
    """Convert a record to a JSON object, with the records inside it and inside its tuples."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if is_dataclass(value):
        return {name: to_plain(getattr(value, name)) for name in _names(cast("Hashable", kind))}
    return value


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a checksum over its other keys; `read` leaves it out."""
    return {**record, _CHECKSUM: _crc(record)}


def prove(record: Mapping[str, Any]) -> None:
    """Raise `ValueError` where an object has a checksum that does not fit."""
    checksum = record.get(_CHECKSUM)
    # what has none was written by a version before checksums
    if checksum is not None and checksum != _crc(record):
        raise ValueError("its checksum does not fit, so it was changed after it was written")


def _crc(record: Mapping[str, Any]) -> str:
    others = {name: value for name, value in record.items() if name != _CHECKSUM}
    # sorted and without spaces: a record that another program laid out anew still fits
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode('ascii')):08x}"


@lru_cache
def _names(kind: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cast("Any", kind)))


@lru_cache  # to resolve the annotations of a class takes longer than to read a record
def _fields(kind: Hashable) -> dict[str, tuple[Any, Any, bool]]:
    """Return by field its type, the same without parameters, and whether it may be null."""
    types = {}
    for name, hint in get_type_hints(kind).items():
        nullable = get_origin(hint) is UnionType
        inner = get_args(hint)  # of a union: TYPE | None, there is no other
        known = inner[inner[0] is NoneType] if nullable else hint
        types[name] = known, get_origin(known) or known, nullable
    return types


def _value(value: Any, hint: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Convert a JSON value to the type of its field; `TypeError` where it does not fit."""
    kind = get_origin(hint) or hint
    if kind is Any or type(value) is kind:
        return value
    if isinstance(value, dict) and is_dataclass(kind):
        return from_plain(hint, value)
    if kind is tuple and isinstance(value, list):
        return tuple(_value(item, get_args(hint)[0]) for item in value)
    if kind is float and type(value) is int:
        return float(value)
    if issubclass(kind, Enum):
        return kind(value)
    # JSON's true is no number, though a bool is an int to Python
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise TypeError
