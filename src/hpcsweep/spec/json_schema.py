"""The JSON Schemas with which editors complete and check sweep files and profiles.

pydantic writes the outer shape; what an axis takes comes from the catalogue, as in `axisvalues`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hpcsweep.catalog import ALGORITHMS, AXES
from hpcsweep.catalog.gpus import GPUS
from hpcsweep.catalog.models import MODELS
from hpcsweep.spec.space import COMPARISONS, NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcsweep.catalog import Axis

    Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def sweep(shape: Schema) -> str:
    """Return the text of the sweep schema, given the shape that pydantic knows."""
    properties, rule = shape["properties"], shape["$defs"]["Rule"]["properties"]
    for target, part in (
        (properties["axes"], _map_of(_values)),
        (properties["zip"]["items"], _zip_group()),
        (properties["exclude"]["items"], _map_of(_test, minProperties=1)),
        (properties["include"]["items"], _map_of(_value, required=["model"])),
        (rule["if"], _map_of(_test, minProperties=1)),
        (rule["axes"], _map_of(_values, minProperties=1)),
        (shape["$defs"]["Failure"]["properties"]["when"], _map_of(_value_or_list)),
    ):
        target.pop("additionalProperties", None)
        target.update(part)
    return text(shape, "A sweep of hpcsweep")


def text(shape: Mapping[str, Any], title: str) -> str:
    """Return a schema as it is committed: titled, without pydantic's titles, one key a line."""
    whole = {"$schema": _DIALECT, **_untitled(dict(shape)), "title": title}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def _map_of(part: Callable[[Axis], Schema], **more: object) -> Schema:
    properties = {name: {"description": _doc(axis), **part(axis)} for name, axis in AXES.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _doc(axis: Axis) -> str:
    return axis.doc if axis.default is None else f"{axis.doc}; default {axis.default}"


def _zip_group() -> Schema:
    return {"type": "array", "items": {"enum": list(AXES)}, "minItems": 2, "uniqueItems": True}


def _value(axis: Axis) -> Schema:
    """Return what one value of an axis may be."""
    if axis.kind == "algorithm":
        named = {"type": "object", "additionalProperties": _name(axis), "minProperties": 1}
        return {"anyOf": [_name(axis), named]}
    return _name(axis)


def _name(axis: Axis) -> Schema:
    """Return what one value may be where a constraint names it: never a map."""
    if axis.kind in NUMBERS:
        kind = "integer" if axis.kind == "int" else "number"
        number: Schema = {"type": kind, "minimum": axis.minimum}
        return number if axis.default is not None else {"anyOf": [number, {"type": "null"}]}
    if axis.kind == "bool":
        return {"type": "boolean"}
    if axis.kind == "algorithm" or axis.choices:
        return {"enum": list(axis.choices or ALGORITHMS)}
    known = {"model": list(MODELS), "gpu": list(GPUS)}.get(axis.kind)
    anything = {"type": "string", "minLength": 1}
    return {"anyOf": [{"enum": known}, anything]} if known else anything


def _values(axis: Axis) -> Schema:
    """Return what an axis may be: a list, or a range of numbers."""
    listed = {"type": "array", "items": _value(axis), "minItems": 1}
    if axis.kind != "int":
        return listed
    return {"anyOf": [listed, _range("num", {"minimum": 1}), _range("step", {})]}


def _range(last: str, limits: Schema) -> Schema:
    whole = {"type": "integer"}
    return {
        "type": "object",
        "properties": {"start": whole, "stop": whole, last: {**whole, **limits}},
        "required": ["start", "stop", last],
        "additionalProperties": False,
    }


def _value_or_list(axis: Axis) -> Schema:
    several = {"type": "array", "items": _name(axis), "minItems": 1}
    return {"anyOf": [*_name(axis).get("anyOf", [_name(axis)]), several]}


def _test(axis: Axis) -> Schema:
    """Return what a constraint may ask of an axis."""
    unlike = {
        "type": "object",
        "properties": {"not": _value_or_list(axis)},
        "required": ["not"],
        "additionalProperties": False,
    }
    bounds = {
        "type": "object",
        "properties": {op: {"type": "number"} for op in COMPARISONS},
        "minProperties": 1,
        "additionalProperties": False,
    }
    return {"anyOf": [*_value_or_list(axis)["anyOf"], unlike, *([bounds] * (axis.kind in NUMBERS))]}


def _untitled(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Drop the titles that pydantic derives from names; a key named title is not one of them."""
    if isinstance(value, list):
        return [_untitled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _untitled(item)
        for key, item in value.items()
        if key != "title" or not isinstance(item, str)
    }
