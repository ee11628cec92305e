"""Checks `axes`, `zip`, `exclude`, `include` and `when` of a sweep file together.

Each key may be valid, and the file still wrong: an exclude that matches nothing, a repeated point,
an image that is too small for its network. The combinations are counted for this, not listed (see
`grid`), so sweeps of millions take no longer.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import AXES, COMMAND, VISIT, WORKLOADS, axis_defaults
from hpcsweep.catalog.models import MODELS
from hpcsweep.errors import suggest
from hpcsweep.point import canonical_json, same
from hpcsweep.spec.document import Complaints, show
from hpcsweep.spec.grid import Grid
from hpcsweep.spec.space import Predicate, Space, When
from hpcsweep.spec.validation import Shape, integral

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.spec.document import Document
    from hpcsweep.spec.space import Condition
    from hpcsweep.spec.sweep_keys import SweepFile

    Loc = tuple[str | int, ...]

MAX_POINTS: Final = 10_000_000
# Counting takes some seconds with so many looks at values, or kinds of combinations.
MAX_ASKED: Final = 5_000_000
MAX_KINDS: Final = 1_000_000
_PROBED: Final = 100  # sizes that are tried one by one to name the one that is wrong


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
        maps = (type(of).model_fields for of in (file.axes, *file.include) if isinstance(of, Shape))
        own = next(maps, ()) if file.workload == COMMAND.name else ()
        defaults = {**dict.fromkeys(own), **axis_defaults(file.workload)}
        axes = self._given(file.axes, ("axes",))
        self._check_zips(axes)
        zips = tuple(map(tuple, file.zip))
        if axes and file.measure.repeats > 1:
            axes[VISIT] = range(1, file.measure.repeats + 1)
        # an `if` may name values of `axes`, but no value that only a rule has
        self.space = Space(axes, defaults)
        whens = self._whens(axes)
        self.space = Space(axes, defaults, zips, (), whens)
        self._limit_size()
        names = self.space.names()
        excludes = []
        for i, raw in enumerate(file.exclude):
            with self._wrong.kept():
                excludes.append(self._condition(("exclude", i), raw, names))
        if self._wrong:
            return  # later complaints could follow from these
        self.space = Space(axes, defaults, zips, tuple(excludes), whens)
        self.include = tuple(
            {**defaults, **self._given(point, ("include", i))}
            for i, point in enumerate(file.include)
        )
        self._check_together()

    def _raw(self, loc: Loc) -> Any:  # noqa: ANN401 - what YAML holds
        value: Any = self.doc.data
        for step in loc:
            value = value.get(step, {}) if isinstance(value, dict) else value[int(step)]
        return value

    def _listed(self, loc: Loc) -> bool:
        """Say whether the file has a list at a place, and not a range."""
        return isinstance(self._raw(loc), list)

    def _given(self, axes: Shape, loc: Loc) -> dict[str, Any]:
        return {name: getattr(axes, name) for name in self._raw(loc)}

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
                self._check_rows(("zip", i), axes, group)
        for name in axes:
            if name not in seen:
                self._no_repeats(("axes", name), axes[name])

    def _check_rows(self, loc: Loc, axes: Mapping[str, Sequence[Any]], group: list[str]) -> None:
        sizes = {name: len(axes[name]) for name in group}
        if len(set(sizes.values())) > 1:
            text = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            text = f"{text} values; axes that move together need the same number"
            raise self.doc.complaint(loc, text)
        if all(self._listed(("axes", name)) for name in group):
            for first, again in _repeats(zip(*(axes[name] for name in group), strict=True)):
                text = f"rows {first + 1} and {again + 1} are the same point; remove one"
                raise self.doc.complaint(loc, text)

    def _no_repeats(self, loc: Loc, values: Sequence[Any]) -> None:
        for first, again in _repeats(values if self._listed(loc) else []):
            line = self.doc.line((*loc, first))
            text = f"{show(values[again])} is repeated, first in line {line}; remove one"
            self._wrong.add((*loc, again), text)

    def _whens(self, axes: Mapping[str, Sequence[Any]]) -> tuple[When, ...]:
        zipped = {name for group in self.file.zip for name in group}
        set_by = {
            name: i for i in range(len(self.file.when)) for name in self._raw(("when", i, "axes"))
        }
        rules = []
        for i, rule in enumerate(self.file.when):
            loc: Loc = ("when", i)
            given = self._given(rule.axes, (*loc, "axes"))
            if not given:
                raise self.doc.complaint((*loc, "axes"), "found an empty map, needs axis: [values]")
            for name, values in given.items():
                here = (*loc, "axes", name)
                if name in zipped:
                    text = f"{name} moves with a zip group; a rule cannot set it"
                    raise self.doc.complaint(here, text)
                self._no_repeats(here, values)
            for name in self._raw((*loc, "if")):
                if name in set_by:
                    line = self.doc.line(("when", set_by[name], "axes", name))
                    text = f"{name} is set by a rule itself (line {line}); ask for another axis"
                    raise self.doc.complaint((*loc, "if", name), text)
            rules.append(When(self._condition((*loc, "if"), rule.condition, list(axes)), given))
        return tuple(rules)

    def _condition(self, loc: Loc, file_map: Shape, names: Sequence[str]) -> Condition:
        """Return a condition of the file; complain about axes and values that the sweep lacks."""
        predicates: dict[str, Predicate] = self._given(file_map, loc)
        if not predicates:
            raise self.doc.complaint(loc, "found an empty map, needs axis: value")
        for name in predicates:
            here: Loc = (*loc, name)
            if name not in names:
                text = f"{name} is no axis of this sweep, which has {', '.join(names) or 'none'}"
                self._wrong.add(here, f"{text}{suggest(name, names)}")
            else:
                self._check_members(here, name)
        return predicates

    def _check_members(self, loc: Loc, name: str) -> None:
        """Complain about values in a condition that the axis does not have."""
        raw = self._raw(loc)
        if isinstance(raw, dict):
            if "not" not in raw:
                self._check_numbers(loc, name)
                return
            loc = (*loc, "not")
            raw = raw["not"]
        for i, item in enumerate(raw if isinstance(raw, list) else [raw]):
            wanted = item if isinstance(item, str) else integral(item)
            if not any(_has(source, wanted) for source in self.space.sources(name)):
                have = islice(self.space.values(name), 12)
                names = [
                    *dict.fromkeys(v if isinstance(v, str) else canonical_json(v) for v in have)
                ]
                text = f"{name} has no {show(item)}, it has {', '.join(names)}"
                here = (*loc, i) if isinstance(raw, list) else loc
                self._wrong.add(here, text + suggest(str(item), names))

    def _check_numbers(self, loc: Loc, name: str) -> None:
        """Complain about a comparison on an axis of a command that holds anything else."""
        if name in AXES:
            return
        odd = (value for value in self.space.values(name) if isinstance(value, str | bool))
        if (value := next(odd, None)) is not None:
            self._wrong.add(loc, f"compares numbers, and {name} has {show(value)}")

    def _limit_size(self) -> None:
        size = self.space.size() + len(self.file.include)
        if size > MAX_POINTS:
            sizes = {name: len(self.space.sources(name)[0]) for name in self.space.names()}
            longest = max(sizes, key=sizes.__getitem__)
            text = f"{size:,} combinations, at most {MAX_POINTS:,} in one sweep"
            raise self.doc.complaint(("axes",), f"{text}; {longest} alone has {sizes[longest]:,}")

    def _grid(self, probes: Sequence[Condition]) -> Grid:
        """Return the grid; refuse conditions with which counting would take minutes."""
        space = self.space
        sizes = {name: sum(map(len, space.sources(name))) for name in space.names()}
        conditions = [*space.excludes, *(rule.condition for rule in space.whens)]
        asked = sum(sizes[name] for condition in conditions for name in condition)
        rules = ("exclude",) if len(space.excludes) >= len(space.whens) else ("when",)
        remedy = "join conditions, or split the sweep"
        if asked > MAX_ASKED:
            text = f"{len(conditions):,} conditions ask {asked:,} times for a value of an axis"
            raise self.doc.complaint(rules, f"{text}, at most {MAX_ASKED:,}; {remedy}")
        grid = Grid(space, probes=probes)
        if grid.kinds > MAX_KINDS:
            text = f"tell {grid.kinds:,} kinds of combinations apart, at most {MAX_KINDS:,}"
            raise self.doc.complaint(rules, f"{text}; {remedy}")
        return grid

    def _check_together(self) -> None:
        doc = self.doc
        names = self.space.names()
        if names and "model" not in names and self.file.workload != COMMAND.name:
            raise doc.complaint(("axes",), "`model` is missing, needs a list of models")
        doubtful = list(self._doubtful())
        grid = self._grid([_unfit(name, axis) for name, axis in doubtful])
        if not grid.count and not self.include:
            why = "every combination is excluded" if names else "has no axes"
            raise doc.complaint(("axes",), f"an empty sweep: {why}")
        rules = [("exclude", i) for i in range(len(self.space.excludes))]
        rules += [("when", i) for i in range(len(self.space.whens))]
        for bit, rule in enumerate(rules):
            if not grid.matches(bit):
                self._wrong.add(rule, "matches no combination; remove or correct it")
        for bit, (name, axis) in enumerate(doubtful, len(rules)):
            if grid.matches(bit):
                self._wrong.add(*self._image_complaint(name, axis, len(rules)))
        self._check_include(grid)

    def _check_include(self, grid: Grid) -> None:
        for first, again in _repeats(self.include):
            line = self.doc.line(("include", first))
            text = f"the same point as in line {line}; remove one"
            self._wrong.add(("include", again), text)
        for i, point in enumerate(self.include):
            loc: Loc = ("include", i)
            if grid.holds(point):
                self._wrong.add(loc, "the axes have this point already; remove it here")
            name = point.get("model", "")
            unfit = _unfit(name).items() if name in self._models else ()
            if unfit and all(test(point[axis]) for axis, test in unfit):
                self._wrong.add((*loc, "input_size"), _size_text(name, point["input_size"]))

    def _image_complaint(self, name: str, axis: str, rules: int) -> tuple[Loc, str]:
        """Return the place of the first size that a model cannot take, and the complaint."""
        sizes = dict.fromkeys(self._sizes(axis))
        bad = list(islice((size for size in sizes if not MODELS[name].takes(size)), _PROBED))
        probes = [{**_unfit(name, axis), axis: Predicate(frozenset({size}))} for size in bad]
        grid = Grid(self.space, probes=probes)
        size = next((size for i, size in enumerate(bad, rules) if grid.matches(i)), bad[-1])
        what = axis.removeprefix("input_")
        text = f"{_size_text(name, size)}; correct the {what} or exclude it for this model"
        return self._source(axis, size), text

    def _source(self, name: str, value: object) -> Loc:
        """Return the place of a value of an axis: among its own values, a rule's, or the model."""
        places: dict[Loc, Sequence[Any]] = {("axes", name): self.space.axes.get(name, ())}
        for i, rule in enumerate(self.space.whens):
            places["when", i, "axes", name] = rule.axes.get(name, ())
        for loc, values in places.items():
            if value in values:
                return (*loc, values.index(value)) if self._listed(loc) else loc
        return ("axes", "model")

    def _doubtful(self) -> Iterator[tuple[str, str]]:
        """Yield models with an axis of which they cannot take every size."""
        names = [name for name in dict.fromkeys(self.space.values("model")) if name in self._models]
        for axis in ("input_size", "input_width"):
            sizes = self._sizes(axis)
            ends = (min(sizes), max(sizes)) if sizes else ()
            yield from ((n, axis) for n in names if not all(map(self._models[n].takes, ends)))

    def _sizes(self, axis: str) -> list[int]:
        """Return the sizes of images along an axis; None is no size of its own."""
        return list(filter(None, self.space.values(axis))) if axis in self.space.defaults else []


def _repeats(items: Iterable[object]) -> Iterator[tuple[int, int]]:
    """Yield pairs of indices of items that tables write alike: the first one, each repetition."""
    places: dict[str, int] = {}
    for i, item in enumerate(items):
        first = places.setdefault(item if isinstance(item, str) else canonical_json(item), i)
        if first != i:
            yield first, i


def _has(values: Sequence[Any], value: object) -> bool:
    """Tell whether a value is among others, where 1 is not true."""
    return value in values and (value not in (0, 1) or any(same(value, of) for of in values))


def _unfit(name: str, axis: str = "input_size") -> Condition:
    """Return the condition that matches the images that a model cannot take."""
    model = MODELS[name]
    condition = {"model": Predicate(frozenset({name}))}
    if not model.fixed:
        return {**condition, axis: Predicate(bounds=(("lt", model.size),))}
    return {
        **condition,
        axis: Predicate(frozenset({model.size, None}), negate=True),
        "weights": Predicate(frozenset({"random"})),  # published weights may have another size
    }


def _size_text(name: str, size: int) -> str:
    model = MODELS[name]
    needs = f"takes {model.size} only" if model.fixed else f"needs at least {model.size}"
    return f"found {size}, {name} {needs}"
