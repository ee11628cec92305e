"""Makes pydantic types for the values of axes and settings in a sweep file, from the catalogue.

The catalogue alone states kinds, choices and bounds. By these types pydantic checks the files and
writes the JSON Schema for editors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)

from hpcsweep.catalog import ALGORITHMS, DATASETS, PLAN, Axis, Setting, is_algorithm
from hpcsweep.catalog.gpus import GPUS
from hpcsweep.catalog.models import MODELS
from hpcsweep.spec.space import COMPARISONS, NUMBERS, Predicate
from hpcsweep.spec.validation import (
    LINE_ENDS,
    Line,
    Name,
    NotKnown,
    Shape,
    by_shape,
    choice,
    entry,
    integral,
    list_of,
    whole,
)

if TYPE_CHECKING:
    from typing_extensions import Self

# On one axis. It is three times what is submitted at once, and a list of so many takes 40 MB.
MAX_VALUES: Final = 1_000_000
_TABLES: Final = {"model": MODELS, "dataset": DATASETS}  # built-in names, beside factories


def _known_algorithm(name: object) -> str:
    """Take a name of the table, or a plan, which only its library can know."""
    if isinstance(name, str) and is_algorithm(name):
        return name
    allowed = f"allowed are {', '.join(ALGORITHMS)}, or a plan such as eng12"
    raise NotKnown(allowed, ALGORITHMS)


_ALGORITHM: Any = Annotated[
    str,
    BeforeValidator(_known_algorithm),
    WithJsonSchema(
        {"type": "string", "anyOf": [{"enum": [*ALGORITHMS]}, {"pattern": f"^({PLAN})$"}]}
    ),
]
_FACTORY: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _one_line(value: object) -> object:
    """Take a number, true, false, or a line of text."""
    if not isinstance(value, str | int | float) or not LINE_ENDS.isdisjoint(str(value)):
        raise ValueError("needs text of one line, or a number")
    if value in {math.inf, -math.inf}:
        raise ValueError("needs a finite number")
    return value


def _no_default(schema: dict[str, Any]) -> None:
    del schema["default"]


_optional = partial(entry, json_schema_extra=_no_default)  # the JSON Schema states no default


class _IntegerRange(Shape):
    """Whole numbers from `start` to `stop`, both included."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["num"]}, {"required": ["step"]}]}
    )
    start: int
    stop: int
    num: int = _optional("how many values, evenly spread", ge=1, le=MAX_VALUES)
    step: int = _optional("distance between two values")
    _whole = field_validator("num", "step", mode="before")(integral)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:  # noqa: ANN401 - what stands in the file
        if isinstance(given, dict) and {"from", "to"} <= given.keys():
            written = f"{{start: {given['from']}, stop: {given['to']}, num: 10}}"
            raise ValueError(f"needs start, stop and num or step: write {written}")
        return given

    @field_validator("num", "step")
    @classmethod
    def _fits(cls, given: int, info: ValidationInfo) -> int:
        if not {"start", "stop"} <= set(info.data):
            return given  # pydantic reports the mistakes in these
        start = info.data["start"]
        stop = info.data["stop"]
        if info.field_name == "num":
            there = abs(stop - start) + 1
            if given > there:
                raise ValueError(f"but there are only {there} integers in {start}..{stop}")
            return given
        number = len(_steps(start, stop, given)) if given else 0
        if not number:
            raise ValueError(f"which does not lead from {start} to {stop}")
        if number > MAX_VALUES:
            raise ValueError(f"which makes {number:,} values, at most {MAX_VALUES:,} on one axis")
        return given

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.num is None) == (self.step is None):
            raise ValueError("needs start, stop and one of num, step")
        return self

    def values(self) -> Sequence[int]:
        """Return the numbers: with `num`, ``int(start + i * (stop - start) / (num - 1))``."""
        if self.step is not None:
            return _steps(self.start, self.stop, self.step)
        gaps = max(self.num - 1, 1)
        rise = self.stop - self.start
        ends = (self.start * gaps + i * rise for i in range(self.num))
        return [at // gaps if at >= 0 else -(-at // gaps) for at in ends]


class _Comparison(Shape):
    """A comparison with numbers, or `not` with values (the field `unlike`)."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        keys = [field.alias or name for name, field in type(self).model_fields.items()]
        if not self.model_fields_set:
            raise ValueError(f"allowed are {', '.join(keys)}")
        if "unlike" in self.model_fields_set and len(self.model_fields_set) > 1:
            raise ValueError("in which `not` must stand alone")
        return self

    def predicate(self) -> Predicate:
        """Return the comparison as a `Predicate`."""
        if "unlike" in self.model_fields_set:
            return Predicate(_values(getattr(self, "unlike")), negate=True)  # noqa: B009
        return Predicate(bounds=tuple((op, getattr(self, op)) for op in self.model_fields_set))


def value_of(entry: Axis | Setting) -> Any:  # noqa: ANN401 - a type, as below
    """Return the type of one value of an axis or a setting."""
    if entry.choices:
        named = choice(entry.choices)
        return Annotated[named, BeforeValidator(_no_number)] if True in entry.choices else named
    if entry.kind == "algorithm":
        return by_shape(value=_ALGORITHM, map=LAYERS)
    if entry.kind in NUMBERS:
        finite = Annotated[float, Field(ge=entry.minimum, allow_inf_nan=False)]
        number = whole(entry.minimum) if entry.kind == "int" else finite
        return number | None if entry.default is None else number
    types: dict[str, Any] = {
        "bool": bool,
        "str": Line,
        "gpu": Annotated[Name, _offered(GPUS)],
        "any": Annotated[Any, AfterValidator(_one_line)],
    }
    if entry.kind in types:
        return types[entry.kind]
    check_name = partial(_known_or_factory, _TABLES[entry.kind], entry.doc)
    return Annotated[Line, AfterValidator(check_name), _offered(_TABLES[entry.kind])]


def values_of(axis: Axis) -> Any:  # noqa: ANN401
    """Return the type of an axis's values: a list, or a range of whole numbers."""
    listed = list_of(value_of(axis), min_length=1)
    if axis.kind not in {"int", "any"}:
        return listed
    range_: Any = _range_from(axis.minimum)
    ranged = Annotated[range_, AfterValidator(_IntegerRange.values)]
    return Annotated[by_shape(list=listed, map=ranged), BeforeValidator(_list_or_range)]


def named_of(axis: Axis, **more: Any) -> Any:  # noqa: ANN401
    """Return the type of one or several values in a condition, none of them a map."""
    value = _ALGORITHM if axis.kind == "algorithm" else value_of(axis)
    if axis.kind in _TABLES:
        value = Annotated[Line, _offered(_TABLES[axis.kind])]
    return by_shape(value=value, list=list_of(value, min_length=1), **more)


def condition_on(axis: Axis) -> Any:  # noqa: ANN401
    """Return the type of a condition on an axis; it becomes a `Predicate`."""
    compared = COMPARISONS if axis.kind in {*NUMBERS, "any"} else ()
    fields: dict[str, Any] = {op: (float, _optional(f"`{op}` this number")) for op in compared}
    fields["unlike"] = (named_of(axis), _optional("none of these", alias="not"))
    comparison = create_model(f"asked_of_{axis.name}", __base__=_Comparison, **fields)
    return Annotated[named_of(axis, map=comparison), AfterValidator(_predicate)]


def axis_map(
    name: str, axes: Iterable[Axis], type_of: Callable[[Axis], Any], *, required: Sequence[str] = ()
) -> Any:  # noqa: ANN401 - a type
    """Return the type of a map from axes to values of the types that `type_of` returns.

    It becomes a dict of what the file has, in the order of the file.
    """
    fields: dict[str, Any] = {}
    for axis in axes:
        doc = axis.doc if axis.default is None else f"{axis.doc}; default {axis.default}"
        info = Field(description=doc) if axis.name in required else _optional(doc)
        fields[axis.name] = (type_of(axis), info)
    return Annotated[create_model(name, __base__=Shape, **fields), WrapValidator(_in_order)]


def _in_order(given: Any, checked: ValidatorFunctionWrapHandler) -> dict[str, Any]:  # noqa: ANN401
    values = checked(given)
    return {name: getattr(values, name) for name in given}


@cache
def _range_from(minimum: float | None) -> Any:  # noqa: ANN401 - a model
    number = (whole(minimum), ...)
    return create_model(f"RangeFrom{minimum}", __base__=_IntegerRange, start=number, stop=number)


def _offered(names: Iterable[str]) -> WithJsonSchema:
    """Return a JSON Schema by which editors offer these names and accept others."""
    return WithJsonSchema({"anyOf": [{"enum": list(names)}, {"type": "string", "minLength": 1}]})


def _steps(start: int, stop: int, step: int) -> range:
    return range(start, stop + (1 if step > 0 else -1), step)


def _values(value: object) -> tuple[Any, ...]:
    return tuple(value if isinstance(value, list) else [value])


def _predicate(value: object) -> Predicate:
    return value.predicate() if isinstance(value, _Comparison) else Predicate(_values(value))


def _no_number(value: object) -> object:
    """Refuse numbers among named choices: 1 would equal true."""
    if type(value) is int:
        raise ValueError("needs a name, or true or false")
    return value


def _known_or_factory(names: Iterable[str], wanted: str, name: str) -> str:
    if name in names or _FACTORY.fullmatch(name):
        return name
    module, _, last = name.rpartition(".")
    if module and _FACTORY.fullmatch(f"{module}:{last}"):
        own = f"{module}:NAME, a class or function in that file" if last == "py" else None
        raise ValueError(f"write `{own or f'{module}:{last}'}`")
    raise NotKnown(f"needs {wanted}", names)


def _layers(layers: dict[str, str]) -> dict[str, str]:
    if not all(pattern.strip() for pattern in layers):
        raise ValueError("with an empty layer pattern, needs one such as 'layer1.*'")
    return layers


LAYERS: Any = Annotated[dict[str, _ALGORITHM], Field(min_length=1), AfterValidator(_layers)]


def _list_or_range(value: object) -> object:
    if not isinstance(value, list | dict):
        example = "" if value is None else f", such as [{value}]"
        wanted = "a list or {start, stop, num} or {start, stop, step}"
        raise ValueError(f"needs {wanted}{example}")  # noqa: TRY004 - pydantic's way
    return value
