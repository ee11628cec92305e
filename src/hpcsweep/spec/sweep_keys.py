"""The keys of a sweep file with their types, by pydantic, and the JSON Schema that follows.

`sweep_file` reads a file with them, and checks what a key alone cannot tell. A file of a command
has axes of any name, `run` and `results`: the last part checks these.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, ValidationError, create_model

from hpcsweep.catalog import (
    AXES,
    COMMAND,
    INJECTIONS,
    ON_NODE,
    SETTINGS,
    VISIT,
    WORKLOADS,
    Setting,
    axes_of,
    axis_defaults,
    own_axis,
    settings_of,
)
from hpcsweep.catalog.columns import kinds
from hpcsweep.errors import suggest
from hpcsweep.spec import document, template
from hpcsweep.spec.axis_values import LAYERS, axis_map, condition_on, named_of, value_of, values_of
from hpcsweep.spec.document import Document
from hpcsweep.spec.validation import (
    Count,
    Line,
    Name,
    Positive,
    Shape,
    check,
    choice,
    entry,
    list_of,
    schema_text,
)

COMMAND_KEYS: Final = frozenset({"run", "results", "shell"})
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
    by_name = {name: axis for name, axis in AXES.items() if axis.workloads}
    if workload:
        by_name = axes_of(workload)
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


def checked(doc: Document) -> SweepFile:
    """Return the keys of a file; the document's error names each that is wrong, with its line."""
    workload = doc.data.get("workload")
    if workload == COMMAND.name:
        return _checked_command(doc)
    name = workload if workload in [*WORKLOADS] else ""  # a file may have a list or a map there
    names = frozenset(AXES).intersection(_keys(doc.data))
    try:  # most files have few axes and no mistake
        file = model(name, names).model_validate(doc.data)
    except ValidationError:
        return check(model(name), doc, partial(_unknown, workload))
    for key in COMMAND_KEYS & doc.data.keys():
        raise doc.complaint((key,), _unknown(workload, key))
    return file


def _keys(data: object) -> Iterator[str]:
    """Yield the keys of all maps in a file."""
    unread = [data]
    while unread:
        value = unread.pop()
        if isinstance(value, dict):
            yield from value
            unread += value.values()
        elif isinstance(value, list):
            unread += value


def _unknown(workload: object, key: str) -> str:
    """Return the complaint about a key that files of this workload do not have."""
    known = {*AXES, *SETTINGS, *COMMAND_KEYS}
    return f"means nothing to {workload}" if key in known else "unknown key"


def _checked_command(doc: Document) -> SweepFile:
    """Return the keys of a command's file; an error names a wrong template, axis or result."""
    own_axes = _own_axes(doc)
    file = check(model(COMMAND.name, own_axes), doc)
    _check_templates(doc, file, [*own_axes, *axis_defaults(COMMAND.name), template.OUT])
    _check_results(doc, file.results, {*kinds(), *own_axes})
    return file


def _own_axes(doc: Document) -> tuple[str, ...]:
    """Return the axes in the order of the file, without those that every workload has."""
    included = doc.data.get("include")
    maps = [doc.data.get("axes")]
    if isinstance(included, list):
        maps += included
    names: dict[str, None] = {}  # each once, in their order
    for axes in maps:
        if isinstance(axes, dict):
            names |= dict.fromkeys(axes)
    taken = {*kinds(), template.OUT}.difference(AXES) | {ON_NODE}
    for name in names:
        loc = ("axes", name)
        # an attribute of the model would be hidden by a field of that name
        if not name.isidentifier() or name.startswith("_") or hasattr(Shape, name):
            raise doc.complaint(loc, "cannot name an axis, which needs letters, digits, `_`")
        if name in taken:
            raise doc.complaint(loc, "is a name of hpcsweep's own; give the axis another one")
    return tuple(name for name in names if name not in axis_defaults(COMMAND.name))


def _check_templates(doc: Document, file: SweepFile, known: Iterable[str]) -> None:
    if not file.run.strip():
        raise doc.complaint(("run",), "needs a command, such as `python train.py --lr {lr}`")
    templates: dict[document.Loc, str] = {
        ("run",): file.run,
        ("results", "json"): file.results.in_json or "",
        ("results", "csv"): file.results.csv or "",
    }
    for loc, text in templates.items():
        try:
            unknown = set(template.names_in(text)).difference(known)
            if not file.shell:
                shlex.split(text)
        except ValueError as error:
            raise doc.complaint(loc, str(error)) from None
        for name in unknown:
            axes = ", ".join(name for name in known if name != VISIT)
            what = f"{{{name}}} is no axis of this sweep; there is {axes}{suggest(name, known)}"
            raise doc.complaint(loc, what)


def _check_results(doc: Document, results: CommandResults, taken: Iterable[str]) -> None:
    """Check where a command says its results, whose names are none of the `taken` ones."""
    ways = [way for way in (results.in_json, results.csv, results.pattern) if way]
    if len(ways) > 1:
        raise doc.complaint(("results",), "needs one of json, csv, pattern")
    if results.columns and not ways:
        raise doc.complaint(("results",), "names columns of nothing: needs json, csv or pattern")
    names: Iterable[str] = results.columns
    if results.pattern:
        groups = _groups(doc, results.pattern)
        for name in results.columns.values():
            if name not in groups:
                text = f"no group of the pattern is called {name}{suggest(name, groups)}"
                raise doc.complaint(("results", "columns"), text)
        names = names or groups
    for name in names:
        if name in taken:
            text = f"a result cannot be called {name}, which is a column already"
            raise doc.complaint(("results",), f"{text}; `columns: {{NAME: {name}}}` renames it")


def _groups(doc: Document, pattern: str) -> Mapping[str, int]:
    """Return the named groups of a regular expression, which needs some."""
    loc = ("results", "pattern")
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise doc.complaint(loc, f"is no regular expression: {error}") from None
    if not groups:
        raise doc.complaint(loc, r"has no named group, such as `loss (?P<loss>\S+)`")
    return groups
