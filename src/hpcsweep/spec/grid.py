"""Which combinations of axis values a sweep has: the product under `zip`, `exclude` and `when`.

Axes (or groups that move together) are dimensions. What the constraints can tell about a row of a
dimension is one bit per constraint, so a combination's fate is the bitwise AND over its rows. Rows
with the same bits are one class, which makes counting exact without enumerating: ten million
combinations are counted from a handful of classes, and nothing is held but the axes themselves.

An axis that `when` rules set ranges over the values of all of its sources (its own, and each
rule's). Which source holds for a combination is decided by the last rule whose condition matches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import compress, product
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.point import canonical_json
from hpcsweep.spec.space import Spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.spec.space import Condition, Predicate, Space

    Indices = tuple[int, ...]
    State = frozenset[int]

_ALL: Final = -1  # every bit
_NEUTRAL: Final = frozenset({_ALL})


@dataclass(frozen=True)
class Dimension:
    """Axes that move together: a column of values for each, and the class of every row.

    `classes` is None when all rows are of class 0; `masks` holds, per class, the bits of its
    rows (several where rows were merged).
    """

    names: tuple[str, ...]
    columns: tuple[Sequence[Any], ...]
    classes: Sequence[int] | None = None
    masks: tuple[State, ...] = (_NEUTRAL,)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0])

    def named(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield each axis with its column."""
        yield from zip(self.names, self.columns, strict=True)

    def row(self, index: int) -> tuple[Any, ...]:
        """Return the values of a row."""
        return tuple(column[index] for column in self.columns)

    def class_of(self, row: int) -> int:
        """Return the class of a row."""
        return 0 if self.classes is None else self.classes[row]

    def sizes(self) -> dict[int, int]:
        """Return class to number of rows."""
        return {0: len(self)} if self.classes is None else dict(Counter(self.classes))

    def take(self, rows: Sequence[int]) -> Dimension:
        """Return the same dimension with these rows only."""
        columns = tuple([column[row] for row in rows] for column in self.columns)
        classes = None if self.classes is None else [self.classes[row] for row in rows]
        return Dimension(self.names, columns, classes, self.masks)


@dataclass(frozen=True)
class Verdict:
    """What the bits of a combination say; `excluded_by`, `set_by` and `probes` are bit sets."""

    exists: bool
    kept: bool
    excluded_by: int = 0
    set_by: int = 0
    probes: int = 0


@dataclass
class Tally:
    """How many combinations there are, and how many every rule touched."""

    combinations: int = 0
    kept: int = 0
    excluded_by: Counter[int] = field(default_factory=Counter)
    set_by: Counter[int] = field(default_factory=Counter)
    probes: Counter[int] = field(default_factory=Counter)


