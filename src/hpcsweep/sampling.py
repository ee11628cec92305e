"""N evenly spread values of some axes for every combination of the others.

Which values a combination has left after the constraints depends only on the state that its other
axes lead to (see `grid`), so the choice is made once per state and not per combination. Where two
axes are thinned out, N values of the first are taken, and for each of these N of the second.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from hpcsweep.point import canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hpcsweep.grid import Dimension, Grid, Indices, State

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
    """A grid of which N values of each of `names` are kept."""

    def __init__(self, grid: Grid, names: Sequence[str], n: int) -> None:
        """Choose the rows of the thinned-out dimensions for every state of the others."""
        self._grid, self._n = grid, n
        self._names = [name for name in names if any(name in dim.names for dim in grid.dims)]
        thinned = [any(name in names for name in dim.names) for dim in grid.dims]
        self._others = [i for i, yes in enumerate(thinned) if not yes]
        self._thinned = [i for i, yes in enumerate(thinned) if yes]
        ways = grid.states(grid.dims[i] for i in self._others)
        self._chosen = {state: frozenset(self._choose(state)) for state in ways}
        self.count = sum(ways[state] * len(rows) for state, rows in self._chosen.items())

    def walk(self) -> Iterator[tuple[Indices, Iterable[int]]]:
        """Yield the chosen combinations in the grid's order, as `Grid.walk` does."""
        dims = self._grid.dims
        rows: list[Iterable[int]] = [range(len(dim)) for dim in dims]
        for place, i in enumerate(self._thinned):
            rows[i] = sorted({chosen[place] for some in self._chosen.values() for chosen in some})
        others = [dims[i] for i in self._others]
        for combination in product(*rows):
            state = self._grid.state_of(others, (combination[i] for i in self._others))
            if tuple(combination[i] for i in self._thinned) in self._chosen.get(state, ()):
                yield combination[:-1], combination[-1:]

    def _choose(self, state: State) -> Iterator[Indices]:
        """Return the rows of the thinned-out dimensions to take in a state."""
        grid, dims = self._grid, [self._grid.dims[i] for i in self._thinned]
        rest = [name for dim in dims for name in dim.names if name not in self._names]
        groups: dict[str, list[tuple[Indices, dict[str, Any]]]] = {}
        for rows in product(*(range(len(dim)) for dim in dims)):
            after = state
            for dim, row in zip(dims, rows, strict=True):
                after = grid.join(after, dim.masks[0 if dim.classes is None else dim.classes[row]])
            if grid.verdict(after).kept:
                values = _values(dims, rows)
                key = canonical_json([values[name] for name in rest]) if rest else ""
                groups.setdefault(key, []).append((rows, values))
        keys = [partial(_value, name) for name in self._names]
        for group in groups.values():
            yield from (rows for rows, _ in thin(group, keys, self._n))


def _value(name: str, item: tuple[Indices, Mapping[str, Any]]) -> object:
    return item[1][name]


def _values(dims: Iterable[Dimension], rows: Indices) -> dict[str, Any]:
    """Return the values of a row of each dimension by axis name."""
    return {
        name: column[row]
        for dim, row in zip(dims, rows, strict=True)
        for name, column in dim.named()
    }
