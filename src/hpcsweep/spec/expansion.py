"""Makes the points of a sweep lazily and in order.

The model changes slowest, so that a worker keeps its network; the other axes follow in the order
of the file, then the included points. The exact number of points is available before the first
point is made.

A sample has N evenly spread values of some axes for every combination of the others. The values
that a combination has left depend only on the masks of its other axes (see `grid`), so the choice
is made once for equal masks. With two axes, N values of the first are taken, and for each of them N
values of the second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import islice, product
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hpcsweep.catalog import VISIT, setting_defaults, sizes_of_inputs
from hpcsweep.errors import UsageError
from hpcsweep.point import ID_DIGITS, Point, canonical_json, point_id, same, without_defaults
from hpcsweep.spec.grid import Dimension, Grid, joined
from hpcsweep.spec.space import Sweep

if TYPE_CHECKING:
    from hpcsweep.spec.grid import Indices, Masks

T = TypeVar("T")
SAMPLED: Final = sizes_of_inputs()
_REMEMBERED: Final = 100_000  # texts of an axis


def expand(
    sweep: Sweep, *, gpu: str | None = None, rehearse: str | None = None, sample: int | None = None
) -> Expansion:
    """Return the points of a sweep, which are made when they are iterated.

    gpu: only the points that a profile of this GPU takes; points without a gpu get this one.
    rehearse: every point gets this device as its gpu, and points that become equal are one. sample:
    this many evenly spread values of each axis of `SAMPLED`, for every combination of the others.

    Raises:
        UsageError: both `gpu` and `rehearse` are given, or `sample` is less than 1.
    """
    return Expansion(sweep, gpu=gpu, rehearse=rehearse, sample=sample)


class Expansion:
    """The points of a sweep, for any number of iterations; `len` is exact."""

    def __init__(
        self, sweep: Sweep, *, gpu: str | None, rehearse: str | None, sample: int | None
    ) -> None:
        """Select the points; looks once at each value of an axis with constraints."""
        if gpu is not None and rehearse is not None:
            raise UsageError("points are either taken by a profile or rehearsed, not both")
        if sample is not None and sample < 1:
            raise UsageError(f"a sample of {sample}: needs 1 or more values of each numeric axis")
        self.sweep = sweep
        self._defaults = sweep.space.defaults
        self._settings = without_defaults(sweep.measure, setting_defaults(sweep.workload))
        self._device = gpu if rehearse is None else rehearse
        self._grid = Grid(sweep.space, gpu=gpu, rehearse=rehearse)
        self._sample = None if sample is None else Sample(self._grid, SAMPLED, sample)
        included = self._included(gpu)
        self._include = included if sample is None else _thinned(included, sample)
        self._count = (self._sample or self._grid).count

    def __len__(self) -> int:
        return self._count + len(self._include)

    def __iter__(self) -> Iterator[Point]:
        yield from self._made()
        workload = self.sweep.workload
        for axes in self._include:
            named = point_id(workload, without_defaults(axes, self._defaults), self._settings)
            yield Point(workload, axes, self.sweep.measure, named)

    def to_json(self, limit: int | None = 10) -> dict[str, Any]:
        """Return the record that ``expand --json`` prints; its points are an iterator."""
        why = "no ids yet: the sweep names no gpu, and the id depends on the profile's"
        without_ids = self._device is None and None in self.sweep.values("gpu")
        return {
            "sweep": self.sweep.name,
            "points_total": len(self),
            "notes": [f"{why}; --cluster NAME shows the ids for that profile"] * without_ids,
            "points": map(flat, islice(self, limit)),
        }

    def _included(self, gpu: str | None) -> list[dict[str, Any]]:
        """Return the distinct included points of the selection."""
        included: dict[str, dict[str, Any]] = {}
        for given in self.sweep.include:
            axes = {**given, "gpu": self._device or given["gpu"]}
            taken = gpu is None or given["gpu"] in {gpu, None}
            if taken and not self._grid.holds(axes):
                included[canonical_json(axes)] = axes
        visits = range(1, self.sweep.repeats + 1)
        return [{**axes, VISIT: visit} for axes in included.values() for visit in visits]

    def _made(self) -> Iterator[Point]:
        """Yield the points of the grid; an id's text is kept in pieces, of which few change."""
        grid = self._grid
        workload = self.sweep.workload
        measure = self.sweep.measure
        varied = {name for dim in grid.dims for name in dim.names}
        axes = {name: grid.fixed[name] for name in self._defaults}
        texts = {name: self._spelled(name, value) for name, value in sorted(axes.items())}
        texts = {name: text for name, text in texts.items() if text or name in varied}
        tail = f'}},"measure":{canonical_json(self._settings)},"workload":"{workload}"}}'
        *outer, inner = [
            [
                (name, column, lru_cache(_REMEMBERED)(partial(self._text, name, column)))
                for name, column in zip(dim.names, dim.columns, strict=True)
            ]
            for dim in grid.dims
        ]
        last: Sequence[int | None] = [None] * len(outer)
        for rows, inner_rows in (self._sample or grid).walk():
            for columns, row, before in zip(outer, rows, last, strict=True):
                if row != before:
                    for name, column, text in columns:
                        axes[name] = column[row]
                        texts[name] = text(row)
            last = rows
            for row in inner_rows:
                for name, column, text in inner:
                    axes[name] = column[row]
                    texts[name] = text(row)
                whole = '{"axes":{' + "".join(texts.values())[:-1] + tail
                named = hashlib.sha256(whole.encode("ascii")).hexdigest()[:ID_DIGITS]
                yield Point(workload, axes.copy(), measure, named)

    def _text(self, name: str, column: Sequence[Any], row: int) -> str:
        return self._spelled(name, column[row])

    def _spelled(self, name: str, value: object) -> str:
        """Return ``"name":value,`` or nothing for a default."""
        return "" if same(value, self._defaults[name]) else f'"{name}":{canonical_json(value)},'


