"""Checks a file's data against a pydantic model, and reports mistakes in our words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hpcsweep.errors import nearest, suggest
from hpcsweep.spec.document import Complaints, Document, Loc, show

# It becomes a part of the names of folders, jobs and files: without signs that a shell or a path
# takes, and so short that what is put before and behind it fits 255 bytes.
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
MOST: Final = 1e18  # largest whole number in a file: those of 64 bits end at 9.2e18
LINE_ENDS: Final = frozenset("\n\r\0")  # would end a line or a word of a job script
_LITERALS: Final = re.compile(r"'([^']*)'|(True|False)")

M = TypeVar("M", bound=BaseModel)

# pydantic's error type, and our text; {} takes the error's context
_NEEDS: Final[Mapping[str, str]] = {
    "bool_type": "needs true or false",
    "dict_type": "needs a map of keys to values",
    "float_type": "needs a number",
    "greater_than": "needs more than {gt}",
    "greater_than_equal": "needs at least {ge:g}",
    "int_from_float": "needs a whole number",
    "int_type": "needs a whole number",
    "less_than_equal": "needs at most {le:,}",
    "list_type": "needs a list",
    "literal_error": "allowed are {expected}",
    "model_type": "needs a map of keys to values",
    "string_type": "needs text; quote it if it is",
    "too_short": "needs {min_length} or more entries",
    "value_error": "{error}",
}


class Shape(BaseModel):
    """A map in a file that has no other keys than these, and values of just these types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NotKnown(ValueError):
    """A name that is not in `names`; the complaint suggests the nearest one."""

    def __init__(self, text: str, names: Iterable[str]) -> None:
        super().__init__(text)
        self.names = names


def integral(value: object) -> object:
    """Turn 224.0 into 224, for fields of whole numbers; leave 1e300 to the type's check."""
    if isinstance(value, float) and value.is_integer() and abs(value) < MOST:
        return int(value)
    if isinstance(value, str) and value.isdecimal():
        raise ValueError("needs a whole number, which has no quotes")
    ends = re.fullmatch(r"(\d+):(\d+)", value) if isinstance(value, str) else None
    if ends:
        written = f"{{start: {ends[1]}, stop: {ends[2]}, step: 1}} in place of the list"
        raise ValueError(f"needs a whole number; for a range of an axis write {written}")
    return value


def _line(text: str) -> str:
    if not text.strip() or not LINE_ENDS.isdisjoint(text):
        raise ValueError("needs one line of text")
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError("needs letters, digits, `_`, `-`, `.`")
    return text


Count = Annotated[int, Field(ge=1), BeforeValidator(integral)]
Line = Annotated[str, AfterValidator(_line), WithJsonSchema({"type": "string", "minLength": 1})]
Name = Annotated[str, AfterValidator(_name)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


# To a type checker, types that are made at run time are Any.
def whole(minimum: float | None = None) -> Any:  # noqa: ANN401
    """Return the type of a whole number."""
    return Annotated[int, Field(ge=minimum), BeforeValidator(integral)]


def choice(names: Iterable[object]) -> Any:  # noqa: ANN401
    """Return the type of one of these names."""
    return Literal[tuple(names)]


def entry(doc: str, default: Any = None, **limits: Any) -> Any:  # noqa: ANN401
    """Return the field of an optional key, with pydantic's `limits`."""
    return Field(default=default, description=doc, **limits)


def list_of(item: Any, **limits: Any) -> Any:  # noqa: ANN401
    """Return the type of a list, with pydantic's `limits`."""
    return Annotated[list[item], Field(**limits)]


def by_shape(**types: Any) -> Any:  # noqa: ANN401
    """Return the union of types for a `map`, a `list` or another `value`; by default the first."""
    tags = {shape: f"\0{shape}" for shape in types}  # no key in a file contains NUL

    def tag_of(value: object) -> str:
        shape = "value"
        if isinstance(value, dict):
            shape = "map"
        if isinstance(value, list):
            shape = "list"
        return tags.get(shape, next(iter(tags.values())))

    options = tuple(Annotated[types[shape], Tag(tag)] for shape, tag in tags.items())
    return Annotated[Union[options], Discriminator(tag_of)]  # noqa: UP007 - as many as there are


def check(model: type[M], doc: Document, unknown: Callable[[str], str] | None = None) -> M:
    """Check a file by a model; raise a line for each mistake, with `unknown`'s text for keys."""
    try:
        return model.model_validate(doc.data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    misspelt = set()  # keys that a misspelt one means: that they are missing is not told, too
    for item in errors:
        if item["type"] == "extra_forbidden":
            *above, key = item["loc"]
            misspelt.add((*above, nearest(str(key), _fields(model, above))))
    complaints = Complaints(doc)
    for item in errors:
        if item["type"] != "missing" or item["loc"] not in misspelt:
            place = [step for step in item["loc"] if not _is_tag(step)]
            complaints.add(place, _text(model, item, unknown or _unknown_key))
    raise complaints.error()


def _is_tag(step: str | int) -> bool:
    """Say whether a step of a location is pydantic's, of a union, and no key of the file."""
    return str(step).startswith("\0")


def _unknown_key(_key: str) -> str:
    return "unknown key"


def _text(model: type[BaseModel], error: ErrorDetails, unknown: Callable[[str], str]) -> str:
    """Return the complaint about an error: the found value and the allowed ones."""
    loc = error["loc"]
    kind = error["type"]
    value = error["input"]
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        keys = list(_fields(model, loc[:-1]))
        key = str(loc[-1])
        return f"{unknown(key)}, allowed are {', '.join(keys)}{suggest(key, keys)}"
    if kind == "missing":
        field = _fields(model, loc[:-1])[str(loc[-1])]
        if get_origin(field.annotation) is Literal:
            return f"is missing, allowed are {', '.join(get_args(field.annotation))}"
        return f"is missing: {field.description}" if field.description else "is missing"
    if kind == "literal_error":
        allowed = [text or word.lower() for text, word in _LITERALS.findall(context["expected"])]
        context = {"expected": ", ".join(allowed)}
    needs = _NEEDS.get(kind, error["msg"]).format(**context)
    if kind == "list_type" and isinstance(value, str | float | bool):
        needs += f", such as [{value}]"
    if kind == "string_type" and isinstance(value, dict) and len(value) == 1:
        ((key, inner),) = value.items()
        needs = f"needs text; without a space behind the colon: {key}:{inner}"
    names = getattr(context.get("error"), "names", str(context.get("expected", "")).split(", "))
    return f"found {show(value)}, {needs}{suggest(str(value), names)}"


def _fields(model: type[BaseModel], loc: Loc) -> dict[str, FieldInfo]:
    """Return the allowed keys of the map at a location."""
    type_: Any = model
    for step in loc:
        if hasattr(type_, "model_fields"):
            type_ = _by_key(type_)[str(step)].annotation
        elif _is_tag(step):
            for option in get_args(type_):
                if Tag(str(step)) in option.__metadata__:
                    type_ = get_args(option)[0]
                    break
        else:
            type_ = get_args(type_)[-1]
        while get_origin(type_) is Annotated:
            type_ = get_args(type_)[0]
    return _by_key(type_)


def _by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def schema_text(model: type[BaseModel], title: str) -> str:
    """Return a model's JSON Schema with a title, without pydantic's titles of fields."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = {"$schema": dialect, **_untitled(model.model_json_schema()), "title": title}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _untitled(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Drop the titles that pydantic derives from names, but not a key that is named title."""
    if isinstance(value, list):
        return [_untitled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _untitled(item)
        for key, item in value.items()
        if key != "title" or not isinstance(item, str)
    }
