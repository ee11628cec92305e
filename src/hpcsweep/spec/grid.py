"""Counts and lists the combinations of a sweep's axes under `zip`, `exclude` and `when`.

Axes that vary are dimensions; axes that move together share one. Each condition has a bit. The mask
of a value has the bits of the conditions that the value fulfils, and of all conditions on other
axes. The masks of a combination's rows, joined by AND, leave the bits of the conditions that match
the combination. Rows with equal masks are one class. For counting, the dimensions are merged into
two parts: for each mask of the smaller part, the remaining classes of the larger part are a set, an
integer with a bit for each, so that one operation per condition handles all of them.

An axis that `when` rules set has the values of all of its sources: its own, and those of each
rule. Every source has a bit, too; the last rule that matches decides which source must have the
value.

Selecting one GPU, or rehearsing, gives all rows the same `gpu`. Rows that become equal are joined
into one with the masks of all of them, which is kept if one of them would be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, compress, count, groupby, pairwise, product, repeat
from operator import and_, xor
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.point import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.spec.space import Condition, Predicate, Space

    Indices = tuple[int, ...]

    Masks = tuple[int, ...]  # one for each of the rows that were joined into this one

NEUTRAL: Final[Masks] = (-1,)  # every bit
_DIGITS: Final = [bytes(ord("0") + (byte >> bit & 1) for byte in range(256)) for bit in range(8)]
# Values have 2n + 1 places among n bounds: below the first, on it, above it, on the second ...
_BEGINS: Final = {"ge": 1, "gt": 2}  # steps from below a bound to the first place that passes
_ENDS: Final = {"lt": 1, "le": 2}  # and to the first that does not
_SETS: Final = 4000  # cached sizes of sets of classes
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
    `probes` are conditions that are only counted.
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
        self._bits = len(conditions) + sum(map(len, self._sources.values()))
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
        return self._numbers[-1]

    def excluded_by(self, exclude: int) -> int:
        """Return how many combinations an exclude matches; other excludes may match them, too."""
        return self._numbers[exclude]

    def set_by(self, rule: int) -> int:
        """Return how many kept combinations a rule matches."""
        return self._numbers[len(self._space.excludes) + rule]

    def probed(self, probe: int) -> int:
        """Return how many kept combinations a probe matches."""
        return self.set_by(len(self._space.whens) + probe)

    @cached_property
    def _numbers(self) -> Counter[int]:
        """Number of combinations that each bit's condition matches; under -1 the kept ones."""
        parts: list[Mapping[Masks, int]] = [{self.start: 1}, {NEUTRAL: 1}]
        for dim in sorted(self.dims, key=lambda dim: len(dim.counts), reverse=True):
            parts.sort(key=len)
            parts[0] = multiplied(parts[0], dim.counts)
        some, others = sorted(parts, key=len)
        numbers: Counter[int] = Counter()
        if not others:
            return numbers
        classes = Classes(others, self._bits)
        for masks, ways in some.items():
            for bit, matched in self._matched(masks, classes).items():
                numbers[bit] += ways * classes.number(matched)
        return numbers

    def _matched(self, masks: Masks, classes: Classes) -> dict[int, int]:
        """Return, for each bit and for -1 (kept), the classes that match it with `masks`."""
        matched: dict[int, int] = defaultdict(int)
        for mask, layer in product(masks, classes.layers):
            there = self._existing(mask, layer, classes.all)
            gone = 0
            for bit in ones(mask & self._excludes):
                matched[bit] |= there & layer[bit]
                gone |= layer[bit]
            kept = there & ~gone
            matched[-1] |= kept
            for bit in ones(mask & self._rules):
                matched[bit] |= kept & layer[bit]
        return matched

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
        classes = Classes(last.counts, self._bits)

        @lru_cache(_REMEMBERED // len(last.counts))
        def kept(masks: Masks) -> set[Masks]:
            left = self._matched(masks, classes)[-1]
            # in a sweep with many excludes most combinations have none left
            classes_left = enumerate(last.counts) if left else ()
            return {more for place, more in classes_left if left >> place & 1}

        masked = any(dim.masks is not None for dim in outer)
        for rows in product(*(range(len(dim)) for dim in outer)):
            keeps = kept(self.masks_of(outer, rows) if masked else self.start)
            if keeps and last.masks is None:
                yield rows, range(len(last))
            elif keeps and last.masks:
                yield rows, compress(range(len(last)), map(keeps.__contains__, last.masks))

    def masks_of(self, dims: Iterable[Dimension], rows: Iterable[int]) -> Masks:
        """Return the masks of a combination of one row of each dimension."""
        masks = self.start
        for dim, row in zip(dims, rows, strict=True):
            if dim.masks is not None:
                masks = joined(masks, dim.masks[row])
        return masks

    def keeps(self, masks: Masks) -> bool:
        """Say whether combinations with these masks are kept."""
        return bool(self._matched(masks, self._anything)[-1])

    @cached_property
    def _anything(self) -> Classes:
        return Classes({NEUTRAL: 1}, self._bits)

    def holds(self, axes: Mapping[str, Any]) -> bool:
        """Say whether a full assignment of values is one of the kept combinations."""
        varied = {name for dim in self.dims for name in dim.names}
        if any(axes[name] != value for name, value in self.fixed.items() if name not in varied):
            return False
        rows = [dim.find(tuple(axes[name] for name in dim.names)) for dim in self.dims]
        existing = [row for row in rows if row is not None]
        return len(existing) == len(rows) and self.keeps(self.masks_of(self.dims, existing))

    def _existing(self, mask: int, layer: Sequence[int], classes: int) -> int:
        """Return the classes in which each value is from the last source whose rule matches."""
        for sources in self._sources.values():
            agreed = 0
            left = classes
            for rule, value in reversed(sources):
                here = left if rule is None else left & layer[rule] & -(mask >> rule & 1)
                agreed |= here & layer[value] & -(mask >> value & 1)
                left &= ~here
            classes &= agreed
        return classes

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
                masks.append(value_masks(self._tests[name], column))
        if not masks:
            return Dimension(names, columns)
        shared: dict[Masks, Masks] = {}  # equal masks are one object
        rows: list[Masks] = []
        for each, run in groupby(zip(*masks, strict=True)):
            row = (reduce(and_, each),)
            rows += [shared.setdefault(row, row)] * sum(1 for _ in run)
        return Dimension(names, columns, rows)


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
    values: dict[str, Any] = {}
    masks: dict[str, int] = {}
    of_none = ~sum(1 << bit for bit in bits)
    for bit, source in zip(bits, sources, strict=True):
        for value in source:
            key = canonical_json(value)
            values.setdefault(key, value)
            masks[key] = masks.get(key, of_none) | 1 << bit
    return list(values.values()), list(masks.values())


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


class Classes:
    """Classes of combinations with equal masks; a set of classes is an integer, a bit for each.

    `layers` has, for each condition's bit, the set of classes with that bit: one layer, or several
    where rows were joined.
    """

    def __init__(self, counts: Mapping[Masks, int], bits: int) -> None:
        """Group classes by their number of combinations; `bits` is the length of masks."""
        self.all = (1 << len(counts)) - 1
        self._sizes: dict[int, int] = defaultdict(int)
        for place, number in enumerate(counts.values()):
            self._sizes[number] |= 1 << place
        deep = max(map(len, counts))
        self.layers = [
            _transposed([masks[min(layer, len(masks) - 1)] for masks in counts], bits)
            for layer in range(deep)
        ]
        self.number = lru_cache(_SETS)(self._number)

    def _number(self, classes: int) -> int:
        """Return how many combinations a set of classes has."""
        return sum((classes & same).bit_count() * size for size, same in self._sizes.items())


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


def _transposed(masks: Sequence[int], bits: int) -> list[int]:
    """Return, for each bit, the set of the masks with that bit."""
    width = bits // 8 + 1
    whole = b"".join((mask & (1 << bits) - 1).to_bytes(width, "little") for mask in masks[::-1])
    return [int(whole[bit // 8 :: width].translate(_DIGITS[bit % 8]), 2) for bit in range(bits)]


def ones(mask: int) -> Iterator[int]:
    """Yield the bits that a mask has."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def value_masks(tests: Mapping[int, Predicate], column: Sequence[Any]) -> Iterator[int]:
    """Yield the mask of each value."""
    cuts = sorted({bound for test in tests.values() for _, bound in test.bounds})
    below = {bound: 2 * i for i, bound in enumerate(cuts)}
    changes = [0] * (2 * len(cuts) + 2)
    named: dict[Any, int] = defaultdict(int)
    negated = 0
    for bit, test in tests.items():
        for value in test.values:
            named[value] |= 1 << bit
        negated |= test.negate << bit
        if test.bounds:
            begins = (below[at] + _BEGINS[op] for op, at in test.bounds if op in _BEGINS)
            ends = (below[at] + _ENDS[op] for op, at in test.bounds if op in _ENDS)
            first = max(begins, default=0)
            last = min(ends, default=len(changes) - 1)
            if first < last:
                changes[first] ^= 1 << bit
                changes[last] ^= 1 << bit
    compared = list(accumulate(changes, xor))
    bits = sum(1 << bit for bit in tests)
    for value, number in _runs(column, [*cuts, *named]):
        # a map of algorithms is no value that a condition can name, and None compares with nothing
        mask = negated if isinstance(value, dict) else negated ^ named.get(value, 0)
        if value is not None:
            mask |= compared[bisect_left(cuts, value) + bisect_right(cuts, value)]
        yield from repeat(~bits | mask, number)


def _runs(column: Sequence[Any], values: Iterable[Any]) -> Iterable[tuple[Any, int]]:
    """Return runs of a column whose values pass the same conditions: first value and length."""
    if not isinstance(column, range) or column.step < 0:
        return zip(column, repeat(1))
    ends = {place(column, value) for value in values for place in (bisect_left, bisect_right)}
    return ((column[a], b - a) for a, b in pairwise(sorted({0, len(column), *ends})))
