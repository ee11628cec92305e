"""Counts and walks the combinations of a sweep's axes under `zip`, `exclude` and `when`.

Axes that move together are one dimension, and all axes that the sweep leaves alone are one, too.
Each condition has a bit. The mask of a row has the bits of the conditions that its values meet, and
of all conditions on other axes. The masks of a combination's rows, joined by AND, leave the bits of
the conditions that the combination meets.

An axis that `when` rules set has the values of all of its sources: its own, and those of each
rule. Every source has a bit, too; the last rule that is met decides which source must have the
value.

A rehearsal gives all rows the same `gpu`. Rows that become equal are joined into one with the masks
of all of them, which is kept if one of them would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import product
from math import prod
from operator import and_
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hpcsweep.point import canonical_json

if TYPE_CHECKING:
    from hpcsweep.spec.space import Condition, Predicate, Space

Indices: TypeAlias = tuple[int, ...]  # one row of each dimension
Masks: TypeAlias = tuple[int, ...]  # one for each of the rows that were joined into this one

NEUTRAL: Final[Masks] = (-1,)  # every bit
_REMEMBERED: Final = 1_000  # kinds of combinations, while they are walked


@dataclass(frozen=True)
class Dimension:
    """Axes that move together: a column of values for each of them, and the masks of each row."""

    names: tuple[str, ...]
    columns: Sequence[Sequence[Any]]
    masks: Sequence[Masks]

    def row(self, index: int) -> tuple[Any, ...]:
        """Return the values of a row."""
        return tuple(column[index] for column in self.columns)

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of an axis."""
        return self.columns[self.names.index(name)]

    @cached_property
    def counts(self) -> Mapping[Masks, int]:
        """The number of rows by their masks."""
        return Counter(self.masks)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The rows by their values."""
        return {canonical_json(self.row(row)): row for row in range(len(self.masks))}


@dataclass(frozen=True)
class Rules:
    """What masks mean: the bits of all excludes; for each axis that rules set, its sources.

    A source is a pair of bits: of the rule, and of its values. The last rule comes first; the
    axis's own values come last, with all bits in place of a rule's: they hold if no rule does.
    """

    excludes: int
    sources: Sequence[Sequence[tuple[int, int]]]

    def allow(self, mask: int) -> bool:
        """Say whether each value is from the source that decides."""
        for sources in self.sources:
            decides = next(values for rule, values in sources if mask & rule)
            if not mask & decides:
                return False
        return True

    def keep(self, masks: Masks) -> bool:
        """Say whether combinations with these masks are points of the sweep."""
        return any(not mask & self.excludes and self.allow(mask) for mask in masks)


class Grid:
    """The combinations of some dimensions that the rules keep, in order.

    Where more dimensions follow, `ends` says how many combinations have rows of these masks.
    """

    def __init__(
        self,
        dims: Sequence[Dimension],
        rules: Rules,
        ends: Callable[[Masks], int] | None = None,
    ) -> None:
        self.dims = dims
        self.rules = rules
        self._ends = ends or rules.keep
        self._ways: dict[tuple[int, Masks], int] = {}
        self._onward = lru_cache(_REMEMBERED)(self._following)
        # no condition asks for dimensions that follow on the last of these
        asked = [i for i, dim in enumerate(dims, 1) if dim.counts.keys() != {NEUTRAL}]
        self._asked = max(asked, default=1)
        self._free = [range(len(dim.masks)) for dim in dims[self._asked :]]

    @property
    def count(self) -> int:
        """The number of combinations that are kept."""
        return self.ways(0, NEUTRAL)

    @property
    def kinds(self) -> int:
        """The most kinds of combinations that conditions tell apart: `count` looks at each."""
        return prod(len(dim.counts) for dim in self.dims)

    def ways(self, depth: int, masks: Masks) -> int:
        """Return how many combinations begin with rows of these masks, one of `depth` dimensions.

        Rows of equal masks are counted together, so the time depends on kinds and not on values.
        """
        if depth == len(self.dims):
            return int(self._ends(masks))
        key = (depth, masks)
        if key not in self._ways:
            self._ways[key] = sum(
                number * self.ways(depth + 1, joined(masks, more))
                for more, number in self.dims[depth].counts.items()
            )
        return self._ways[key]

    def walk(self, rows: Indices = (), masks: Masks = NEUTRAL) -> Iterator[Indices]:
        """Yield in order the combinations that are kept and begin with `rows`, of these masks."""
        depth = len(rows)
        onward = self._onward(depth, masks)
        for row, more in enumerate(self.dims[depth].masks):
            if more not in onward:
                continue
            if depth + 1 < self._asked:
                yield from self.walk((*rows, row), onward[more])
            else:
                for others in product(*self._free):
                    yield (*rows, row, *others)

    def _following(self, depth: int, masks: Masks) -> Mapping[Masks, Masks]:
        """Return the masks of rows with which some combination goes on, and what both leave."""
        both = {more: joined(masks, more) for more in self.dims[depth].counts}
        return {more: these for more, these in both.items() if self.ways(depth + 1, these)}

    def masks_of(self, rows: Iterable[int]) -> Masks:
        """Return the masks of a combination."""
        masks = NEUTRAL
        for dim, row in zip(self.dims, rows, strict=True):
            masks = joined(masks, dim.masks[row])
        return masks

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
        reached = {NEUTRAL}
        for dim in self.dims:
            reached = {joined(masks, more) for masks in reached for more in dim.counts}
        bits = 0
        for masks in reached:
            for mask in filter(self.rules.allow, masks):
                excluding = mask & self.rules.excludes
                bits |= excluding or mask
        return bits

    def holds(self, axes: Mapping[str, Any]) -> bool:
        """Say whether a full assignment of values is one of the kept combinations."""
        rows = []
        for dim in self.dims:
            row = dim.places.get(canonical_json([axes[name] for name in dim.names]))
            if row is None:
                return False
            rows.append(row)
        return self.rules.keep(self.masks_of(rows))

    def where(self, condition: Condition) -> Grid:
        """Return the combinations that meet one more condition."""
        dims = []
        for dim in self.dims:
            rows: Collection[int] = range(len(dim.masks))
            for name in condition.keys() & set(dim.names):
                values = dim.column(name)
                rows = [row for row in rows if condition[name](values[row])]
            if len(rows) == len(dim.masks):
                dims.append(dim)
                continue
            columns = [[column[row] for row in rows] for column in dim.columns]
            dims.append(Dimension(dim.names, columns, [dim.masks[row] for row in rows]))
        return Grid(dims, self.rules)

    def on(self, device: str) -> Grid:
        """Return the combinations with this device as the `gpu` of all of them."""
        dims = [_on(device, dim) if "gpu" in dim.names else dim for dim in self.dims]
        return Grid(dims, self.rules)


def grid_of(space: Space) -> Grid:
    """Return the combinations of a space; looks once at each value of an axis with conditions."""
    conditions = [*space.excludes, *(rule.condition for rule in space.whens)]
    tests: dict[str, dict[int, Predicate]] = {}  # by axis, then by the condition's bit
    for number, condition in enumerate(conditions):
        for name, test in condition.items():
            tests.setdefault(name, {})[1 << number] = test
    next_bit = 1 << len(conditions)
    sources = []
    dims = []
    for names in space.groups():
        columns = [space.sources(name)[0] for name in names]
        masks = [[-1] * len(columns[0])]
        if names[0] in space.conditional():  # it moves alone
            rules = [1 << len(space.excludes) + i for i in space.setters(names[0])]
            bits = [next_bit << i for i in range(len(rules) + 1)]
            next_bit <<= len(bits)
            sources.append([*zip(rules[::-1], bits[:0:-1], strict=True), (-1, bits[0])])
            united, of_sources = _united(space.sources(names[0]), bits)
            columns, masks = [united], [of_sources]
        for name, column in zip(names, columns, strict=True):
            if name in tests:
                masks.append([_mask(tests[name], value) for value in column])
        shared: dict[int, Masks] = {}  # equal masks are one object
        joint = (reduce(and_, each) for each in zip(*masks, strict=True))
        dims.append(Dimension(names, columns, [shared.setdefault(m, (m,)) for m in joint]))
    others = {name: value for name, value in space.defaults.items() if name not in space.names()}
    # without axes there is no combination, not even the one that has all defaults
    masks_of_others = [NEUTRAL] if dims else []
    rest = Dimension(tuple(others), [[value] for value in others.values()], masks_of_others)
    return Grid([rest, *dims], Rules((1 << len(space.excludes)) - 1, sources))


def _mask(tests: Mapping[int, Predicate], value: object) -> int:
    """Return every bit but those of the conditions that a value does not meet."""
    mask = -1
    for bit, test in tests.items():
        if not test(value):
            mask &= ~bit
    return mask


def _united(sources: Sequence[Sequence[Any]], bits: Sequence[int]) -> tuple[list[Any], list[int]]:
    """Return the distinct values of all sources, with the masks of their sources."""
    values: dict[str, Any] = {}
    masks: dict[str, int] = {}
    for source, bit in zip(sources, bits, strict=True):
        for value in source:
            key = canonical_json(value)
            values.setdefault(key, value)
            masks[key] = masks.get(key, ~sum(bits)) | bit
    return [*values.values()], [*masks.values()]


def _on(device: str, dim: Dimension) -> Dimension:
    """Return a dimension with this device as `gpu`; rows that become equal are joined."""
    place = dim.names.index("gpu")
    values: dict[str, tuple[Any, ...]] = {}
    masks: dict[str, Masks] = {}
    for row, more in enumerate(dim.masks):
        given = dim.row(row)
        moved = (*given[:place], device, *given[place + 1 :])
        key = canonical_json(moved)
        values.setdefault(key, moved)
        masks[key] = (*masks.get(key, ()), *more)
    columns = [*zip(*values.values(), strict=True)] or [() for _ in dim.names]
    return Dimension(dim.names, columns, [*masks.values()])


def joined(masks: Masks, more: Masks) -> Masks:
    """Return the masks of a combination, given those of its two parts."""
    return tuple([a & b for a in masks for b in more])