class Grid:
    """The combinations of a space, in order.

    `keep` restricts an axis to one value (None counts as that value); `merge` gives an axis one
    value and lets combinations that become equal collapse; `probes` are conditions that are only
    counted.
    """

    def __init__(
        self,
        space: Space,
        *,
        keep: Mapping[str, Any] | None = None,
        merge: Mapping[str, Any] | None = None,
        probes: Sequence[Condition] = (),
    ) -> None:
        """Lay out the dimensions; costs one look at each row that a constraint may touch."""
        self.space = space
        self._bits = _Bits(space, probes)
        self._step: dict[tuple[State, State], State] = {}
        self._verdicts: dict[State, Verdict] = {}
        self._rows: dict[tuple[str, ...], dict[str, int]] = {}
        groups = space.groups()
        dims = [self._bits.dimension(group) for group in groups]
        dims = [_merged(_kept(dim, keep or {}), merge or {}) for dim in dims]
        self.empty = not groups
        self.start = frozenset({self._bits.of_defaults(groups)})
        self.dims = [dim for dim in dims if len(dim) != 1] or dims[:1]
        # what no dimension varies: defaults, and the value of every axis that has only one
        self.fixed = dict(space.defaults)
        for dim in dims:
            if not any(dim is other for other in self.dims):
                self.fixed.update(zip(dim.names, dim.row(0), strict=True))
                self.start = self.join(self.start, dim.masks[0])

    def verdict(self, state: State) -> Verdict:
        """Return the fate of the combinations in a state."""
        if state not in self._verdicts:
            self._verdicts[state] = self._bits.verdict(state)
        return self._verdicts[state]

    def join(self, a: State, b: State) -> State:
        """Return the state after one more row."""
        found = self._step.get((a, b))
        if found is None:
            found = self._step[a, b] = frozenset(x & y for x in a for y in b)
        return found

    def states(self, dims: Iterable[Dimension]) -> dict[State, int]:
        """Return every state that rows of the dimensions lead to, and in how many ways."""
        counts: Counter[State] = Counter() if self.empty else Counter({self.start: 1})
        for dim in dims:
            following: Counter[State] = Counter()
            sizes = dim.sizes()
            for state, ways in counts.items():
                for cls, rows in sizes.items():
                    following[self.join(state, dim.masks[cls])] += ways * rows
            counts = following
        return {state: ways for state, ways in counts.items() if ways}

    def tally(self) -> Tally:
        """Count combinations and rules without enumerating."""
        tally = Tally()
        for state, ways in self.states(self.dims).items():
            verdict = self.verdict(state)
            tally.combinations += ways if verdict.exists else 0
            tally.kept += ways if verdict.kept else 0
            for bits, counter in (
                (verdict.excluded_by, tally.excluded_by),
                (verdict.set_by, tally.set_by),
                (verdict.probes, tally.probes),
            ):
                for bit in _ones(bits):
                    counter[bit] += ways
        return tally

    def walk(self) -> Iterator[tuple[Indices, Iterable[int]]]:
        """Yield, in order, rows of all dimensions but the last, and the last one's kept rows."""
        if self.empty:
            return
        *outer, last = self.dims
        flags: dict[State, list[bool]] = {}
        for rows in product(*(range(len(dim)) for dim in outer)):
            state = self.state_of(outer, rows)
            if state not in flags:
                joined = (self.join(state, mask) for mask in last.masks)
                flags[state] = [self.verdict(after).kept for after in joined]
            kept = flags[state]
            if last.classes is None:
                if kept[0]:
                    yield rows, range(len(last))
            elif any(kept):
                yield rows, compress(range(len(last)), map(kept.__getitem__, last.classes))

    def state_of(self, dims: Iterable[Dimension], rows: Iterable[int]) -> State:
        """Return the state that one row of each dimension leads to."""
        state = self.start
        for dim, row in zip(dims, rows, strict=True):
            if dim.classes is not None:
                state = self.join(state, dim.masks[dim.classes[row]])
            elif dim.masks[0] != _NEUTRAL:
                state = self.join(state, dim.masks[0])
        return state

    def holds(self, axes: Mapping[str, Any]) -> bool:
        """Say whether a full assignment of values is one of the kept combinations."""
        named = {name for dim in self.dims for name in dim.names}
        if self.empty or any(axes[n] != v for n, v in self.fixed.items() if n not in named):
            return False
        rows = []
        for dim in self.dims:
            wanted = tuple(axes[name] for name in dim.names)
            row = self._row(dim, wanted)
            if row is None:
                return False
            rows.append(row)
        return self.verdict(self.state_of(self.dims, rows)).kept

    def _row(self, dim: Dimension, wanted: tuple[Any, ...]) -> int | None:
        """Return the row that has these values; lists are indexed once, ranges never."""
        column = dim.columns[0]
        if isinstance(column, range | Spread):
            return column.index(wanted[0]) if wanted[0] in column else None
        if dim.names not in self._rows:
            keys = (canonical_json(dim.row(row)) for row in range(len(dim)))
            self._rows[dim.names] = {key: row for row, key in enumerate(keys)}
        return self._rows[dim.names].get(canonical_json(wanted))


