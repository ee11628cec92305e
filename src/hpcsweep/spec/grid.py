"""Counts and lists the combinations of a sweep's axes under `zip`, `exclude` and `when`.

Axes that vary are dimensions; axes that move together share one. Each condition has a bit. The mask
of a value has the bits of the conditions that the value fulfils, and of all conditions on other
axes. The masks of a combination's rows, joined by AND, leave the bits of the conditions that match
the combination. Rows with equal masks are of one kind, so that kinds are counted and not rows.

An axis that `when` rules set has the values of all of its sources: its own, and those of each
rule. Every source has a bit, too; the last rule that matches decides which source must have the
value.

Selecting one GPU, or rehearsing, gives all rows the same `gpu`. Rows that become equal are joined
into one with the masks of all of them, which is kept if one of them would be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import compress, count, product
from math import prod
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.point import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.spec.space import Condition, Predicate, Space

    Indices = tuple[int, ...]

    Masks = tuple[int, ...]  # one for each of the rows that were joined into this one

NEUTRAL: Final[Masks] = (-1,)  # every bit
_REMEMBERED: Final = 200_000  # cached results of a walk


@dataclass(frozen=True)
class Dimension:
    """Axes that move together: their columns, and the masks of each row (None: no conditions)."""

    names: tuple[str, ...]
    columns: tuple[Sequence[Any], ...]
    masks: Sequence[Masks] | None = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def row(self, index: int) -> tuple[Any, ...]:
        """Return the values of a row."""
        return tuple(column[index] for column in self.columns)

    def masks_at(self, row: int) -> Masks:
        """Return the masks of a row."""
        return NEUTRAL if self.masks is None else self.masks[row]

    def find(self, values: tuple[Any, ...]) -> int | None:
        """Return the row that has these values."""
        column = self.columns[0]
        if isinstance(column, range):  # it needs no index
            return column.index(values[0]) if values[0] in column else None
        return self._rows.get(canonical_json(values))

    @cached_property
    def counts(self) -> Mapping[Masks, int]:
        """The number of rows by their masks."""
        return {NEUTRAL: len(self)} if self.masks is None else Counter(self.masks)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {canonical_json(self.row(row)): row for row in range(len(self))}


class Grid:
    """The combinations of a space, in order.

    `gpu` keeps the rows of this GPU and those without one; `rehearse` gives all rows this device.
    `probes` are further conditions, of which `matches` tells.
    """

    def __init__(
        self,
        space: Space,
        *,
        gpu: str | None = None,
        rehearse: str | None = None,
        probes: Sequence[Condition] = (),
    ) -> None:
        """Lay out the dimensions; looks once at each value of an axis with conditions."""
        self._space = space
        conditions = [*space.excludes, *(rule.condition for rule in space.whens), *probes]
        self._excludes = (1 << len(space.excludes)) - 1  # their bits
        self._tests: dict[str, dict[int, Predicate]] = {}  # by axis, then by the condition's bit
        for bit, condition in enumerate(conditions):
            for name, test in condition.items():
                self._tests.setdefault(name, {})[bit] = test
        self._sources = _sources(space, len(conditions))
        self._rules = (1 << len(conditions)) - 1 & ~self._excludes  # bits of rules and probes
        names = space.names()
        groups = [*space.groups(), *((name,) for name in space.defaults if name not in names)]
        dims = [self._dimension(group) for group in groups]
        if not names:
            dims = [Dimension(("model",), ([],))]  # no axes, no combination
        if gpu is not None or rehearse is not None:
            dims = [_on_device(dim, gpu, rehearse) if "gpu" in dim.names else dim for dim in dims]
        self.dims = [dim for dim in dims if len(dim) != 1] or dims[:1]
        self.fixed = dict(space.defaults)  # the values that no dimension varies
        self.start: Masks = NEUTRAL
        for dim in dims:
            if len(dim) == 1 and dim is not self.dims[0]:
                self.fixed.update(zip(dim.names, dim.row(0), strict=True))
                self.start = self.masks_of([dim], [0])

    @cached_property
    def count(self) -> int:
        """The number of combinations that are kept."""
        return sum(ways for masks, ways in self.ways(self.dims) if self.keeps(masks))

    def matches(self, condition: int) -> bool:
        """Say whether a condition matches something: excludes count first, then rules, then probes.

        An exclude matches any combination, the others those that are kept.
        """
        return bool(self._matched >> condition & 1)

    @property
    def kinds(self) -> int:
        """The most kinds of combinations that conditions tell apart: `count` looks at each."""
        return prod(len(dim.counts) for dim in self.dims)

    @cached_property
    def _matched(self) -> int:
        """The bits of the conditions that match something."""
        found = 0
        for masks, _ in self.ways(self.dims):
            for mask in filter(self._exists, masks):
                found |= mask & self._excludes or mask & self._rules
        return found

    def ways(self, dims: Iterable[Dimension]) -> Iterable[tuple[Masks, int]]:
        """Return the masks of combinations of the dimensions' rows, with their numbers."""
        ways: Mapping[Masks, int] = {self.start: 1}
        for dim in dims:
            ways = multiplied(ways, dim.counts)
        return ways.items()

    def walk(self) -> Iterator[tuple[Indices, Iterable[int]]]:
        """Yield, in order, rows of all dimensions but the last, with the kept rows of the last."""
        *outer, last = self.dims
        if not len(last):
            return

        @lru_cache(_REMEMBERED // len(last.counts))
        def kept(masks: Masks) -> set[Masks]:
            return {more for more in last.counts if self.keeps(joined(masks, more))}

        for rows in product(*(range(len(dim)) for dim in outer)):
            keeps = kept(self.masks_of(outer, rows))
            inner: Iterable[int] = range(len(last))
            if keeps and len(keeps) < len(last.counts):
                inner = compress(inner, map(keeps.__contains__, last.masks or ()))
            if keeps:
                yield rows, inner

    def masks_of(self, dims: Iterable[Dimension], rows: Iterable[int]) -> Masks:
        """Return the masks of a combination of one row of each dimension."""
        masks = self.start
        for dim, row in zip(dims, rows, strict=True):
            if dim.masks is not None:
                masks = joined(masks, dim.masks[row])
        return masks

    def keeps(self, masks: Masks) -> bool:
        """Say whether combinations with these masks are kept."""
        return any(not mask & self._excludes and self._exists(mask) for mask in masks)

    def holds(self, axes: Mapping[str, Any]) -> bool:
        """Say whether a full assignment of values is one of the kept combinations."""
        varied = {name for dim in self.dims for name in dim.names}
        if any(axes[name] != value for name, value in self.fixed.items() if name not in varied):
            return False
        rows = [dim.find(tuple(axes[name] for name in dim.names)) for dim in self.dims]
        existing = [row for row in rows if row is not None]
        return len(existing) == len(rows) and self.keeps(self.masks_of(self.dims, existing))

    def _exists(self, mask: int) -> bool:
        """Say whether each value is from the last source whose rule matches."""
        for sources in self._sources.values():
            of_rules = (value for rule, value in sources[:0:-1] if mask >> (rule or 0) & 1)
            if not mask >> next(of_rules, sources[0][1]) & 1:
                return False
        return True

    def _dimension(self, names: tuple[str, ...]) -> Dimension:
        """Return a group's rows with their masks."""
        columns: tuple[Sequence[Any], ...] = tuple(self._space.sources(n)[0] for n in names)
        masks: list[Iterable[int]] = []
        if names[0] in self._sources:  # it moves alone
            bits = [bit for _, bit in self._sources[names[0]]]
            united, of_sources = _united(self._space.sources(names[0]), bits)
            columns = (united,)
            masks = [of_sources]
        for name, column in zip(names, columns, strict=True):
            if name in self._tests:
                masks.append(_value_masks(self._tests[name], column))
        if not masks:
            return Dimension(names, columns)
        shared: dict[int, Masks] = {}  # equal masks are one object
        joint = (reduce(and_, each) for each in zip(*masks, strict=True))
        return Dimension(names, columns, [shared.setdefault(mask, (mask,)) for mask in joint])


def _sources(space: Space, bit: int) -> dict[str, list[tuple[int | None, int]]]:
    """Return, for each axis that rules set, its sources: the bits of the rule and of the values.

    The axis's own values come first, without a rule. Bits of values are numbered from `bit` on.
    """
    sources: dict[str, list[tuple[int | None, int]]] = {}
    for name in space.conditional():
        rules = [i for i, rule in enumerate(space.whens, len(space.excludes)) if name in rule.axes]
        sources[name] = list(zip([None, *rules], count(bit)))
        bit += len(sources[name])
    return sources


def _united(sources: list[Sequence[Any]], bits: list[int]) -> tuple[list[Any], list[int]]:
    """Return the distinct values of all sources, with the bits of their sources."""
    keyed = [{canonical_json(value): value for value in source} for source in sources]
    values = {key: value for source in keyed for key, value in source.items()}
    of_none = ~sum(1 << bit for bit in bits)
    masks = [
        of_none | sum(1 << bit for bit, source in zip(bits, keyed, strict=True) if key in source)
        for key in values
    ]
    return list(values.values()), masks


def _on_device(dim: Dimension, gpu: str | None, rehearse: str | None) -> Dimension:
    """Return a dimension with this device as `gpu`; rows that become equal are joined."""
    place = dim.names.index("gpu")
    joined: dict[str, list[int]] = {}
    for row in range(len(dim)):
        values = list(dim.row(row))
        if rehearse is not None or values[place] in {gpu, None}:
            values[place] = rehearse or gpu
            joined.setdefault(canonical_json(values), []).append(row)
    columns = [[column[rows[0]] for rows in joined.values()] for column in dim.columns]
    columns[place] = [rehearse or gpu] * len(joined)
    old = dim.masks
    masks = old and [tuple(mask for row in rows for mask in old[row]) for rows in joined.values()]
    return Dimension(dim.names, tuple(columns), masks)


def joined(masks: Masks, more: Masks) -> Masks:
    """Return the masks of a combination, given those of its two parts."""
    return tuple([a & b for a in masks for b in more])


def multiplied(counts: Mapping[Masks, int], more: Mapping[Masks, int]) -> Mapping[Masks, int]:
    """Return the masks of combinations of two parts, with their numbers."""
    product_counts: Counter[Masks] = Counter()
    for masks, ways in counts.items():
        for others, number in more.items():
            product_counts[joined(masks, others)] += ways * number
    return product_counts


def _value_masks(tests: Mapping[int, Predicate], column: Iterable[Any]) -> Iterator[int]:
    """Yield the mask of each value."""
    others = ~sum(1 << bit for bit in tests)
    for value in column:
        yield others | sum(1 << bit for bit, test in tests.items() if test(value))
