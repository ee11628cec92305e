"""What a sweep declares: axes, the constraints between them, how to measure.

Plain values of the standard library: `spec` fills them from a file, `grid` counts combinations,
`plan` makes points.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NUMBERS: Final = ("int", "float")  # kinds of axes whose values compare
COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@dataclass(frozen=True)
class Predicate:
    """What a constraint asks of one axis: to be one of the values, or to compare so."""

    values: frozenset[Any] = frozenset()
    bounds: tuple[tuple[str, float], ...] = ()
    negate: bool = False

    def __call__(self, value: object) -> bool:
        """Say whether a value passes; None compares with nothing."""
        if self.bounds:
            return value is not None and all(COMPARISONS[op](value, b) for op, b in self.bounds)
        # a map of algorithms is no value that a constraint can name
        found = not isinstance(value, dict) and value in self.values
        return found is not self.negate


Condition = Mapping[str, Predicate]


@dataclass(frozen=True)
class When:
    """For the combinations that match, these axes have these values instead."""

    condition: Condition
    axes: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Space:
    """Axes and constraints, as a sweep declares them; `defaults` are those of all axes."""

    axes: Mapping[str, Sequence[Any]]
    defaults: Mapping[str, Any]
    zips: tuple[tuple[str, ...], ...] = ()
    excludes: tuple[Condition, ...] = ()
    whens: tuple[When, ...] = ()

    def names(self) -> list[str]:
        """Return every axis that has values of its own, in order of declaration."""
        return list(
            dict.fromkeys([*self.axes, *(name for rule in self.whens for name in rule.axes)])
        )

    def sources(self, name: str) -> list[Sequence[Any]]:
        """Return where an axis takes its values from: declared (or default), then each rule."""
        own = self.axes.get(name, (self.defaults[name],))
        return [own, *(rule.axes[name] for rule in self.whens if name in rule.axes)]

    def values(self, name: str) -> Iterator[Any]:
        """Return every value that an axis may have, repeated where sources share it."""
        for source in self.sources(name):
            yield from source

    def conditional(self) -> list[str]:
        """Return the axes that some rule sets."""
        return list(dict.fromkeys(name for rule in self.whens for name in rule.axes))

    def groups(self) -> list[tuple[str, ...]]:
        """Return what moves together, slowest first: the model, then as declared."""
        group_of = {name: group for group in self.zips for name in group}
        ordered = sorted(self.names(), key=lambda name: name != "model")
        return list(dict.fromkeys(group_of.get(name, (name,)) for name in ordered))

    def size(self) -> int:
        """Return an upper bound of the number of combinations, at no cost."""
        if not self.names():
            return 0
        return prod(max(1, sum(map(len, self.sources(group[0])))) for group in self.groups())


@dataclass(frozen=True)
class Rule:
    """Where a sweep file says something about combinations, for tallies and complaints."""

    kind: str  # zip, exclude, include or when
    index: int
    line: int
    text: str


@dataclass(frozen=True)
class Sweep:
    """A sweep file that was understood; every value is final, every default filled in."""

    name: str
    workload: str
    space: Space
    include: tuple[Mapping[str, Any], ...]  # all axes of each
    measure: Mapping[str, Any]  # all settings
    point_timeout: float  # seconds
    description: str
    rules: tuple[Rule, ...]
    path: Path
    text: str  # as it was read

    def values(self, axis: str) -> Iterator[Any]:
        """Return the values that an axis has anywhere in the sweep, some of them repeatedly."""
        yield from self.space.values(axis)
        yield from (point[axis] for point in self.include)
