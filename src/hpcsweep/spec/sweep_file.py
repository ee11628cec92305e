"""Reads a sweep file into a frozen `Sweep`; an error has file, line, key and a suggestion.

`sweep_keys` checks the keys one by one; `constraints` checks axes and constraints together. A file
of a command has axes of any name, `run` and `results`: the second half checks them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from hpcsweep import files
from hpcsweep.catalog import (
    AXES,
    COMMAND,
    SETTINGS,
    VISIT,
    WORKLOADS,
    axis_defaults,
    is_algorithm,
)
from hpcsweep.catalog.short_table import kinds
from hpcsweep.errors import SpecError, suggest
from hpcsweep.point import canonical_json
from hpcsweep.spec import document, lookup, template
from hpcsweep.spec.constraints import Reader
from hpcsweep.spec.document import Document
from hpcsweep.spec.space import Sweep
from hpcsweep.spec.sweep_keys import CommandResults, SweepFile, model
from hpcsweep.spec.validation import Shape, check

__all__ = ["Sweep", "load"]
COMMAND_KEYS: Final = frozenset({"run", "results", "shell"})


def load(name_or_path: str | os.PathLike[str], *, name: str = "") -> Sweep:
    """Read a sweep by name or path.

    A sweep without a name in its file is called `name`, else like the file.

    Raises:
        SpecError: the file is missing or wrong; the text has file, line and key.
    """
    path = lookup.find(lookup.SWEEPS, name_or_path, SpecError)
    doc = document.read_document(path, SpecError)
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
        path=path,
        text=doc.text,
    )
    return _with_named_maps(doc, file.maps, sweep)


def _checked(doc: Document) -> SweepFile:
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
    if file.workload == COMMAND.name:
        return settings | {key: doc.data[key] for key in sorted(COMMAND_KEYS & doc.data.keys())}
    if "fail" in settings:
        settings["fail"] = doc.data.get("measure", {}).get("fail", [])  # without defaults
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


def _checked_command(doc: Document) -> SweepFile:
    """Return the keys of a command's file; `SpecError` names a wrong template, axis or result."""
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
    taken = {*kinds(), template.OUT}.difference(AXES)
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