def flat(point: Point) -> dict[str, Any]:
    """Return a point as one flat record: its id (None while its gpu is open), then its axes."""
    return {"point_id": None if point.axes["gpu"] is None else point.point_id, **point.axes}


def _thinned(points: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return a sample of included points, for each combination of their other axes."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for axes in points:
        rest = {name: value for name, value in axes.items() if name not in SAMPLED}
        groups.setdefault(canonical_json(rest), []).append(axes)
    keys = [methodcaller("get", name) for name in SAMPLED]
    return [axes for group in groups.values() for axes in thin(group, keys, n)]


def spread(items: Sequence[T], n: int) -> list[T]:
    """Return `n` items at even distances, the ends included; with `n` 1, the first item."""
    if n >= len(items):
        return list(items)
    gaps = max(n - 1, 1)
    return [items[i * (len(items) - 1) // gaps] for i in range(n)]


def thin(items: Iterable[T], keys: Sequence[Callable[[T], Any]], n: int) -> list[T]:
    """Keep `n` spread values of the first key, among their items `n` of the next, and so on."""
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
    """A grid restricted to N values of each axis in `names`."""

    def __init__(self, grid: Grid, names: Sequence[str], n: int) -> None:
        """Find the dimensions of `names`; rows are chosen lazily."""
        self._grid = grid
        self._names = names
        self._n = n
        dims = [i for name in names for i, dim in enumerate(grid.dims) if name in dim.names]
        self._thinned = list(dict.fromkeys(dims))  # in order of `names`
        self._others = [dim for i, dim in enumerate(grid.dims) if i not in self._thinned]
        self._parts = [self._parts_of(grid.dims[i]) for i in self._thinned]
        self._chosen: dict[Masks, frozenset[Indices]] = {}

    @cached_property
    def count(self) -> int:
        """The number of combinations."""
        return sum(n * len(self._rows(masks)) for masks, n in self._grid.ways(self._others))

    def walk(self) -> Iterator[tuple[Indices, Iterable[int]]]:
        """Yield the chosen combinations in the grid's order, in the form of `Grid.walk`."""
        dims = self._grid.dims
        rows: list[Iterable[int]] = [range(len(dim)) for dim in dims]
        ways = self._grid.ways(self._others)
        chosen = {some for masks, _ in ways for some in self._rows(masks)}
        for place, i in enumerate(self._thinned):
            rows[i] = sorted({some[place] for some in chosen})
        others = [i for i in range(len(dims)) if i not in self._thinned]
        for combination in product(*rows):
            masks = self._grid.masks_of(self._others, (combination[i] for i in others))
            if tuple(combination[i] for i in self._thinned) in self._rows(masks):
                yield combination[:-1], combination[-1:]

    def _rows(self, masks: Masks) -> frozenset[Indices]:
        """Return the rows of the thinned dimensions that go with masks of the others."""
        if masks not in self._chosen:
            self._chosen[masks] = frozenset(
                rows for part in product(*self._parts) for rows in self._choose(masks, part)
            )
        return self._chosen[masks]

    def _choose(self, masks: Masks, part: Sequence[Sequence[int]]) -> list[Indices]:
        """Return the chosen rows of the last thinned dimensions, from the rows in `part`."""
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
        """Return a dimension's rows, grouped by their values of axes that are not thinned."""
        rest = [i for i, name in enumerate(dim.names) if name not in self._names]
        if not rest:
            return [range(len(dim))]
        parts: dict[str, list[int]] = {}
        for row in range(len(dim)):
            values = dim.row(row)
            parts.setdefault(canonical_json([values[i] for i in rest]), []).append(row)
        return list(parts.values())