class _Bits:
    """Which bit belongs to which constraint: excludes, rules, probes, then sources of values."""

    def __init__(self, space: Space, probes: Sequence[Condition]) -> None:
        self.space = space
        self.conditions = [*space.excludes, *(rule.condition for rule in space.whens), *probes]
        self.excludes = (1 << len(space.excludes)) - 1
        self.rules_at = len(space.excludes)
        self.rules = (1 << len(space.whens)) - 1
        self.probes_at = self.rules_at + len(space.whens)
        self.probes = (1 << len(probes)) - 1
        self.source_bit: dict[str, int] = {}
        free = self.probes_at + len(probes)
        for name in space.conditional():
            self.source_bit[name] = free
            free += len(space.sources(name))
        # per axis that rules set: the rules that do, in order
        self.setters = {
            name: [i for i, rule in enumerate(space.whens) if name in rule.axes]
            for name in self.source_bit
        }

    def dimension(self, group: tuple[str, ...]) -> Dimension:
        """Return a group's rows with their classes."""
        name = group[0]
        if name in self.source_bit:
            columns, sources = _united(self.space.sources(name), self.source_bit[name])
            return self._classified(group, (columns,), sources)
        return self._classified(group, tuple(self.space.axes[axis] for axis in group), None)

    def of_defaults(self, groups: Iterable[tuple[str, ...]]) -> int:
        """Return the bits that the axes without values of their own decide."""
        named = {name for group in groups for name in group}
        rest = tuple(name for name in self.space.defaults if name not in named)
        return _mask(self._tests(rest), [self.space.defaults[name] for name in rest])

    def verdict(self, state: State) -> Verdict:
        """Return what a state's bits say, over all the rows that were merged into it."""
        found = [mask for mask in state if self._exists(mask)]
        kept = [mask for mask in found if not mask & self.excludes]
        return Verdict(
            exists=bool(found),
            kept=bool(kept),
            excluded_by=_union(found) & self.excludes,
            set_by=(_union(kept) >> self.rules_at) & self.rules,
            probes=(_union(kept) >> self.probes_at) & self.probes,
        )

    def _exists(self, mask: int) -> bool:
        """Say whether every axis that rules set has a value of the source that holds here."""
        matched = mask >> self.rules_at
        for name, setters in self.setters.items():
            source = 0
            for number, rule in enumerate(setters, start=1):
                source = number if matched >> rule & 1 else source
            if not mask >> (self.source_bit[name] + source) & 1:
                return False
        return True

    def _classified(
        self, names: tuple[str, ...], columns: tuple[Sequence[Any], ...], extra: list[int] | None
    ) -> Dimension:
        tests = self._tests(names)
        if not tests and extra is None:
            return Dimension(names, columns)
        masks: Iterable[int] = (_mask(tests, row) for row in zip(*columns, strict=True))
        if extra is not None:
            masks = (mask & more for mask, more in zip(masks, extra, strict=True))
        known: dict[int, int] = {}
        classes = [known.setdefault(mask, len(known)) for mask in masks]
        return Dimension(names, columns, classes, tuple(frozenset({mask}) for mask in known))

    def _tests(self, names: Sequence[str]) -> list[tuple[int, int, Predicate]]:
        """Return what is asked of a group: what remains if it fails, of which axis, the test."""
        return [
            (~(1 << bit), i, condition[name])
            for bit, condition in enumerate(self.conditions)
            for i, name in enumerate(names)
            if name in condition
        ]


def _mask(tests: Iterable[tuple[int, int, Predicate]], row: Sequence[Any]) -> int:
    """Return a row's bits."""
    mask = _ALL
    for remains, i, test in tests:
        if not test(row[i]):
            mask &= remains
    return mask


def _united(sources: list[Sequence[Any]], first_bit: int) -> tuple[list[Any], list[int]]:
    """Return the values of all sources, each once, and bits that say in which it is."""
    everything = ((1 << len(sources)) - 1) << first_bit
    values: dict[str, Any] = {}
    member: dict[str, int] = {}
    for number, source in enumerate(sources):
        for value in source:
            key = canonical_json(value)
            values.setdefault(key, value)
            member[key] = member.get(key, _ALL & ~everything) | 1 << (first_bit + number)
    return list(values.values()), list(member.values())


def _kept(dim: Dimension, keep: Mapping[str, Any]) -> Dimension:
    """Return a dimension with the rows where an axis has its wanted value, or none."""
    for name, wanted in keep.items():
        if name in dim.names:
            column = dim.columns[dim.names.index(name)]
            dim = dim.take([row for row, value in enumerate(column) if value in (wanted, None)])
            return _merged(dim, keep)
    return dim


def _merged(dim: Dimension, merge: Mapping[str, Any]) -> Dimension:
    """Return a dimension where an axis has one value and rows that became equal are one."""
    if not any(name in dim.names for name in merge):
        return dim
    rows: dict[str, tuple[tuple[Any, ...], set[int]]] = {}
    for row in range(len(dim)):
        values = tuple(
            merge.get(name, value) for name, value in zip(dim.names, dim.row(row), strict=True)
        )
        _, masks = rows.setdefault(canonical_json(values), (values, set()))
        masks |= dim.masks[dim.class_of(row)]
    columns = tuple([values[i] for values, _ in rows.values()] for i in range(len(dim.names)))
    classes: dict[State, int] = {}
    kinds = [classes.setdefault(frozenset(masks), len(classes)) for _, masks in rows.values()]
    return Dimension(dim.names, columns, kinds, tuple(classes))


def _ones(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
