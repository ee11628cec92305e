"""N evenly spread values of some axes for every combination of the others.

Which values a combination has left after the constraints depends only on the state that its other
axes lead to (see `grid`), so the choice is made once per state and not per combination, and once
per class of rows and not per row. Where two axes are thinned out, N values of the first are taken,
and for each of these N of the second.
"""

from __future__ import annotations

from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from hpcsweep.point import canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hpcsweep.spec.grid import Dimension, Grid, Indices, State

T = TypeVar("T")


def spread(items: Sequence[T], n: int) -> list[T]:
    """Return `n` items at even distances, the ends included; one is the first."""
    if n >= len(items):
        return list(items)
    gaps = max(n - 1, 1)
    return [items[i * (len(items) - 1) // gaps] for i in range(n)]


def thin(items: Iterable[T], keys: Sequence[Callable[[T], Any]], n: int) -> list[T]:
    """Return the items whose first key is one of `n` spread ones, and so on for each key.

    Items keep their order.
    """
    listed = list(items)
    if not keys:
        return listed
    groups: dict[Any, list[T]] = {}
    for item in listed:
        groups.setdefault(keys[0](item), []).append(item)
    chosen = {key: thin(groups[key], keys[1:], n) for key in spread(list(groups), n)}
    kept = {id(item) for items in chosen.values() for item in items}
    return [item for item in listed if id(item) in kept]


class Sample:
    """A grid of which N values of each of `names` are kept; `walk` is as `Grid.walk`."""

    def __init__(self, grid: Grid, names: Sequence[str], n: int) -> None:
        """Find the dimensions of `names`; what is chosen from them is settled when it is asked."""
        self._grid, self._n = grid, n
        found = [i for name in names for i, dim in enumerate(grid.dims) if name in dim.names]
        self._thinned = list(dict.fromkeys(found))  # in order of `names`
        self._choices = [_Choice(grid.dims[i], names) for i in self._thinned]
        self._others = [i for i in range(len(grid.dims)) if i not in self._thinned]
        self._chosen: dict[tuple[State, Indices], frozenset[Indices]] = {}

    @cached_property
    def count(self) -> int:
        """The number of combinations."""
        ways = self._grid.states(self._grid.dims[i] for i in self._others)
        parts = list(self._parts())
        return sum(n * len(self._rows(state, part)) for state, n in ways.items() for part in parts)

    def walk(self) -> Iterator[tuple[Indices, Iterable[int]]]:
        """Yield the chosen combinations in the grid's order."""
        if self._grid.empty:
            return
        dims = self._grid.dims
        rows: list[Iterable[int]] = [range(len(dim)) for dim in dims]
        for i, candidates in zip(self._thinned, self._candidates(), strict=True):
            rows[i] = sorted(candidates)
        others = [dims[i] for i in self._others]
        for combination in product(*rows):
            state = self._grid.state_of(others, (combination[i] for i in self._others))
            thinned = tuple(combination[i] for i in self._thinned)
            pairs = zip(self._choices, thinned, strict=True)
            if thinned in self._rows(state, tuple(choice.part_of(row) for choice, row in pairs)):
                yield combination[:-1], combination[-1:]

    def _candidates(self) -> list[set[int]]:
        """Return, per thinned dimension, the rows that are chosen for some state."""
        found: list[set[int]] = [set() for _ in self._thinned]
        for state in self._grid.states(self._grid.dims[i] for i in self._others):
            for part in self._parts():
                for chosen in self._rows(state, part):
                    for rows, row in zip(found, chosen, strict=True):
                        rows.add(row)
        return found

    def _parts(self) -> Iterator[Indices]:
        """Return every combination of parts, one of each thinned dimension."""
        return product(*(range(len(choice.parts)) for choice in self._choices))

    def _rows(self, state: State, part: Indices) -> frozenset[Indices]:
        """Return the rows of the thinned dimensions that go with a state of the others."""
        if (state, part) not in self._chosen:
            self._chosen[state, part] = frozenset(self._choose(state, part))
        return self._chosen[state, part]

    def _choose(self, state: State, part: Indices, depth: int = 0) -> Iterator[Indices]:
        """Yield the choice from the thinned dimensions at and below a depth."""
        if depth == len(self._choices):
            if self._grid.verdict(state).kept:
                yield ()
            return
        choice = self._choices[depth]
        after = [self._grid.join(state, mask) for mask in choice.dim.masks]
        alive = [any(True for _ in self._choose(each, part, depth + 1)) for each in after]
        for row in choice.rows(part[depth], alive, self._n):
            for rest in self._choose(after[choice.dim.class_of(row)], part, depth + 1):
                yield (row, *rest)


class _Choice:
    """A thinned dimension; a part of it is the rows that share the values of its other axes."""

    def __init__(self, dim: Dimension, names: Sequence[str]) -> None:
        self.dim = dim
        self.parts: list[Sequence[int]] = [range(len(dim))]
        self._part: list[int] = []
        columns = dict(dim.named())
        rest = [columns[name] for name in dim.names if name not in names]
        self._keys: list[Callable[[int], Any]] = [
            partial(_item, columns[name]) for name in names if name in columns
        ]
        if rest:
            number: dict[str, int] = {}
            for values in zip(*rest, strict=True):
                self._part.append(number.setdefault(canonical_json(values), len(number)))
            members: list[list[int]] = [[] for _ in number]
            for row, part in enumerate(self._part):
                members[part].append(row)
            self.parts = list(members)

    def part_of(self, row: int) -> int:
        """Return the number of the part that a row is in."""
        return self._part[row] if self._part else 0

    def rows(self, part: int, alive: Sequence[bool], n: int) -> list[int]:
        """Return the rows that are taken of a part, given which classes have points at all."""
        rows = self.parts[part]
        if not all(alive):
            rows = [row for row in rows if alive[self.dim.class_of(row)]]
        # with one axis, the rows of a part differ in it
        return spread(rows, n) if len(self._keys) == 1 else thin(rows, self._keys, n)


def _item(column: Sequence[T], row: int) -> T:
    return column[row]
