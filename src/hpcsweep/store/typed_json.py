"""JSON objects as frozen records: what is missing takes its default, and every type is checked.

Standard library only: the supervisor reads its files and its worker's replies through it.
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
_AS_THEY_ARE: Final = frozenset({str, int, float, bool, dict, list, NoneType})
_CHECKSUM: Final = "crc"


def read(kind: type[T], found: Mapping[str, Any]) -> T:
    """Return a JSON object as a record of `kind`, a dataclass.

    Keys that `kind` does not have are left out: a newer version wrote them. A null takes the
    field's default where the field has no null. `ValueError` where a value is of another type, or
    one without a default is missing; names the key.
    """
    values: dict[str, Any] = {}
    for name, (hint, plain, nullable) in _fields(cast("Hashable", kind)).items():
        value = found.get(name)
        if value is None:
            values |= {name: None} if nullable and name in found else {}
            continue
        if type(value) is plain:  # most values, at a tenth of the time
            values[name] = value
            continue
        try:
            values[name] = _value(value, hint)
        except (TypeError, OverflowError):
            raise ValueError(f"`{name}` cannot be {value!r:.80}") from None
    try:
        return kind(**values)
    except TypeError:  # a field without a default
        raise ValueError(f"keys are missing; there are {', '.join(found) or 'none'}") from None


def write(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Return a record as a JSON object; records in it, and in its tuples, become objects too."""
    return {name: _plain(getattr(record, name)) for name in _names(cast("Hashable", type(record)))}


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a checksum over its other keys; `read` leaves it out."""
    return {**record, _CHECKSUM: _crc(record)}


def prove(record: Mapping[str, Any]) -> None:
    """Raise `ValueError` where an object is not what was sealed, as far as it has a checksum."""
    found = record.get(_CHECKSUM)
    if found is not None and found != _crc(record):
        raise ValueError("its checksum does not fit, so it was changed after it was written")


def _crc(record: Mapping[str, Any]) -> str:
    others = {name: value for name, value in record.items() if name != _CHECKSUM}
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode('ascii')):08x}"


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return write(value) if is_dataclass(value) else value


@lru_cache
def _names(kind: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cast("Any", kind)))


@lru_cache
def _fields(kind: Hashable) -> dict[str, tuple[Any, Any, bool]]:
    """Return the types of a record's fields: in full, as JSON has them, and which may be null."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        nullable = get_origin(hint) is UnionType
        options = [option for option in get_args(hint) if option is not NoneType]
        full = options[0] if nullable else hint
        plain = get_origin(full) or full
        found[name] = (full, dict if plain is Mapping else plain, nullable)
    return found


def _value(value: Any, hint: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return a value as its field keeps it; `TypeError` where it is of another type."""
    kind = get_origin(hint) or hint
    if is_dataclass(kind) and isinstance(value, dict):
        return read(hint, value)
    if kind is tuple and isinstance(value, list):
        return tuple(_value(item, get_args(hint)[0]) for item in value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and issubclass(kind, Enum):
        return kind(value)
    if kind is Any or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    raise TypeError
