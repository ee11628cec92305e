"""Reads a sweep file into a frozen `Sweep`; an error has file, line, key and a suggestion.

`sweep_keys` checks the keys one by one; here `axes`, `zip`, `exclude`, `include` and `when` are
checked together. Each may be valid, and the file still wrong: an exclude that matches nothing, a
repeated point, an image that is too small for its network. The combinations are counted for this,
not listed (see `space`), so a large sweep takes no longer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from hpcsweep import files
from hpcsweep.catalog import COMMAND, VISIT, WORKLOADS, axis_defaults, is_algorithm
from hpcsweep.catalog.models import MODELS
from hpcsweep.errors import SpecError, suggest
from hpcsweep.point import canonical_json, same
from hpcsweep.spec import document, lookup
from hpcsweep.spec.document import Complaints, Document, show
from hpcsweep.spec.space import Condition, Grid, Predicate, Space, Sweep, When, grid_of
from hpcsweep.spec.sweep_keys import COMMAND_KEYS, SweepFile, checked

__all__ = ["Sweep", "load"]
Loc = tuple[str | int, ...]

# What goes through all points, as `show` does, takes a minute for so many. Nobody measures them all
# (see `MOST_POINTS` in `expansion`), but a sample may be taken of them.
MAX_POINTS: Final = 10_000_000
# Counting takes some seconds with so many looks at values, or kinds of combinations. Without a
# limit, 17 conditions on 34 axes of two values took 27 s.
MAX_ASKED: Final = 5_000_000
MAX_KINDS: Final = 1_000_000
_SHOWN: Final = 12  # values of an axis in a complaint: a line or two
_SIDES: Final = ("input_size", "input_width")  # of an image


def load(name_or_path: str | os.PathLike[str], *, name: str = "") -> Sweep:
    """Read a sweep by name or path.

    A sweep without a name in its file is called `name`, else like the file.

    Raises:
        SpecError: the file is missing or wrong; the text has file, line and key.
    """
    path = lookup.find(lookup.SWEEPS, name_or_path, SpecError)
    doc = document.read_document(path, SpecError)
    file = checked(doc)
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


class Reader:
    """Reads the axes and constraints of one file into `space` and `include`."""

    def __init__(self, doc: Document, file: SweepFile) -> None:
        """Read and check the file; raise the document's error with a line for each mistake."""
        self.doc = doc
        self.file = file
        self._wrong = Complaints(doc)
        self._models = MODELS if WORKLOADS[file.workload].runs_network else {}
        self.include: tuple[Mapping[str, Any], ...] = ()
        with self._wrong.kept():
            self._read(file)
        self._wrong.tell()

    def _read(self, file: SweepFile) -> None:
        defaults = axis_defaults(file.workload)
        if file.workload == COMMAND.name:
            own = [name for given in (file.axes, *file.include) for name in given]
            visit = defaults.pop(VISIT)  # it stays the last one
            defaults = {**defaults, **dict.fromkeys(own), **defaults, VISIT: visit}
        axes = dict(file.axes)
        self._check_zips(axes)
        zips = tuple(map(tuple, file.zip))
        if axes and file.measure.repeats > 1:
            axes[VISIT] = range(1, file.measure.repeats + 1)
        # an `if` may name values of `axes`, but no value that only a rule has
        self.space = Space(axes, defaults)
        whens = tuple(self._whens(axes))
        self.space = Space(axes, defaults, zips, (), whens)
        for i, condition in enumerate(file.exclude):
            with self._wrong.kept():
                self._check_condition(("exclude", i), condition, self.space.names())
        if self._wrong:
            return  # later complaints could follow from these
        self.space = Space(axes, defaults, zips, tuple(file.exclude), whens)
        self.include = tuple({**defaults, **point} for point in file.include)
        self._check_together()

    def _check_zips(self, axes: Mapping[str, Sequence[Any]]) -> None:
        seen: dict[str, int] = {}
        for i, group in enumerate(self.file.zip):
            with self._wrong.kept():
                for j, name in enumerate(group):
                    loc = ("zip", i, j)
                    if name not in axes:
                        text = f"{name} has no values under `axes`, needs {', '.join(axes)}"
                        raise self.doc.complaint(loc, text + suggest(name, axes))
                    if name in seen:
                        line = self.doc.line(("zip", seen[name]))
                        text = f"{name} is named already in line {line}"
                        raise self.doc.complaint(loc, f"{text}; an axis moves with one group")
                    seen[name] = i
                self._check_rows(("zip", i), {name: axes[name] for name in group})
        for name in axes:
            if name not in seen:
                self._no_repeats(("axes", name), axes[name])

    def _check_rows(self, loc: Loc, columns: Mapping[str, Sequence[Any]]) -> None:
        if len(set(map(len, columns.values()))) > 1:
            text = ", ".join(f"{name} has {len(values)}" for name, values in columns.items())
            text = f"{text} values; axes that move together need the same number"
            raise self.doc.complaint(loc, text)
        for first, again in _repeats(zip(*columns.values(), strict=True)):
            text = f"rows {first + 1} and {again + 1} are the same point; remove one"
            raise self.doc.complaint(loc, text)

    def _no_repeats(self, loc: Loc, values: Sequence[Any]) -> None:
        if isinstance(values, range):
            return  # nothing is repeated in it
        for first, again in _repeats(values):
            line = self.doc.line((*loc, first))
            text = f"{show(values[again])} is repeated, first in line {line}; remove one"
            self._wrong.add((*loc, again), text)

    def _whens(self, axes: Mapping[str, Sequence[Any]]) -> Iterator[When]:
        zipped = {name for group in self.file.zip for name in group}
        places: dict[str, Loc] = {}  # of axes that rules set
        for i, rule in enumerate(self.file.when):
            places |= {name: ("when", i, "axes", name) for name in rule.axes}
        for i, rule in enumerate(self.file.when):
            if not rule.axes:
                text = "found an empty map, needs axis: [values]"
                raise self.doc.complaint(("when", i, "axes"), text)
            for name, values in rule.axes.items():
                loc = ("when", i, "axes", name)
                if name in zipped:
                    text = f"{name} moves with a zip group; a rule cannot set it"
                    raise self.doc.complaint(loc, text)
                self._no_repeats(loc, values)
            for name in rule.condition:
                if name in places:
                    line = self.doc.line(places[name])
                    text = f"{name} is set by a rule itself (line {line}); ask for another axis"
                    raise self.doc.complaint(("when", i, "if", name), text)
            self._check_condition(("when", i, "if"), rule.condition, axes)
            yield When(rule.condition, rule.axes)

    def _check_condition(self, loc: Loc, condition: Condition, names: Collection[str]) -> None:
        """Complain about axes and values that the sweep lacks."""
        if not condition:
            raise self.doc.complaint(loc, "found an empty map, needs axis: value")
        for name, test in condition.items():
            if name not in names:
                text = f"{name} is no axis of this sweep, which has {', '.join(names) or 'none'}"
                self._wrong.add((*loc, name), f"{text}{suggest(name, names)}")
            elif test.bounds:
                self._check_numbers((*loc, name), name)
            else:
                self._check_members((*loc, name), name, test.values)

    def _check_members(self, loc: Loc, name: str, values: Collection[Any]) -> None:
        """Complain about values in a condition that the axis does not have."""
        if (*loc, "not") in self.doc.lines:
            loc = (*loc, "not")
        sources = self.space.sources(name)
        for i, value in enumerate(values):
            if not any(_has(source, value) for source in sources):
                known = (_spelled(value) for value in self.space.values(name))
                names = list(dict.fromkeys(islice(known, _SHOWN)))
                text = f"{name} has no {show(value)}, it has {', '.join(names)}"
                self._wrong.add(self._item(loc, i), text + suggest(str(value), names))

    def _item(self, loc: Loc, i: int) -> Loc:
        """Return the place of a value in a list; of a single value or a range, its own place."""
        return (*loc, i) if (*loc, i) in self.doc.lines else loc

    def _check_numbers(self, loc: Loc, name: str) -> None:
        """Complain about a comparison on an axis of a command that holds anything else."""
        if name in axis_defaults(self.file.workload):
            return  # the catalogue says that it has numbers
        for value in self.space.values(name):
            if isinstance(value, str | bool):
                self._wrong.add(loc, f"compares numbers, and {name} has {show(value)}")
                return

    def _grid(self) -> Grid:
        """Return the grid; refuse conditions with which counting would take minutes."""
        space = self.space
        conditions = [*space.excludes, *(rule.condition for rule in space.whens)]
        sizes = {name: sum(map(len, space.sources(name))) for name in space.names()}
        asked = sum(sizes[name] for condition in conditions for name in condition)
        many = ("exclude",) if len(space.excludes) >= len(space.whens) else ("when",)
        remedy = "join conditions, or split the sweep"
        if asked > MAX_ASKED:
            text = f"{len(conditions):,} conditions ask {asked:,} times for a value of an axis"
            raise self.doc.complaint(many, f"{text}, at most {MAX_ASKED:,}; {remedy}")
        grid = grid_of(space)
        if grid.most_kinds > MAX_KINDS:
            text = f"tell {grid.most_kinds:,} kinds of combinations apart, at most {MAX_KINDS:,}"
            raise self.doc.complaint(many, f"{text}; {remedy}")
        return grid

    def _check_together(self) -> None:
        names = self.space.names()
        if names and "model" not in names and self.file.workload != COMMAND.name:
            raise self.doc.complaint(("axes",), "`model` is missing, needs a list of models")
        grid = self._grid()
        if not grid.count and not self.include:
            why = "every combination is excluded" if names else "has no axes"
            raise self.doc.complaint(("axes",), f"an empty sweep: {why}")
        if grid.count > MAX_POINTS:
            text = f"{grid.count:,} points, at most {MAX_POINTS:,} in one sweep"
            remedy = "shorten an axis, exclude more, or split the sweep"
            raise self.doc.complaint(("axes",), f"{text}; {remedy}")
        met = grid.met()
        rules = [("exclude", i) for i in range(len(self.space.excludes))]
        rules += [("when", i) for i in range(len(self.space.whens))]
        for number, rule in enumerate(rules):
            if not met >> number & 1:
                self._wrong.add(rule, "matches no combination; remove or correct it")
        self._check_images()
        self._check_include(grid)

    def _check_images(self) -> None:
        """Complain about images that a network of the sweep cannot take."""
        names = dict.fromkeys(self.space.values("model"))
        for side in _SIDES:
            sizes = {size for size in self.space.values(side) if size}
            for name in names:
                if name not in self._models or all(map(MODELS[name].takes, sizes)):
                    continue
                found = grid_of(self.space, only=_unfit(name, side)).first()
                if found is not None:
                    text = _needed(name, found[side])
                    what = side.removeprefix("input_")
                    text = f"{text}; correct the {what} or exclude it for this model"
                    self._wrong.add(self._source(side, found[side]), text)

    def _source(self, name: str, value: object) -> Loc:
        """Return the place of a value of an axis: among its own values, a rule's, or the model."""
        places: dict[Loc, Sequence[Any]] = {("axes", name): self.space.axes.get(name, ())}
        for i, rule in enumerate(self.space.whens):
            places["when", i, "axes", name] = rule.axes.get(name, ())
        for loc, values in places.items():
            if value in values:
                return self._item(loc, values.index(value))
        return ("axes", "model")

    def _check_include(self, grid: Grid) -> None:
        for first, again in _repeats(self.include):
            line = self.doc.line(("include", first))
            text = f"the same point as in line {line}; remove one"
            self._wrong.add(("include", again), text)
        for i, point in enumerate(self.include):
            if grid.holds(point):
                self._wrong.add(("include", i), "the axes have this point already; remove it here")
            name = point.get("model", "")
            if name not in self._models:
                continue
            for side in _SIDES:
                # a workload may have no width, nor weights
                if all(test(point.get(axis)) for axis, test in _unfit(name, side).items()):
                    self._wrong.add(("include", i, side), _needed(name, point[side]))


def _repeats(items: Iterable[object]) -> Iterator[tuple[int, int]]:
    """Yield pairs of indices of items that tables write alike: the first one, each repetition."""
    places: dict[str, int] = {}
    for i, item in enumerate(items):
        first = places.setdefault(_spelled(item), i)
        if first != i:
            yield first, i


def _spelled(value: object) -> str:
    """Return a value as tables write it."""
    return value if isinstance(value, str) else canonical_json(value)


def _has(values: Sequence[Any], value: object) -> bool:
    """Tell whether a value is among others, where 1 is not true."""
    return value in values and (value not in (0, 1) or any(same(value, one) for one in values))


def _unfit(name: str, side: str) -> Condition:
    """Return the condition that matches the images that a model cannot take."""
    model = MODELS[name]
    condition = {"model": Predicate((name,))}
    if not model.fixed:
        return {**condition, side: Predicate(bounds=(("lt", model.size),))}
    return {
        **condition,
        side: Predicate((model.size, None), negate=True),
        "weights": Predicate(("random",)),  # published weights may have another size
    }


def _needed(name: str, size: int) -> str:
    model = MODELS[name]
    needs = f"takes {model.size} only" if model.fixed else f"needs at least {model.size}"
    return f"found {size}, {name} {needs}"
