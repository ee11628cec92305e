"""Counts and walks the combinations of a sweep's axes under `zip`, `exclude` and `when`.

Axes that move together are one dimension, and all axes that the sweep leaves alone are one, too.
Each condition has a bit. The mask of a row has the bits of the conditions that its values meet, and
of all conditions on other axes. The masks of a combination's rows, joined by AND, leave the bits of
the conditions that the combination meets. Beginnings with equal masks go on alike, so they are
counted together.

An axis that `when` rules set has the values of all of its sources: its own, and those of each
rule. To be from a source is a condition, too; the last rule that is met decides from which source
the value must be.

A rehearsal gives all rows the same `gpu`. Rows that become equal are joined into one with the masks
of all of them, which is kept if one of them would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import compress, product
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hpcsweep.point import canonical_json

if TYPE_CHECKING:
    from hpcsweep.spec.space import Condition, Space

Indices: TypeAlias = tuple[int, ...]  # one row of each dimension
Masks: TypeAlias = tuple[int, ...]  # one for each of the rows that were joined into this one
Tests: TypeAlias = dict[str, dict[int, Callable[[Any], bool]]]  # by axis, then by bit

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
        depth: int | None = None,
    ) -> None:
        """Walk the first `depth` dimensions, by default all."""
        self.dims = dims
        self.excludes = excludes
        self.sources = sources
        self.depth = len(dims) if depth is None else depth
        self._ways: dict[tuple[int, Masks], int] = {}
        self._onward = lru_cache(_REMEMBERED)(self._following)
        # no condition asks for dimensions that follow on the last of these: they are multiplied
        walked = dims[: self.depth]
        asked = [i for i, dim in enumerate(walked, 1) if dim.counts.keys() != {NEUTRAL}]
        self._asked = max(asked, default=1)
        self._free = [range(len(dim.masks)) for dim in walked[self._asked :]]

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
        if depth == self.depth:
            return len(self.ends(masks))
        key = (depth, masks)
        if key not in self._ways:
            self._ways[key] = sum(
                number * self.ways(depth + 1, joined(masks, more))
                for more, number in self.dims[depth].counts.items()
            )
        return self._ways[key]

    def ends(self, masks: Masks) -> Sequence[Indices]:
        """Return what follows on rows of these masks: a sample's other rows, here nothing more."""
        return [()] if self.keeps(masks) else []

    def keeps(self, masks: Masks) -> bool:
        """Say whether combinations with these masks are points of the sweep."""
        return any(not mask & self.excludes and self._exists(mask) for mask in masks)

    def _exists(self, mask: int) -> bool:
        """Say whether each value is from the source that decides."""
        for sources in self.sources:
            decides = next(values for rule, values in sources if mask & rule)
            if not mask & decides:
                return False
        return True

    def walk(self) -> Iterator[Indices]:
        """Yield the combinations that are kept, in order."""
        return self._from((), NEUTRAL)

    def _from(self, rows: Indices, masks: Masks) -> Iterator[Indices]:
        """Yield the combinations that begin with rows of these masks."""
        depth = len(rows)
        onward = self._onward(depth, masks)
        for row, more in enumerate(self.dims[depth].masks):
            if more not in onward:
                continue
            if depth + 1 < self._asked:
                yield from self._from((*rows, row), onward[more])
            else:
                for others in product(*self._free):
                    yield (*rows, row, *others)

    def _following(self, depth: int, masks: Masks) -> Mapping[Masks, Masks]:
        """Return the masks of rows with which some combination goes on, and what both leave."""
        found = {}
        for more in self.dims[depth].counts:
            both = joined(masks, more)
            if self.ways(depth + 1, both):
                found[more] = both
        return found

    def masks_of(self, rows: Iterable[int]) -> Masks:
        """Return the masks of a combination, or of its beginning."""
        masks = NEUTRAL
        for dim, row in zip(self.dims, rows, strict=False):
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
            reached = {joined(masks, more) for masks, more in product(reached, dim.counts)}
        bits = 0
        for masks in reached:
            for mask in filter(self._exists, masks):
                excluding = mask & self.excludes
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
        return self.keeps(self.masks_of(rows))


def joined(masks: Masks, more: Masks) -> Masks:
    """Return the masks of a combination, given those of its two parts."""
    return tuple([a & b for a in masks for b in more])


def grid_of(space: Space, *, only: Condition | None = None, device: str | None = None) -> Grid:
    """Return the combinations of a space; looks once at each value of an axis with conditions.

    only: a condition that all of them meet. device: the `gpu` that all of them get.
    """
    only = only or {}
    tests: Tests = {}
    conditions = [*space.excludes, *(rule.condition for rule in space.whens)]
    for number, condition in enumerate(conditions):
        for name, test in condition.items():
            tests.setdefault(name, {})[1 << number] = test
    sources = _sources(space, tests, 1 << len(conditions))
    alone = tuple(name for name in space.defaults if name not in space.names())
    dims = []
    for names in (alone, *space.groups()):
        if not names:  # a command may name every axis that it has
            continue
        columns = _columns(space, names)
        for name in only.keys() & columns.keys():
            passes = [only[name](value) for value in columns[name]]
            columns = {other: [*compress(column, passes)] for other, column in columns.items()}
        dim = Dimension(names, [*columns.values()], _masks(columns, tests))
        dims.append(_on(device, dim) if device is not None and "gpu" in names else dim)
    if not space.names():  # there is no combination, not even one of all defaults
        dims = [Dimension((), (), ())]
    return Grid(dims, (1 << len(space.excludes)) - 1, sources)


def _sources(space: Space, tests: Tests, next_bit: int) -> list[list[tuple[int, int]]]:
    """Return the `sources` of a grid; add to `tests` which values are from each of them."""
    found = []
    for name in space.conditional():
        # what holds if no rule does has all bits in place of a rule's
        rules = [-1, *(1 << len(space.excludes) + place for place in space.setters(name))]
        pairs = []
        for rule, values in zip(rules, space.sources(name), strict=True):
            known = {canonical_json(value) for value in values}
            tests.setdefault(name, {})[next_bit] = partial(_among, known)
            pairs.append((rule, next_bit))
            next_bit <<= 1
        found.append(pairs[::-1])  # the last rule wins
    return found


def _among(keys: Collection[str], value: object) -> bool:
    return canonical_json(value) in keys


def _columns(space: Space, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return the values of axes that move together; of one that rules set, those of all sources."""
    if names[0] not in space.conditional():
        return {name: space.sources(name)[0] for name in names}
    values: dict[str, Any] = {}
    for value in space.values(names[0]):
        values.setdefault(canonical_json(value), value)
    return {names[0]: [*values.values()]}  # it moves alone


def _masks(columns: Mapping[str, Sequence[Any]], tests: Tests) -> list[Masks]:
    """Return the masks of rows: every bit but those of conditions that a value does not meet."""
    masks = [-1 for _ in next(iter(columns.values()))]
    for name in columns.keys() & tests.keys():
        for row, value in enumerate(columns[name]):
            for bit, test in tests[name].items():
                if not test(value):
                    masks[row] &= ~bit
    shared: dict[int, Masks] = {}  # equal masks are one object
    return [shared.setdefault(mask, (mask,)) for mask in masks]


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
