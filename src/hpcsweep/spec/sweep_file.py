"""A sweep file to a frozen `Sweep`; every complaint has file, line, key and suggestion.

pydantic holds the shape of the file (which keys, of what type) and writes its JSON Schema; what
the axes and constraints mean together is `constraints`' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from hpcsweep import files
from hpcsweep.catalog import INJECTIONS, SETTINGS, WORKLOADS, settings_of
from hpcsweep.errors import SpecError, suggest
from hpcsweep.spec import axis_values, document, lookup
from hpcsweep.spec import json_schema as schema
from hpcsweep.spec.constraints import Reader
from hpcsweep.spec.space import Sweep
from hpcsweep.spec.validation import check, integral

if TYPE_CHECKING:
    import os

    from hpcsweep.catalog import Setting
    from hpcsweep.spec.document import Document

__all__ = ["Sweep", "SweepFile", "json_schema", "load"]

# a name becomes a folder's name; the same pattern guards the results


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=False)


class Failure(_Shape):
    """A failure that a no-op point is made to have."""

    when: dict[str, Any] = Field(default={}, description="axis to value; empty: every point")
    how: Literal[tuple(INJECTIONS)] = Field(description="what happens")  # type: ignore[valid-type]
    attempts: Annotated[int, Field(ge=1), BeforeValidator(integral)] | None = Field(
        default=None, description="the first so many tries fail; left out: all of them"
    )


class Rule(_Shape):
    """Other values of some axes, where others match."""

    condition: dict[str, Any] = Field(alias="if", description="axis to value, list or comparison")
    axes: dict[str, Any] = Field(description="axis to values, instead of its own")


def _no_number(value: object) -> object:
    """Keep 1 from being taken for true among named choices."""
    if type(value) is int:
        raise ValueError("needs a name, or true or false")
    return value


def _setting_type(setting: Setting) -> Any:  # noqa: ANN401 - a type
    named: Any = Literal[setting.choices] if setting.choices else None
    if setting.kind == "list":
        return list[named] if named else list[Failure]
    if named:
        return Annotated[named, BeforeValidator(_no_number)]
    if setting.kind == "int":
        return Annotated[int, Field(ge=setting.minimum), BeforeValidator(integral)]
    if setting.kind == "float":
        return Annotated[float, Field(ge=setting.minimum, allow_inf_nan=False)]
    return {"bool": bool, "str": str}[setting.kind]


_SETTINGS: Any = {
    name: (_setting_type(item), Field(default=item.default, description=item.doc))
    for name, item in SETTINGS.items()
}
Measure: Any = create_model(
    "Measure", __base__=_Shape, __doc__="How a point is measured.", **_SETTINGS
)


class SweepFile(_Shape):
    """A sweep: which points are measured, and how."""

    name: str = Field(default="", description="names the results folder; default: the file's name")
    description: str = Field(default="", description="free text")
    workload: Literal["inference", "training", "noop"] = Field(description="what a point runs")
    axes: dict[str, Any] = Field(default={}, description="axis to values; all combinations")
    zip: list[list[str]] = Field(default=[], description="groups of axes that move together")
    when: list[Rule] = Field(default=[], description="axes that depend on others; the last wins")
    exclude: list[dict[str, Any]] = Field(default=[], description="combinations to leave out")
    include: list[dict[str, Any]] = Field(default=[], description="points to add")
    measure: Measure = Field(default_factory=Measure, description="how a point is measured")
    point_timeout: float = Field(
        default=600.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds after which a point is given up; in training, for each epoch",
    )


def load(name_or_path: str | os.PathLike[str], *, name: str = "") -> Sweep:
    """Read a sweep by name or path; `SpecError` says what is wrong with it.

    `name` stands in for the file's stem where the file does not name the sweep.
    """
    path = lookup.find(lookup.SWEEPS, name_or_path, SpecError)
    doc = document.read(path, SpecError)
    _check_settings(doc)
    file = check(SweepFile, doc)
    reader = Reader(doc, file.workload)
    _check_failures(doc, reader)
    return Sweep(
        name=_name(doc, file.name or name or path.stem, given="name" in doc.data),
        workload=file.workload,
        space=reader.space,
        include=reader.include,
        measure=_settings(doc, file),
        point_timeout=file.point_timeout,
        description=file.description,
        rules=reader.rules(),
        path=path,
        text=doc.text,
    )


def json_schema() -> str:
    """Return the JSON Schema of sweep files, as it is committed in sweeps/schema.json."""
    return schema.sweep(SweepFile.model_json_schema())


def _name(doc: Document, name: str, *, given: bool) -> str:
    if not files.may_name_a_sweep(name):
        where = ("name",) if given else ()
        what = "" if given else "the file's name is the sweep's, where it has no `name`: "
        raise doc.complaint(where, f"{what}found {document.show(name)}, {files.SWEEP_NAMES}")
    return name


def _check_settings(doc: Document) -> None:
    """Complain about a setting that the workload does not have."""
    workload, given = doc.data.get("workload"), doc.data.get("measure")
    if workload not in WORKLOADS or not isinstance(given, dict):
        return  # the shape is wrong, which is told elsewhere
    known = settings_of(workload)
    for key in given:
        if key not in known:
            what = f"means nothing to {workload}" if key in SETTINGS else "unknown key"
            allowed = f"allowed are {', '.join(known)}{suggest(key, known)}"
            raise doc.complaint(("measure", key), f"{what}, {allowed}")


def _settings(doc: Document, file: SweepFile) -> dict[str, Any]:
    """Return all settings of the workload, defaults filled in."""
    settings = {key: getattr(file.measure, key) for key in settings_of(file.workload)}
    if "fail" in settings:
        settings["fail"] = tuple(doc.data.get("measure", {}).get("fail", ()))  # as it was written
    return settings


def _check_failures(doc: Document, reader: Reader) -> None:
    """Hold the axes and values of `measure.fail` against the sweep; any GPU may be named."""
    for i, raw in enumerate(doc.data.get("measure", {}).get("fail", [])):
        for name, wanted in raw.get("when", {}).items():
            loc = ("measure", "fail", i, "when", name)
            axis = reader.axis(loc, name)
            for item in wanted if isinstance(wanted, list) else [wanted]:
                value = axis_values.value(doc, loc, axis, item, any_model=True)
                if axis.kind == "gpu" or any(value == point[name] for point in reader.include):
                    continue
                have = reader.has(name, value)
                if have is not None:
                    names = ", ".join(map(str, have))
                    text = f"{name} has no {document.show(item)}, it has {names}"
                    raise doc.complaint(loc, text + suggest(str(item), map(str, have)))
