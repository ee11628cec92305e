"""N evenly spread values of some axes for every combination of the others.

Which values a combination has left after the constraints depends only on the masks of its other
axes (see `grid`), so the choice is made once for equal masks. Where two axes are thinned out, N
values of the first are taken, and for each of these N of the second.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from hpcsweep.point import canonical_json
from hpcsweep.spec.masks import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hpcsweep.spec.grid import Dimension, Grid, Indices
    from hpcsweep.spec.masks import Masks

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
        """Find the dimensions of `names`; rows are chosen when they are asked for."""
        self._grid, self._names, self._n = grid, names, n
        found = [i for name in names for i, dim in enumerate(grid.dims) if name in dim.names]
        self._thinned = list(dict.fromkeys(found))  # in order of `names`
        thinned = [grid.dims[i] for i in self._thinned]
        self._others = [dim for i, dim in enumerate(grid.dims) if i not in self._thinned]
        self._parts = [self._parts_of(dim) for dim in thinned]
        self._chosen: dict[Masks, frozenset[Indices]] = {}

    @cached_property
    def count(self) -> int:
        """The number of combinations."""
        return sum(n * len(self._rows(masks)) for masks, n in self._grid.ways(self._others))

    def walk(self) -> Iterator[tuple[Indices, Iterable[int]]]:
        """Yield the chosen combinations in the grid's order."""
        dims = self._grid.dims
        rows: list[Iterable[int]] = [range(len(dim)) for dim in dims]
        for i, candidates in zip(self._thinned, self._candidates(), strict=True):
            rows[i] = candidates
        others = [i for i in range(len(dims)) if i not in self._thinned]
        for combination in product(*rows):
            masks = self._grid.masks_of(self._others, (combination[i] for i in others))
            if tuple(combination[i] for i in self._thinned) in self._rows(masks):
                yield combination[:-1], combination[-1:]

    def _candidates(self) -> list[list[int]]:
        """Return, for each thinned dimension, the rows that some combination chooses."""
        chosen = {rows for masks, _ in self._grid.ways(self._others) for rows in self._rows(masks)}
        return [sorted({rows[i] for rows in chosen}) for i in range(len(self._thinned))]

    def _rows(self, masks: Masks) -> frozenset[Indices]:
        """Return the rows of the thinned dimensions that go with masks of the others."""
        if masks not in self._chosen:
            parts = product(*self._parts)
            self._chosen[masks] = frozenset(
                rows for part in parts for rows in self._choose(masks, part)
            )
        return self._chosen[masks]

    def _choose(self, masks: Masks, part: Sequence[Sequence[int]]) -> list[Indices]:
        """Return the choice from a part of the last thinned dimensions."""
        if not part:
            return [()] if self._grid.keeps(masks) else []
        dim = self._grid.dims[self._thinned[-len(part)]]
        rest = {more: self._choose(joined(masks, more), part[1:]) for more in dim.counts}
        rows = part[0]
        if not all(rest.values()):
            rows = [row for row in rows if rest[dim.masks_at(row)]]
        keys = [dim.columns[dim.names.index(name)] for name in self._names if name in dim.names]
        # with one axis, the rows of a part differ in it
        taken = (
            spread(rows, self._n)
            if len(keys) == 1
            else thin(rows, [column.__getitem__ for column in keys], self._n)
        )
        return [(row, *after) for row in taken for after in rest[dim.masks_at(row)]]

    def _parts_of(self, dim: Dimension) -> list[Sequence[int]]:
        """Return a dimension's rows, apart where they differ in an axis that is not thinned."""
        rest = [i for i, name in enumerate(dim.names) if name not in self._names]
        if not rest:
            return [range(len(dim))]
        parts: dict[str, list[int]] = {}
        for row in range(len(dim)):
            values = dim.row(row)
            parts.setdefault(canonical_json([values[i] for i in rest]), []).append(row)
        return list(parts.values())
