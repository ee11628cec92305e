"""A sweep and its space: axes, constraints, and the combinations that these leave.

`sweep_file` makes the records from a file, `expansion` makes points; here are no points and no ids.
A map of algorithms has a short name for headings and labels: the one in the file under `maps`, else
`map-` and the first digits of a checksum.

Combinations are counted without a list of them. Axes that move together are one dimension, and all
axes that the sweep leaves alone are one, too. Each condition has a bit. The mask of a row has the
bits of the conditions that its values meet, and of all conditions on other axes. The masks of a
combination's rows, joined by AND, leave the bits of the conditions that the combination meets.
Beginnings with equal masks go on alike, so what follows on them is counted once.

An axis that `when` rules set has the values of all of its sources: its own, and those of each
rule. To be from a source is a condition, too; the last rule that is met decides from which source
the value must be.

A rehearsal gives all rows the same `gpu`. Rows that become equal are joined into one with the masks
of all of them, which is kept if one of them would be.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import compress, product
from math import prod
from pathlib import Path
from typing import Any, Final, TypeAlias

from hpcsweep.catalog import VISIT
from hpcsweep.point import algorithm_name, canonical_json

NUMBERS: Final = ("int", "float")  # kinds of axes whose values compare
COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
# Places of axes, 1 for all others. The model is the slowest: a worker keeps its network. What will
# be compared, algorithms and visits, is the fastest: so one task measures it.
_PACE: Final = {"model": 0, "algorithm": 2, VISIT: 3}

Indices: TypeAlias = tuple[int, ...]  # one row of each dimension
Masks: TypeAlias = tuple[int, ...]  # one for each of the rows that were joined into this one

EVERY_BIT: Final = -1
NO_CONDITION: Final[Masks] = (EVERY_BIT,)
# Kinds of beginnings of which is kept what follows. A walk takes one kind after the other, so more
# would help little.
_REMEMBERED: Final = 1_000


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
Tests: TypeAlias = Mapping[str, Mapping[int, Predicate]]  # by axis, then by the bit of a condition


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
        """Return the groups of axes that move together, the slowest first."""
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


@dataclass(frozen=True)
class Dimension:
    """Axes that move together: a column of values for each of them, and the masks of each row."""

    names: tuple[str, ...]
    columns: Sequence[Sequence[Any]]
    masks: Sequence[Masks]

    def row(self, index: int) -> tuple[Any, ...]:
        """Return the values of a row."""
        return tuple([column[index] for column in self.columns])

    @cached_property
    def kinds(self) -> frozenset[Masks]:
        """The different masks of the rows."""
        return frozenset(self.masks)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The rows by their values."""
        return {canonical_json(self.row(row)): row for row in range(len(self.masks))}


class Grid:
    """The combinations of some dimensions that the rules keep, in order.

    `excludes` has the bits of all excludes; `sources` has for each axis that rules set pairs of
    bits: of a rule, and of its values. The last rule comes first; the axis's own values come last,
    with all bits in place of a rule's: they hold if no rule does.
    """

    def __init__(
        self,
        dims: Sequence[Dimension],
        excludes: int,
        sources: Sequence[Sequence[tuple[int, int]]],
    ) -> None:
        self.dims = dims
        self.excludes = excludes
        self.sources = sources
        self._numbers: dict[tuple[int, Masks], int] = {}
        self._onward = lru_cache(_REMEMBERED)(self._following)

    @property
    def count(self) -> int:
        """The number of combinations that are kept."""
        return self.number(0, NO_CONDITION)

    @property
    def most_kinds(self) -> int:
        """The most kinds of combinations that conditions tell apart: `count` may look at each."""
        return prod(len(dim.kinds) for dim in self.dims)

    def number(self, depth: int, masks: Masks) -> int:
        """Return how many combinations go on from rows of these masks, one of `depth` dimensions.

        Beginnings of equal masks are counted once, so the time depends on kinds, not on values.
        """
        if depth == len(self.dims):
            return int(self._keeps(masks))
        kind = (depth, masks)
        if kind not in self._numbers:
            rows = self.rows(depth, masks)
            self._numbers[kind] = sum([self.number(depth + 1, both) for _row, both in rows])
        return self._numbers[kind]

    def rows(self, depth: int, masks: Masks) -> Iterable[tuple[int, Masks]]:
        """Yield the rows with which a beginning of these masks goes on, with the masks of both."""
        onward = self._onward(depth, masks)
        for row, more in enumerate(self.dims[depth].masks):
            if more in onward:
                yield row, onward[more]

    def _following(self, depth: int, masks: Masks) -> Mapping[Masks, Masks]:
        """Return the masks of rows with which some combination goes on, and what both leave."""
        found = {}
        for more in self.dims[depth].kinds:
            both = joined(masks, more)
            if self.number(depth + 1, both):
                found[more] = both
        return found

    def walk(self) -> Iterator[Indices]:
        """Yield the combinations that are kept, in order."""
        beginnings: Iterable[tuple[Indices, Masks]] = [((), NO_CONDITION)]
        for depth in range(len(self.dims)):
            beginnings = self._longer(beginnings, depth)
        for rows, _masks in beginnings:
            yield rows

    def _longer(
        self, beginnings: Iterable[tuple[Indices, Masks]], depth: int
    ) -> Iterator[tuple[Indices, Masks]]:
        """Yield beginnings with a row of one more dimension."""
        for rows, masks in beginnings:
            for row, both in self.rows(depth, masks):
                yield (*rows, row), both

    def first(self) -> dict[str, Any] | None:
        """Return all values of the first combination that is kept."""
        for rows in self.walk():
            values: dict[str, Any] = {}
            for dim, row in zip(self.dims, rows, strict=True):
                values.update(zip(dim.names, dim.row(row), strict=True))
            return values
        return None

    def met(self) -> int:
        """Return the bits of the conditions that are met: an exclude by any, a rule by a kept one.

        A bit stands for a condition: first those of excludes, then those of rules.
        """
        reached = {NO_CONDITION}
        for dim in self.dims:
            reached = {joined(masks, more) for masks, more in product(reached, dim.kinds)}
        bits = 0
        for masks in reached:
            for mask in masks:
                if self._exists(mask):
                    bits |= mask & self.excludes or mask
        return bits

    def holds(self, axes: Mapping[str, Any]) -> bool:
        """Say whether a full assignment of values is one of the kept combinations."""
        masks = NO_CONDITION
        for dim in self.dims:
            row = dim.places.get(canonical_json([axes[name] for name in dim.names]))
            if row is None:
                return False
            masks = joined(masks, dim.masks[row])
        return self._keeps(masks)

    def _keeps(self, masks: Masks) -> bool:
        """Say whether combinations with these masks are points of the sweep."""
        return any(not mask & self.excludes and self._exists(mask) for mask in masks)

    def _exists(self, mask: int) -> bool:
        """Say whether each value is from the source that decides."""
        for sources in self.sources:
            decides = next(values for rule, values in sources if mask & rule)
            if not mask & decides:
                return False
        return True


