"""Holds a file's data against a pydantic model, and says in our words what does not fit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hpcsweep.errors import suggest
from hpcsweep.spec.document import show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from hpcsweep.spec.document import Document, Loc

_LITERALS: Final = re.compile(r"'([^']*)'|(True|False)")

M = TypeVar("M", bound=BaseModel)

# pydantic's error type to what the value must be; {} takes the error's context
_NEEDS: Final[Mapping[str, str]] = {
    "bool_type": "needs true or false",
    "dict_type": "needs a map of keys to values",
    "float_type": "needs a number",
    "greater_than": "needs more than {gt}",
    "greater_than_equal": "needs at least {ge}",
    "int_from_float": "needs a whole number",
    "int_type": "needs a whole number",
    "less_than_equal": "needs at most {le}",
    "list_type": "needs a list, such as [a, b]",
    "literal_error": "allowed are {expected}",
    "model_type": "needs a map of keys to values",
    "string_type": "needs text; quote it if it is",
    "too_short": "needs {min_length} or more entries",
    "value_error": "{error}",
}


def check(model: type[M], doc: Document) -> M:
    """Return the file as the model; the document's error for the first thing that does not fit."""
    try:
        return model.model_validate(doc.data)
    except ValidationError as error:
        raise explain(model, doc, error) from None


def explain(model: type[BaseModel], doc: Document, error: ValidationError) -> Exception:
    """Return the complaint about the first line that is wrong, and how many more there are."""
    found = error.errors(include_url=False)
    # a key that is missing is often one that is misspelt
    found.sort(key=lambda item: (doc.line(item["loc"]), item["type"] == "missing"))
    first, more = found[0], len(found) - 1
    text = _text(model, first) + (f"\n(and {more} more of this kind)" if more else "")
    return doc.complaint(first["loc"], text)


def integral(value: object) -> object:
    """Turn 224.0 into 224, for a field that is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(model: type[BaseModel], error: ErrorDetails) -> str:
    """Return what was found and what is allowed."""
    loc, kind, value, context = error["loc"], error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        keys = list(_fields(model, loc[:-1]))
        return f"unknown key, allowed are {', '.join(keys)}{suggest(str(loc[-1]), keys)}"
    if kind == "missing":
        field = _fields(model, loc[:-1])[str(loc[-1])]
        if get_origin(field.annotation) is Literal:
            return f"is missing, allowed are {', '.join(get_args(field.annotation))}"
        return f"is missing: {field.description}"
    if kind == "literal_error":
        found = _LITERALS.findall(context["expected"])
        context = {"expected": ", ".join(text or word.lower() for text, word in found)}
    needs = _NEEDS.get(kind, error["msg"]).format(**context)
    near = suggest(str(value), str(context.get("expected", "")).split(", "))
    return f"found {show(value)}, {needs}{near}"


def _fields(model: type[BaseModel], loc: Loc) -> dict[str, FieldInfo]:
    """Return the keys that the map at a location may have."""
    found: Any = model
    for step in loc:
        in_model = hasattr(found, "model_fields")
        found = _by_key(found.model_fields)[str(step)] if in_model else get_args(found)[-1]
        found = getattr(found, "annotation", found)
    return _by_key(found.model_fields)


def _by_key(fields: Mapping[str, FieldInfo]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in fields.items()}
