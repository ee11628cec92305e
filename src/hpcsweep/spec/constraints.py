"""Reads axes, `zip`, `exclude`, `include` and `when`, and holds them against each other.

What a file says one by one may be right and still be wrong together: an exclude that matches
nothing, a point that is there twice, an image that is too small for its network. All of it is
found by counting classes of combinations (see `grid`), so a sweep of millions is checked at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import axes_of, axis_defaults
from hpcsweep.catalog.models import MODELS
from hpcsweep.errors import suggest
from hpcsweep.point import canonical_json
from hpcsweep.spec import axis_values
from hpcsweep.spec.grid import Grid
from hpcsweep.spec.space import Predicate, Rule, Space, When

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcsweep.catalog import Axis
    from hpcsweep.errors import BadInput
    from hpcsweep.spec.document import Document
    from hpcsweep.spec.space import Condition

    Loc = tuple[str | int, ...]

MAX_POINTS: Final = 10_000_000
_PROBED: Final = 100  # sizes that are looked at one by one for the sake of a message


class Reader:
    """Reads the parts of one document that speak of axes; `space` and `include` are the result."""

    def __init__(self, doc: Document, workload: str) -> None:
        """Read and check everything; raise the document's error at the first thing wrong."""
        self.doc, self.workload = doc, workload
        self.known = axes_of(workload)
        self.any_model = workload == "noop"
        self._members: dict[tuple[str, int, int], frozenset[Any]] = {}
        data = doc.data
        axes = self._axes(("axes",), data.get("axes", {}))
        self._zips = self._zip_groups(axes, data.get("zip", []))
        whens = self._whens(axes, data.get("when", []))
        self.space = Space(axes, axis_defaults(workload), self._zips, (), whens)
        self._limit_size(data.get("include", []))
        excludes = tuple(
            self._condition(("exclude", i), raw, self.space.names())
            for i, raw in enumerate(data.get("exclude", []))
        )
        self.space = Space(axes, axis_defaults(workload), self._zips, excludes, whens)
        self.include = tuple(
            self._point(("include", i), raw) for i, raw in enumerate(data.get("include", []))
        )
        self._check_together()

    def rules(self) -> tuple[Rule, ...]:
        """Return every rule of the file with its line."""
        return tuple(
            Rule(kind, i, self.doc.line((kind, i)), canonical_json(raw))
            for kind in ("zip", "when", "exclude", "include")
            for i, raw in enumerate(self.doc.data.get(kind, []))
        )

    def axis(self, loc: Loc, name: str) -> Axis:
        """Return an axis of the workload."""
        if name not in self.known:
            allowed = f"axes of {self.workload} are {', '.join(self.known)}"
            raise self.doc.complaint(loc, f"unknown axis, {allowed}{suggest(name, self.known)}")
        return self.known[name]

    def has(self, name: str, wanted: object) -> list[Any] | None:
        """Return None when the sweep's axis has a value, else the first few values it has."""
        for i, source in enumerate(self.space.sources(name)):
            if isinstance(source, list) and (name, i, len(source)) not in self._members:
                self._members[name, i, len(source)] = frozenset(map(_hashable, source))
            if wanted in self._members.get((name, i, len(source)), source):
                return None
        return list(dict.fromkeys(map(_hashable, islice(self.space.values(name), 12))))

    def _axes(self, loc: Loc, raw: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
        return {
            name: axis_values.values(
                self.doc,
                (*loc, name),
                self.axis((*loc, name), name),
                given,
                any_model=self.any_model,
            )
            for name, given in raw.items()
        }

    def _zip_groups(
        self, axes: Mapping[str, Sequence[Any]], raw: Sequence[Sequence[str]]
    ) -> tuple[tuple[str, ...], ...]:
        seen: dict[str, int] = {}
        for i, group in enumerate(raw):
            for j, name in enumerate(group):
                loc = ("zip", i, j)
                self.axis(loc, name)
                if name not in axes:
                    text = f"{name} has no values under `axes`, needs {', '.join(axes)}"
                    raise self.doc.complaint(loc, text + suggest(name, axes))
                if name in seen:
                    line = self.doc.line(("zip", seen[name]))
                    text = f"{name} is named already in line {line}; an axis moves with one group"
                    raise self.doc.complaint(loc, text)
                seen[name] = i
            self._zip_rows(("zip", i), axes, group)
        for name in axes:
            if name not in seen:
                axis_values.no_repeats(self.doc, ("axes", name), axes[name])
        return tuple(map(tuple, raw))

    def _zip_rows(self, loc: Loc, axes: Mapping[str, Sequence[Any]], group: Sequence[str]) -> None:
        sizes = {name: len(axes[name]) for name in group}
        if len(sizes) < 2:
            raise self.doc.complaint(loc, "needs two axes or more, which move together")
        if len(set(sizes.values())) > 1:
            text = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise self.doc.complaint(loc, f"{text} values; what moves together has as many")
        if all(isinstance(axes[name], list) for name in group):
            rows: dict[str, int] = {}
            for i, row in enumerate(zip(*(axes[name] for name in group), strict=True)):
                before = rows.setdefault(canonical_json(row), i)
                if before != i:
                    text = f"rows {before + 1} and {i + 1} are the same point"
                    raise self.doc.complaint(loc, text)

    def _whens(
        self, axes: Mapping[str, Sequence[Any]], raw: Sequence[Mapping[str, Any]]
    ) -> tuple[When, ...]:
        zipped = {name for group in self._zips for name in group}
        set_by = {name: i for i, rule in enumerate(raw) for name in rule["axes"]}
        # values first: an `if` may ask for what a rule brings only if no rule sets that axis
        self.space = Space(axes, axis_defaults(self.workload))
        rules = []
        for i, rule in enumerate(raw):
            loc: Loc = ("when", i)
            given = self._axes((*loc, "axes"), rule["axes"])
            for name, found in given.items():
                here = (*loc, "axes", name)
                if name in zipped:
                    text = f"{name} moves with a zip group; a rule cannot set it"
                    raise self.doc.complaint(here, text)
                axis_values.no_repeats(self.doc, here, found)
            if not given:
                raise self.doc.complaint((*loc, "axes"), "found an empty map, needs axis: [values]")
            for name in rule["if"]:
                if name in set_by:
                    line = self.doc.line(("when", set_by[name], "axes", name))
                    text = f"{name} is set by a rule itself (line {line}); ask for another axis"
                    raise self.doc.complaint((*loc, "if", name), text)
            rules.append(When(self._condition((*loc, "if"), rule["if"], list(axes)), given))
        return tuple(rules)

    def _condition(self, loc: Loc, raw: Mapping[str, Any], names: Sequence[str]) -> Condition:
        def axis_of(here: Loc, name: str) -> Axis:
            axis = self.axis(here, name)
            if name not in names:
                text = f"{name} is no axis of this sweep, which has {', '.join(names) or 'none'}"
                raise self.doc.complaint(here, f"{text}{suggest(name, names)}")
            return axis

        return axis_values.condition(self.doc, loc, raw, axis_of, self.has)

    def _point(self, loc: Loc, raw: Mapping[str, Any]) -> dict[str, Any]:
        given = {
            name: axis_values.value(
                self.doc,
                (*loc, name),
                self.axis((*loc, name), name),
                found,
                any_model=self.any_model,
            )
            for name, found in raw.items()
        }
        if "model" not in given:
            raise self.doc.complaint(loc, "`model` is missing; every other axis has a default")
        return {**axis_defaults(self.workload), **given}

    def _limit_size(self, include: Sequence[object]) -> None:
        size = self.space.size() + len(include)
        if size > MAX_POINTS:
            longest = max(self.space.names(), key=lambda name: len(self.space.sources(name)[0]))
            text = f"{size:,} combinations, at most {MAX_POINTS:,} in one sweep"
            raise self.doc.complaint(
                ("axes",), f"{text}; {longest} alone has {len(self.space.sources(longest)[0]):,}"
            )

    def _check_together(self) -> None:
        doc, names = self.doc, self.space.names()
        if names and "model" not in names:
            raise doc.complaint(("axes",), "`model` is missing, needs a list of models")
        probes = list(self._bad_sizes())
        grid = Grid(self.space, probes=[condition for condition, _ in probes])
        for i in range(len(self.space.excludes)):
            if not grid.excluded_by(i):
                raise doc.complaint(("exclude", i), "matches no combination; remove or correct it")
        if not grid.count and not self.include:
            why = "every combination is excluded" if names else "has no axes"
            raise doc.complaint(("axes",), f"an empty sweep: {why}")
        for i in range(len(self.space.whens)):
            if not grid.set_by(i):
                raise doc.complaint(("when", i), "matches no combination; remove or correct it")
        for i in range(len(probes)):
            if grid.probed(i):
                raise self._size_complaint(*probes[i])
        self._check_include(grid)

    def _check_include(self, grid: Grid) -> None:
        seen: dict[str, int] = {}
        for i, point in enumerate(self.include):
            loc: Loc = ("include", i)
            before = seen.setdefault(canonical_json(point), i)
            if before != i:
                line = self.doc.line(("include", before))
                raise self.doc.complaint(loc, f"the same point as in line {line}; name it once")
            if grid.holds(point):
                raise self.doc.complaint(loc, "the axes have this point already; remove it here")
            text = self._bad_size(point["model"], point["input_size"], point["weights"])
            if text:
                raise self.doc.complaint((*loc, "input_size"), text)

    def _size_complaint(self, combinations: Condition, name: str) -> BadInput:
        """Return the complaint about the first size that a model has and cannot take."""
        sizes = dict.fromkeys(self.space.values("input_size"))
        bad = list(islice((size for size in sizes if not MODELS[name].takes(size)), _PROBED))
        probes = [{**combinations, "input_size": Predicate(frozenset({size}))} for size in bad]
        grid = Grid(self.space, probes=probes)
        size = next((size for i, size in enumerate(bad) if grid.probed(i)), bad[-1])
        text = f"{_size_text(name, size)}; correct the size or exclude it for this model"
        return self.doc.complaint(self._source("input_size", size), text)

    def _source(self, name: str, value: object) -> Loc:
        """Return where an axis gets a value from: its own values, a rule's, or the default."""
        places: dict[Loc, Sequence[Any]] = {("axes", name): self.space.axes.get(name, ())}
        for i, rule in enumerate(self.space.whens):
            places["when", i, "axes", name] = rule.axes.get(name, ())
        for loc, found in places.items():
            if value in found:
                return (*loc, found.index(value)) if isinstance(found, list) else loc
        return ("axes", "model")

    def _bad_sizes(self) -> Iterator[tuple[Condition, str]]:
        """Yield the combinations with an image that their model cannot take, model by model."""
        if self.any_model:
            return
        ends = [_ends(source) for source in self.space.sources("input_size")]
        for name in dict.fromkeys(self.space.values("model")):
            model = MODELS.get(name)
            if model is None or all(model.takes(low) and model.takes(high) for low, high in ends):
                continue
            condition = {"model": Predicate(frozenset({name}))}
            if model.fixed:  # its published weights may bring another size with them
                condition["input_size"] = Predicate(frozenset({model.size}), negate=True)
                condition["weights"] = Predicate(frozenset({"random"}))
            else:
                condition["input_size"] = Predicate(bounds=(("lt", model.size),))
            yield condition, name

    def _bad_size(self, name: str, size: int, weights: str) -> str:
        model = None if self.any_model else MODELS.get(name)
        if model is None or model.takes(size) or (model.fixed and weights != "random"):
            return ""
        return _size_text(name, size)


def _size_text(name: str, size: int) -> str:
    model = MODELS[name]
    needs = f"takes {model.size} only" if model.fixed else f"needs at least {model.size}"
    return f"found {size}, {name} {needs}"


def _ends(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the smallest and the largest size; a range has them at its ends."""
    ends = sizes if isinstance(sizes, list | tuple) else (sizes[0], sizes[-1])
    return min(ends), max(ends)


def _hashable(value: object) -> object:
    return canonical_json(value) if isinstance(value, dict | list) else value