def joined(masks: Masks, more: Masks) -> Masks:
    """Return the masks of a combination, given those of its two parts."""
    return tuple([a & b for a in masks for b in more])


def grid_of(space: Space, *, only: Condition | None = None, device: str | None = None) -> Grid:
    """Return the combinations of a space; looks once at each value of an axis with conditions.

    only: a condition that all of them meet. device: the `gpu` that all of them get.
    """
    conditions = [*space.excludes, *(rule.condition for rule in space.whens)]
    sources = []
    for name in space.conditional():
        # what holds if no rule does has all bits in place of a rule's
        rules = [EVERY_BIT, *(1 << len(space.excludes) + place for place in space.setters(name))]
        pairs = []
        for rule, values in zip(rules, space.sources(name), strict=True):
            pairs.append((rule, 1 << len(conditions)))
            conditions.append({name: Predicate(values)})
        sources.append(pairs[::-1])  # the last rule wins
    tests: dict[str, dict[int, Predicate]] = {}
    for number, condition in enumerate(conditions):
        for name, test in condition.items():
            tests.setdefault(name, {})[1 << number] = test
    alone = tuple(name for name in space.defaults if name not in space.names())
    groups = [alone, *space.groups()] if alone else space.groups()
    dims = [_dimension(space, names, tests, only or {}, device) for names in groups]
    if not space.names():  # there is no combination, not even one of all defaults
        dims = [Dimension((), (), ())]
    return Grid(dims, (1 << len(space.excludes)) - 1, sources)


def _dimension(
    space: Space, names: tuple[str, ...], tests: Tests, only: Condition, device: str | None
) -> Dimension:
    columns = {name: space.column(name) for name in names}
    for name in only.keys() & columns.keys():
        passes = [only[name](value) for value in columns[name]]
        for other, column in columns.items():
            columns[other] = [*compress(column, passes)]
    masks = [EVERY_BIT for _ in columns[names[0]]]
    for name in columns.keys() & tests.keys():
        for row, value in enumerate(columns[name]):
            for bit, test in tests[name].items():
                if not test(value):
                    masks[row] &= ~bit
    shared: dict[int, Masks] = {}  # equal masks are one object
    dim = Dimension(
        names, [*columns.values()], [shared.setdefault(mask, (mask,)) for mask in masks]
    )
    return _on(device, dim) if device is not None and "gpu" in names else dim


def _on(device: str, dim: Dimension) -> Dimension:
    """Return a dimension with this device as `gpu`; rows that become equal are joined."""
    place = dim.names.index("gpu")
    rows: dict[str, tuple[Any, ...]] = {}
    masks: dict[str, Masks] = {}
    for index, more in enumerate(dim.masks):
        row = dim.row(index)
        row = (*row[:place], device, *row[place + 1 :])
        key = canonical_json(row)
        rows.setdefault(key, row)
        masks[key] = (*masks.get(key, ()), *more)
    columns = [*zip(*rows.values(), strict=True)] or [()] * len(dim.names)
    return Dimension(dim.names, columns, [*masks.values()])
