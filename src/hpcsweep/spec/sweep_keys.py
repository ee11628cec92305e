"""The keys of a sweep file with their types, by pydantic, and the JSON Schema that follows.

`sweep_file` reads a file with them; what a key alone cannot tell, `constraints` checks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, create_model

from hpcsweep.catalog import (
    AXES,
    COMMAND,
    INJECTIONS,
    SETTINGS,
    VISIT,
    WORKLOADS,
    Setting,
    axes_of,
    own_axis,
    settings_of,
)
from hpcsweep.spec.axis_values import LAYERS, axis_map, condition_on, named_of, value_of, values_of
from hpcsweep.spec.validation import (
    Count,
    Line,
    Name,
    Positive,
    Shape,
    choice,
    entry,
    list_of,
    schema_text,
)

_FILLED: Any = Field(json_schema_extra={"minProperties": 1})
_ZIPPED: Final[Any] = {"min_length": 2, "json_schema_extra": {"uniqueItems": True}}

# keys whose axes a command calls as it likes, so that only other workloads have a schema of them
_WITH_AXES: Final = ("axes", "zip", "when", "exclude", "include")

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


class CommandResults(Shape):
    """Where a command says its results: one of `json`, `csv` and `pattern`, or nowhere."""

    in_json: Line | None = entry(
        "`last_line`: the last line of its output that is a JSON object; else a file",
        alias="json",
    )
    csv: Line | None = entry("a file, of which the last row counts")
    pattern: Line | None = entry(
        "a regular expression with named groups; its last match in the output counts"
    )
    columns: dict[str, str] = entry("column to name in the results; default: all", default={})


class SweepFile(Shape):
    """A sweep: which points are measured, and how."""

    name: str = entry("names the results folder; default: the file's name", default="")
    description: str = entry("free text", default="")
    workload: Literal[tuple(WORKLOADS)] = Field(description="what a point runs")  # type: ignore[valid-type]
    axes: Any = entry("axis to values; all combinations", default={})
    zip: Any = entry("groups of axes that move together", default=[])
    when: Any = entry("axes that depend on others; the last wins", default=[])
    exclude: Any = entry("combinations to leave out", default=[])
    include: Any = entry("points to add", default=[])
    maps: Any = entry(
        "names for maps of layers to algorithms that the axis `algorithm` has", default={}
    )
    measure: Any = entry("how a point is measured", default={}, validate_default=True)
    run: str = entry("workload command: the command, with axes in braces", default="")
    results: CommandResults = entry(
        "workload command: where it says its results", default={}, validate_default=True
    )
    shell: bool = entry("workload command: `run` is a line for /bin/sh", default=False)
    point_timeout: Positive = entry(
        "seconds after which a point is given up; in training, for each epoch", default=600.0
    )


@cache
def model(workload: str = "", names: Collection[str] | None = None) -> type[SweepFile]:
    """Return the model of a workload's sweep files, with `names` only of `model` and these axes.

    Of a command, `names` are its own axes.
    """
    by_name = {**(axes_of(workload) if workload else AXES)}
    del by_name[VISIT]  # a file has `measure: {repeats: N}` instead
    is_command = workload == COMMAND.name
    if is_command:
        for name in names or ():
            by_name.setdefault(name, own_axis(name))
        names = None
    axes = [axis for axis in by_name.values() if names is None or axis.name in {"model", *names}]
    real = axes
    if workload and not WORKLOADS[workload].runs_network:
        # a no-op accepts any name as a model, since it runs none
        real = [replace(axis, kind="str") if axis.kind == "model" else axis for axis in axes]
    values: Any = axis_map("Axes", real, values_of)
    condition: Any = axis_map("Condition", axes, condition_on)
    failure = _typed(Failure, {"when": axis_map("Cases", axes, named_of)})
    settings = settings_of(workload) if workload else SETTINGS
    needed = [] if is_command else ["model"]
    types = {
        "axes": values,
        "zip": list_of(list_of(choice(by_name), **_ZIPPED)),
        "when": list_of(_typed(Rule, {"condition": condition, "axes": values})),
        "exclude": list_of(Annotated[condition, _FILLED]),
        "maps": dict[Name, LAYERS],
        "include": list_of(axis_map("Point", real, value_of, required=needed)),
        "measure": _measure(settings.values(), failure),
    }
    return _typed(SweepFile, types)


def _typed(base: type[M], types: Mapping[str, Any]) -> type[M]:
    """Return a copy of a model, with other types for some fields."""
    fields: Any = {name: (type_, base.model_fields[name]) for name, type_ in types.items()}
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def _measure(settings: Iterable[Setting], failure: type[Failure]) -> type[Shape]:
    fields: dict[str, Any] = {}
    for setting in settings:
        field = entry(setting.doc, default=setting.default)
        fields[setting.name] = (_setting(setting, failure), field)
    return create_model("Measure", __base__=Shape, __doc__="How a point is measured.", **fields)


def _setting(setting: Setting, failure: type[Failure]) -> Any:  # noqa: ANN401 - a type
    if setting.kind == "list":
        return list_of(choice(setting.choices) if setting.choices else failure)
    if setting.kind == "str" and not setting.choices:
        return str
    return value_of(setting)


def schema() -> str:
    """Return the JSON Schema of sweep files (sweeps/schema.json)."""
    record = json.loads(schema_text(model(), "A sweep of hpcsweep"))
    properties = record["properties"]
    record["if"] = {"properties": {"workload": {"const": COMMAND.name}}}
    record["else"] = {"properties": {key: properties[key] for key in _WITH_AXES}}
    properties.update({key: {"description": properties[key]["description"]} for key in _WITH_AXES})
    return json.dumps(record, indent=1, sort_keys=True) + "\n"
