"""Reads what sweep files of commands have of their own: axes of any name, `run`, `results`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

from hpcsweep.catalog import AXES, COMMAND, VISIT, axis_defaults
from hpcsweep.catalog.short_table import kinds
from hpcsweep.errors import suggest
from hpcsweep.spec import template
from hpcsweep.spec.document import Document
from hpcsweep.spec.sweep_keys import SweepFile, model
from hpcsweep.spec.validation import Shape, check

KEYS: Final = {"run", "results", "shell"}


def checked(doc: Document) -> SweepFile:
    """Return the keys of a file; `SpecError` names a wrong template, axis or result."""
    own = _own_axes(doc)
    file = check(model(COMMAND.name, own), doc)
    _check_templates(doc, file, [*own, *axis_defaults(COMMAND.name), template.OUT])
    _check_results(doc, file, own)
    return file


def settings(doc: Document) -> dict[str, Any]:
    """Return what of the command is part of each point: the keys that the file has."""
    return {key: doc.data[key] for key in sorted(KEYS & doc.data.keys())}


def _own_axes(doc: Document) -> tuple[str, ...]:
    """Return the axes in the order of the file, without those that every workload has."""
    included = doc.data.get("include")
    maps = [doc.data.get("axes"), *(included if isinstance(included, list) else ())]
    names = dict.fromkeys(chain.from_iterable(of for of in maps if isinstance(of, dict)))
    taken = {*kinds(), template.OUT}.difference(AXES)
    for name in names:
        loc = ("axes", name)
        if not name.isidentifier() or name.startswith("_") or hasattr(Shape, name):
            raise doc.complaint(loc, "cannot name an axis, which needs letters, digits, `_`")
        if name in taken:
            raise doc.complaint(loc, "is a name of hpcsweep's own; give the axis another one")
    return tuple(name for name in names if name not in axis_defaults(COMMAND.name))


def _check_templates(doc: Document, file: SweepFile, known: Iterable[str]) -> None:
    if not file.run.strip():
        raise doc.complaint(("run",), "needs a command, such as `python train.py --lr {lr}`")
    files = (("results", "json"), file.results.in_json), (("results", "csv"), file.results.csv)
    for loc, text in ((("run",), file.run), *files):
        try:
            unknown = set(template.names_in(text or "")).difference(known)
            shlex.split("" if file.shell else text or "")
        except ValueError as error:
            raise doc.complaint(loc, str(error)) from None
        for name in unknown:
            axes = ", ".join(name for name in known if name != VISIT)
            told = f"{{{name}}} is no axis of this sweep; there is {axes}{suggest(name, known)}"
            raise doc.complaint(loc, told)


def _check_results(doc: Document, file: SweepFile, own: Iterable[str]) -> None:
    results = file.results
    if len([how for how in (results.in_json, results.csv, results.pattern) if how]) > 1:
        raise doc.complaint(("results",), "needs one of json, csv, pattern")
    names: Iterable[str] = results.columns
    if results.columns and not (results.in_json or results.csv or results.pattern):
        raise doc.complaint(("results",), "names columns of nothing: needs json, csv or pattern")
    if results.pattern:
        loc = ("results", "pattern")
        try:
            groups = re.compile(results.pattern).groupindex
        except re.error as error:
            raise doc.complaint(loc, f"is no regular expression: {error}") from None
        if not groups:
            raise doc.complaint(loc, r"has no named group, such as `loss (?P<loss>\S+)`")
        for name in results.columns.values():
            if name not in groups:
                told = f"no group of the pattern is called {name}{suggest(name, groups)}"
                raise doc.complaint(("results", "columns"), told)
        names = names or groups
    for name in names:
        if name in {*kinds(), *own}:
            told = f"a result cannot be called {name}, which is a column already"
            raise doc.complaint(("results",), f"{told}; `columns: {{NAME: {name}}}` renames it")
