"""Reads a sweep file into a frozen `Sweep`; an error has file, line, key and a suggestion.

`sweep_keys` checks the keys one by one; `constraints` checks axes and constraints together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from hpcsweep import files
from hpcsweep.catalog import (
    AXES,
    COMMAND,
    SETTINGS,
    WORKLOADS,
    is_algorithm,
)
from hpcsweep.errors import SpecError
from hpcsweep.point import canonical_json
from hpcsweep.spec import command_sweep, document, lookup
from hpcsweep.spec.constraints import Reader
from hpcsweep.spec.document import Document
from hpcsweep.spec.space import Sweep
from hpcsweep.spec.sweep_keys import SweepFile, model
from hpcsweep.spec.validation import (
    check,
)

__all__ = ["Sweep", "load"]


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
        return command_sweep.checked(doc)
    name = workload if workload in [*WORKLOADS] else ""  # a file may have a list or a map there
    names = frozenset(AXES).intersection(_keys(doc.data))
    try:  # most files have few axes and no mistake
        file = model(name, names).model_validate(doc.data)
    except ValidationError:
        return check(model(name), doc, partial(_unknown, workload))
    for key in command_sweep.KEYS & doc.data.keys():
        raise doc.complaint((key,), _unknown(workload, key))
    return file


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
    known = {*AXES, *SETTINGS, *command_sweep.KEYS}
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
        return {**settings, **command_sweep.settings(doc)}
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
