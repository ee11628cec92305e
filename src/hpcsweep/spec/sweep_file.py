"""Reads a sweep file into a frozen `Sweep`; an error has file, line, key and a suggestion.

pydantic checks the keys one by one and writes the JSON Schema; `constraints` checks axes and
constraints together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, ValidationError, create_model

from hpcsweep import files
from hpcsweep.catalog import (
    AXES,
    INJECTIONS,
    SETTINGS,
    VISIT,
    WORKLOADS,
    Setting,
    axes_of,
    is_algorithm,
    settings_of,
)
from hpcsweep.errors import SpecError
from hpcsweep.point import canonical_json
from hpcsweep.records import replace
from hpcsweep.spec import document, lookup
from hpcsweep.spec.axis_values import LAYERS, axis_map, condition_on, named_of, value_of, values_of
from hpcsweep.spec.constraints import Reader
from hpcsweep.spec.document import Document
from hpcsweep.spec.space import Sweep
from hpcsweep.spec.validation import (
    Count,
    Name,
    Positive,
    Shape,
    check,
    choice,
    entry,
    list_of,
    schema_text,
)

__all__ = ["Sweep", "SweepFile", "load", "model", "schema"]

_FILLED: Any = Field(json_schema_extra={"minProperties": 1})
_ZIPPED: Final[Any] = {"min_length": 2, "json_schema_extra": {"uniqueItems": True}}

M = TypeVar("M", bound=Shape)


class Failure(Shape):
    """A failure that is injected into no-op points."""

    when: Any = entry("axis to value; empty: every point", default={})
    how: Literal[tuple(INJECTIONS)] = Field(description="what happens")  # type: ignore[valid-type]
    attempts: Count | None = entry("the first so many tries fail; left out: all of them")


class Rule(Shape):
    """Other values of some axes, in the combinations that match a condition."""

    condition: Annotated[Any, _FILLED] = Field(
        alias="if", description="axis to value, list or comparison"
    )
    axes: Annotated[Any, _FILLED] = Field(description="axis to values, instead of its own")


class SweepFile(Shape):
    """A sweep: which points are measured, and how."""

    name: str = entry("names the results folder; default: the file's name", default="")
    description: str = entry("free text", default="")
    workload: Literal["inference", "training", "noop"] = Field(description="what a point runs")
    axes: Any = entry("axis to values; all combinations", default={})
    zip: Any = entry("groups of axes that move together", default=[])
    when: Any = entry("axes that depend on others; the last wins", default=[])
    exclude: Any = entry("combinations to leave out", default=[])
    include: Any = entry("points to add", default=[])
    maps: Any = entry(
        "names for maps of layers to algorithms that the axis `algorithm` has", default={}
    )
    measure: Any = entry("how a point is measured", default={}, validate_default=True)
    point_timeout: Positive = entry(
        "seconds after which a point is given up; in training, for each epoch", default=600.0
    )


@cache
def model(workload: str = "", names: frozenset[str] | None = None) -> type[SweepFile]:
    """Return the model of a workload's sweep files, with `names` only of `model` and these axes."""
    by_name = {**(axes_of(workload) if workload else AXES)}
    del by_name[VISIT]  # a file has `measure: {repeats: N}` instead
    axes = [axis for axis in by_name.values() if names is None or axis.name in {"model", *names}]
    # a no-op accepts any name as a model, since it runs none
    free = {"model"} if workload == "noop" else set[str]()
    real = [replace(axis, kind="str") if axis.kind in free else axis for axis in axes]
    values: Any = axis_map("Axes", real, values_of)
    condition: Any = axis_map("Condition", axes, condition_on)
    failure = _typed(Failure, {"when": axis_map("Cases", axes, named_of)})
    settings = settings_of(workload) if workload else SETTINGS
    types = {
        "axes": values,
        "zip": list_of(list_of(choice(by_name), **_ZIPPED)),
        "when": list_of(_typed(Rule, {"condition": condition, "axes": values})),
        "exclude": list_of(Annotated[condition, _FILLED]),
        "maps": dict[Name, LAYERS],
        "include": list_of(axis_map("Point", real, value_of, required=["model"])),
        "measure": _measure(settings.values(), failure),
    }
    return _typed(SweepFile, types)


