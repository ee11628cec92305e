"""The records of a sweep: its axes, the constraints between them, and the settings of points.

`sweep_file` makes them from a file, `grid` counts combinations, `expansion` makes points. A map of
algorithms has a short name for headings and labels: the one in the file under `maps`, else `map-`
and the first digits of a checksum.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from hpcsweep.catalog import VISIT
from hpcsweep.point import algorithm_name, canonical_json

NUMBERS: Final = ("int", "float")  # kinds of axes whose values compare
COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_PACE: Final = {"model": 0, "algorithm": 2, VISIT: 3}  # others: 1; the slowest is 0


@dataclass(frozen=True)
class Predicate:
    """A condition on one axis: one of some values, none of them, or a comparison."""

    values: Collection[Any] = ()
    bounds: tuple[tuple[str, float], ...] = ()
    negate: bool = False

    def __call__(self, value: object) -> bool:
        """Say whether a value passes; None fails every comparison."""
        if self.bounds:
            passes = value is not None
            for comparison, bound in self.bounds:
                passes = passes and COMPARISONS[comparison](value, bound)
            return passes
        return (canonical_json(value) in self._texts) is not self.negate

    @cached_property
    def _texts(self) -> frozenset[str]:
        """The values in the spelling of ids, in which 1 is not true."""
        return frozenset(map(canonical_json, self.values))


Condition = Mapping[str, Predicate]


@dataclass(frozen=True)
class When:
    """A rule: these axes have these values in the combinations that match its condition."""

    condition: Condition
    axes: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Space:
    """The axes and constraints of a sweep; `defaults` has every axis of the workload."""

    axes: Mapping[str, Sequence[Any]]
    defaults: Mapping[str, Any]
    zips: tuple[tuple[str, ...], ...] = ()
    excludes: tuple[Condition, ...] = ()
    whens: tuple[When, ...] = ()

    def names(self) -> list[str]:
        """Return the axes of the sweep, then those of its rules."""
        return list(dict.fromkeys([*self.axes, *self.conditional()]))

    def sources(self, name: str) -> list[Sequence[Any]]:
        """Return the lists of values of an axis: its own (or the default), then each rule's."""
        own = self.axes.get(name, (self.defaults.get(name),))
        return [own, *(rule.axes[name] for rule in self.whens if name in rule.axes)]

    def values(self, name: str) -> Iterator[Any]:
        """Yield every value of an axis, repeated if several sources have it."""
        for source in self.sources(name):
            yield from source

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of an axis; of one that rules set, those of all sources, each once."""
        sources = self.sources(name)
        if len(sources) == 1:
            return sources[0]
        values: dict[str, Any] = {}
        for value in self.values(name):
            values.setdefault(canonical_json(value), value)
        return [*values.values()]

    def conditional(self) -> list[str]:
        """Return the axes that some rule sets."""
        return list(dict.fromkeys(name for rule in self.whens for name in rule.axes))

    def setters(self, name: str) -> list[int]:
        """Return the places of the rules that set an axis."""
        return [place for place, rule in enumerate(self.whens) if name in rule.axes]

    def groups(self) -> list[tuple[str, ...]]:
        """Return the groups of axes that move together, the slowest first.

        The model comes first, since a worker keeps its network; algorithms and visits come last, so
        that one task measures the points that will be compared.
        """
        group_of = {name: group for group in self.zips for name in group}
        ordered = sorted(self.names(), key=lambda name: _PACE.get(name, 1))
        return list(dict.fromkeys(group_of.get(name, (name,)) for name in ordered))


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file with all defaults filled in."""

    name: str
    workload: str
    space: Space
    include: tuple[Mapping[str, Any], ...]  # all axes of each
    measure: Mapping[str, Any]  # all settings of a point
    point_timeout: float  # seconds
    description: str
    path: Path
    text: str  # of the file
    maps: Mapping[str, str] = field(default_factory=dict)  # names of maps of algorithms
    repeats: int = 1  # visits of each point

    def named(self, algorithm: Any) -> str:  # noqa: ANN401 - a name, or a map
        """Return the name of an algorithm, for a map its short name."""
        return algorithm_name(algorithm, self.maps)

    def names_of_maps(self) -> dict[str, str]:
        """Return the short name of every map of algorithms, by the canonical map."""
        maps = [value for value in self.values("algorithm") if isinstance(value, dict)]
        return {canonical_json(layers): self.named(layers) for layers in maps}

    def values(self, axis: str) -> Iterator[Any]:
        """Yield the values of an axis in the whole sweep, with repetitions."""
        yield from self.space.values(axis)
        yield from (point.get(axis) for point in self.include)


def legend(names: Mapping[str, str]) -> list[str]:
    """Return a line for each map: its name and its layers."""
    return [f"{name}: {layers}" for layers, name in names.items()]
