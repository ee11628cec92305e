"""Which combinations of axis values a sweep has: the product under `zip`, `exclude` and `when`.

Axes that vary are dimensions; axes that move together share one. Every condition of the sweep has
a bit, and a row of a dimension has a mask: the bits of the conditions that its values do not
contradict. The masks of a combination's rows, joined by AND, leave the bits of the conditions that
match the combination. Rows with equal masks are counted together, so counting costs a few steps
for each different mask, and not for each combination.

An axis that `when` rules set has the values of all of its sources: its own, and those of each
rule. Every source has a bit, too; the last rule that matches says which source must have the value.

Selecting one GPU, or rehearsing, gives all rows the same `gpu`. Rows that become equal are joined
into one, which has the masks of all of them; it is kept where one of them would be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import compress, count, product
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.point import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.spec.space import Condition, Predicate, Space

    Indices = tuple[int, ...]
    Masks = tuple[int, ...]  # one, or one for each of the rows that were joined

_NEUTRAL: Final[Masks] = (-1,)  # every bit
_REMEMBERED: Final = 200_000  # answers that a walk keeps
_UNNAMED: Final = object()  # stands for all values that no condition names


@dataclass(frozen=True)
class Dimension:
    """Axes that move together: a column of values for each, and the masks of each row.

    `masks` is None where no condition asks for these axes.
    """

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
        return _NEUTRAL if self.masks is None else self.masks[row]

    def find(self, values: tuple[Any, ...]) -> int | None:
        """Return the row that has these values."""
        column = self.columns[0]
        if isinstance(column, range):  # it needs no index
            return column.index(values[0]) if values[0] in column else None
        return self._rows.get(canonical_json(values))

    @cached_property
    def counts(self) -> Mapping[Masks, int]:
        """The number of rows by their masks."""
        return {_NEUTRAL: len(self)} if self.masks is None else Counter(self.masks)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {canonical_json(self.row(row)): row for row in range(len(self))}


class Grid:
    """The combinations of a space, in order.

    `gpu` takes the rows of this GPU, and those of none; `rehearse` takes all rows as if they were
    this device's. `probes` are conditions that are only counted.
    """

    def __init__(
        self,
        space: Space,
        *,
        gpu: str | None = None,
        rehearse: str | None = None,
        probes: Sequence[Condition] = (),
    ) -> None:
        """Lay out the dimensions; costs one look at each value of an axis with conditions."""
        self._space = space
        conditions = [*space.excludes, *(rule.condition for rule in space.whens), *probes]
        self._excludes = (1 << len(space.excludes)) - 1  # their bits
        self._tests: dict[str, dict[int, Predicate]] = {}  # by axis, then by the condition's bit
        for bit, condition in enumerate(conditions):
            for name, test in condition.items():
                self._tests.setdefault(name, {})[bit] = test
        self._sources = _sources(space, len(conditions))
        names = space.names()
        groups = [*space.groups(), *((name,) for name in space.defaults if name not in names)]
        dims = [self._dimension(group) for group in groups]
        if not names:
            dims = [Dimension(("model",), ([],))]  # no axes, no combination
        if gpu is not None or rehearse is not None:
            dims = [_on_device(dim, gpu, rehearse) if "gpu" in dim.names else dim for dim in dims]
        self.dims = [dim for dim in dims if len(dim) != 1] or dims[:1]
        self.fixed = dict(space.defaults)  # the values that no dimension varies
        self.start: Masks = _NEUTRAL
        for dim in dims:
            if len(dim) == 1 and dim is not self.dims[0]:
                self.fixed.update(zip(dim.names, dim.row(0), strict=True))
                self.start = self.masks_of([dim], [0])

    @cached_property
    def count(self) -> int:
        """The number of combinations that are kept."""
        return sum(self._kept.values())

    def excluded_by(self, exclude: int) -> int:
        """Return how many combinations an exclude matches; another may match them as well."""
        ways = self.ways(self.dims, ~self._excludes | 1 << exclude)
        return sum(n for masks, n in ways if any(m >> exclude & 1 for m in self._existing(masks)))

    def set_by(self, rule: int) -> int:
        """Return how many kept combinations a rule matches."""
        bit = len(self._space.excludes) + rule
        return sum(number for matched, number in self._kept.items() if matched >> bit & 1)

    def probed(self, probe: int) -> int:
        """Return how many kept combinations a probe matches."""
        return self.set_by(len(self._space.whens) + probe)

    @cached_property
    def _kept(self) -> Counter[int]:
        """The number of kept combinations, by the bits of the conditions that match them."""
        found: Counter[int] = Counter()
        for masks, ways in self.ways(self.dims):
            kept = self._keeping(masks)
            if kept:
                found[reduce(or_, kept)] += ways
        return found

    def ways(self, dims: Iterable[Dimension], bits: int = -1) -> Iterator[tuple[Masks, int]]:
        """Yield masks that rows of the dimensions lead to, with the number of ways to get there.

        Only `bits` of the masks are looked at. The same masks may come more than once.
        """
        rows: list[Mapping[Masks, int]] = [{_NEUTRAL: 1}]
        rows += [_narrowed(dim.counts, bits) for dim in dims]
        *first, last = sorted(rows, key=len)
        found: Mapping[Masks, int] = {self.start: 1}
        for counts in first:
            following: Counter[Masks] = Counter()
            for masks, ways in found.items():
                for more, number in counts.items():
                    following[joined(masks, more)] += ways * number
            found = following
        for masks, ways in found.items():
            for more, number in last.items():
                yield joined(masks, more), ways * number

    def walk(self) -> Iterator[tuple[Indices, Iterable[int]]]:
        """Yield, in order, rows of all dimensions but the last, and the last one's kept rows."""
        *outer, last = self.dims

        @lru_cache(_REMEMBERED // max(1, len(last.counts)))
        def kept(masks: Masks) -> dict[Masks, bool]:
            return {more: self.keeps(joined(masks, more)) for more in last.counts}

        for rows in product(*(range(len(dim)) for dim in outer)):
            keeps = kept(self.masks_of(outer, rows))
            if last.masks is not None:
                yield rows, compress(range(len(last)), map(keeps.__getitem__, last.masks))
            elif keeps[_NEUTRAL]:
                yield rows, range(len(last))

    def masks_of(self, dims: Iterable[Dimension], rows: Iterable[int]) -> Masks:
        """Return the masks of a combination of one row of each dimension."""
        masks = self.start
        for dim, row in zip(dims, rows, strict=True):
            if dim.masks is not None:
                masks = joined(masks, dim.masks[row])
        return masks

    def keeps(self, masks: Masks) -> bool:
        """Say whether the sweep has the combinations that have these masks."""
        return bool(self._keeping(masks))

    def holds(self, axes: Mapping[str, Any]) -> bool:
        """Say whether a full assignment of values is one of the kept combinations."""
        varied = {name for dim in self.dims for name in dim.names}
        if any(axes[name] != value for name, value in self.fixed.items() if name not in varied):
            return False
        rows = [dim.find(tuple(axes[name] for name in dim.names)) for dim in self.dims]
        found = [row for row in rows if row is not None]
        return len(found) == len(rows) and self.keeps(self.masks_of(self.dims, found))

    def _keeping(self, masks: Masks) -> list[int]:
        """Return the masks that no exclude matches."""
        return [mask for mask in self._existing(masks) if not mask & self._excludes]

    def _existing(self, masks: Masks) -> Iterable[int]:
        """Return the masks where each value is from the source that holds there."""
        if not self._sources:
            return masks
        return [mask for mask in masks if all(_agree(mask, s) for s in self._sources.values())]

    def _dimension(self, names: tuple[str, ...]) -> Dimension:
        """Return a group's rows with their masks."""
        columns: tuple[Sequence[Any], ...] = tuple(self._space.sources(n)[0] for n in names)
        masks: list[Iterable[int]] = []
        if names[0] in self._sources:  # it moves alone
            bits = [bit for _, bit in self._sources[names[0]]]
            united, of_sources = _united(self._space.sources(names[0]), bits)
            columns, masks = (united,), [of_sources]
        for name, column in zip(names, columns, strict=True):
            if name in self._tests:
                masks.append(_masks(self._tests[name], column))
        if not masks:
            return Dimension(names, columns)
        known: dict[Masks, Masks] = {}  # equal masks are one object
        rows = ((reduce(and_, row),) for row in zip(*masks, strict=True))
        return Dimension(names, columns, [known.setdefault(row, row) for row in rows])


def joined(masks: Masks, more: Masks) -> Masks:
    """Return the masks of combinations, given those of two of their parts."""
    return tuple([a & b for a in masks for b in more])


def _narrowed(counts: Mapping[Masks, int], bits: int) -> Mapping[Masks, int]:
    found: Counter[Masks] = Counter()
    for masks, number in counts.items():
        found[joined(masks, (bits,))] += number
    return found


def _sources(space: Space, bit: int) -> dict[str, list[tuple[int | None, int]]]:
    """Return, for each axis that rules set, its sources: the bit of the rule, and of the values.

    Its own values come first, and have no rule. Bits of values are numbered from `bit` on.
    """
    found: dict[str, list[tuple[int | None, int]]] = {}
    for name in space.conditional():
        rules = [i for i, rule in enumerate(space.whens, len(space.excludes)) if name in rule.axes]
        found[name] = list(zip([None, *rules], count(bit)))
        bit += len(found[name])
    return found


def _agree(mask: int, sources: list[tuple[int | None, int]]) -> bool:
    """Say whether the last source whose rule matches has the value."""
    *_, source = (bit for rule, bit in sources if rule is None or mask >> rule & 1)
    return bool(mask >> source & 1)


def _united(sources: list[Sequence[Any]], bits: list[int]) -> tuple[list[Any], list[int]]:
    """Return the values of all sources, each once, and the bits of the sources that have it."""
    values: dict[str, Any] = {}
    masks: dict[str, int] = {}
    for bit, source in zip(bits, sources, strict=True):
        for value in source:
            key = canonical_json(value)
            values.setdefault(key, value)
            masks[key] = masks.get(key, ~sum(1 << each for each in bits)) | 1 << bit
    return list(values.values()), list(masks.values())


def _masks(tests: Mapping[int, Predicate], column: Sequence[Any]) -> Iterator[int]:
    """Yield the mask of each value; of the values that no test tells apart, one is tested."""
    named = {value for test in tests.values() for value in test.values}
    cuts = sorted({bound for test in tests.values() for _, bound in test.bounds})
    known: dict[tuple[Any, int], int] = {}
    for value in column:
        # a map of algorithms is no value that a condition can name
        which = value if not isinstance(value, dict) and value in named else _UNNAMED
        where = -1 if value is None else bisect_left(cuts, value) + bisect_right(cuts, value)
        if (which, where) not in known:
            known[which, where] = ~sum(1 << bit for bit, test in tests.items() if not test(value))
        yield known[which, where]


def _on_device(dim: Dimension, gpu: str | None, rehearse: str | None) -> Dimension:
    """Return a dimension whose `gpu` is this device; rows that become equal are joined."""
    place = dim.names.index("gpu")
    joined: dict[str, list[int]] = {}
    for row in range(len(dim)):
        values = list(dim.row(row))
        if rehearse is not None or values[place] in {gpu, None}:
            values[place] = rehearse or gpu
            joined.setdefault(canonical_json(values), []).append(row)
    columns = [[column[rows[0]] for rows in joined.values()] for column in dim.columns]
    columns[place] = [rehearse or gpu] * len(joined)
    of = dim.masks
    masks = of and [tuple(mask for row in rows for mask in of[row]) for rows in joined.values()]
    return Dimension(dim.names, tuple(columns), masks)