def _typed(base: type[M], types: Mapping[str, Any]) -> type[M]:
    """Return a copy of a model, with other types for some fields."""
    fields: Any = {name: (type_, base.model_fields[name]) for name, type_ in types.items()}
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def _measure(settings: Iterable[Setting], failure: type[Failure]) -> type[Shape]:
    fields: Any = {
        item.name: (_setting(item, failure), entry(item.doc, default=item.default))
        for item in settings
    }
    return create_model("Measure", __base__=Shape, __doc__="How a point is measured.", **fields)


def _setting(setting: Setting, failure: type[Failure]) -> Any:  # noqa: ANN401 - a type
    if setting.kind == "list":
        return list_of(choice(setting.choices) if setting.choices else failure)
    return str if setting.kind == "str" and not setting.choices else value_of(setting)


def load(name_or_path: str | os.PathLike[str], *, name: str = "") -> Sweep:
    """Read a sweep by name or path.

    A sweep without a name in its file is called `name`, else like the file.

    Raises:
        SpecError: the file is missing or wrong; the text has file, line and key.
    """
    path = lookup.find(lookup.SWEEPS, name_or_path, SpecError)
    doc = document.read(path, SpecError)
    file = _checked(doc)
    reader = Reader(doc, file)
    sweep = Sweep(
        name=_name(doc, file.name or name or path.stem, given="name" in doc.data),
        workload=file.workload,
        space=reader.space,
        include=reader.include,
        measure=_settings(doc, file),
        repeats=file.measure.repeats,
        point_timeout=file.point_timeout,
        description=file.description,
        rules=reader.rules(),
        path=path,
        text=doc.text,
    )
    return _with_named_maps(doc, file.maps, sweep)


def schema() -> str:
    """Return the JSON Schema of sweep files (sweeps/schema.json)."""
    return schema_text(model(), "A sweep of hpcsweep")


def _checked(doc: Document) -> SweepFile:
    workload = doc.data.get("workload")
    name = workload if workload in WORKLOADS else ""
    names = frozenset(AXES).intersection(_keys(doc.data))
    try:  # most files have few axes and no mistake
        return model(name, names).model_validate(doc.data)
    except ValidationError:
        return check(model(name), doc, partial(_unknown, workload))


def _keys(data: object) -> Iterator[str]:
    """Yield the keys of all maps in a file."""
    left = [data]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from value
            left += value.values()
        elif isinstance(value, list):
            left += value


def _unknown(workload: object, key: str) -> str:
    """Return the complaint about a key that files of this workload do not have."""
    return f"means nothing to {workload}" if key in {*AXES, *SETTINGS} else "unknown key"


def _name(doc: Document, name: str, *, given: bool) -> str:
    if not files.may_name_a_sweep(name):
        where = ("name",) if given else ()
        what = "" if given else "the file's name is the sweep's, where it has no `name`: "
        fit = re.sub(r"[^\w.-]+|\.{2,}", "_", name, flags=re.ASCII).lstrip("-.")
        hint = f"; write `name: {fit}`" if files.may_name_a_sweep(fit) else ""
        raise doc.complaint(where, f"{what}found {document.show(name)}, {files.SWEEP_NAMES}{hint}")
    return name


def _settings(doc: Document, file: SweepFile) -> dict[str, Any]:
    """Return all settings of a point of the workload, defaults filled in."""
    settings = {name: value for name, value in file.measure if name != "repeats"}
    if "fail" in settings:
        settings["fail"] = tuple(doc.data.get("measure", {}).get("fail", ()))  # without defaults
    return settings


def _with_named_maps(doc: Document, maps: Mapping[str, Mapping[str, str]], sweep: Sweep) -> Sweep:
    """Return the sweep with the names of its maps; complain about unused or repeated maps."""
    named: dict[str, str] = {}
    used = {canonical_json(value) for value in sweep.values("algorithm")}
    for name, layers in maps.items():
        text = canonical_json(layers)
        if is_algorithm(name):
            raise doc.complaint(("maps", name), "is the name of an algorithm, needs another one")
        if text in named:
            raise doc.complaint(("maps", name), f"is the same map as '{named[text]}'")
        if text not in used:
            raise doc.complaint(("maps", name), "no axis `algorithm` of this sweep has this map")
        named[text] = name
    return replace(sweep, maps=named)
