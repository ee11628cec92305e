"""Makes the points of a sweep, in order and one by one; the number of points is known before.

The model changes slowest, so that a worker keeps its network; the other axes follow in the order
of the file, then the included points.

A sample has N evenly spread values of some axes for every combination of the others: these axes are
thinned before the combinations are made. With two axes, N values of the first are taken, and for
each of them N values of the second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from itertools import chain, islice, product
from typing import Any, Final

from hpcsweep.catalog import ON_NODE, VISIT, setting_defaults, sizes_of_inputs
from hpcsweep.errors import UsageError
from hpcsweep.point import ID_DIGITS, Point, canonical_json, point_id, same, without_defaults
from hpcsweep.spec.space import (
    NO_CONDITION,
    Dimension,
    Grid,
    Indices,
    Masks,
    Predicate,
    Sweep,
    grid_of,
)

SAMPLED: Final = sizes_of_inputs()
MOST_POINTS: Final = 300_000  # a plan of more takes over 4 s, and nobody measures so many
_REMEMBERED: Final = 10_000  # rows of which the texts are kept; few axes have so many values


def expand(
    sweep: Sweep, *, gpu: str | None = None, rehearse: str | None = None, sample: int | None = None
) -> Expansion:
    """Return the points of a sweep, which are made when they are iterated.

    gpu: only the points that a profile of this GPU takes; points without a gpu get this one.
    rehearse: every point gets this device as its gpu, and points that become equal are one. sample:
    this many evenly spread values of each axis of `SAMPLED`, for every combination of the others.

    Raises:
        UsageError: both `gpu` and `rehearse` are given; `sample` is less than 1, or has more than
            `MOST_POINTS` points.
    """
    if gpu is not None and rehearse is not None:
        raise UsageError("points are either taken by a profile or rehearsed, not both")
    if sample is not None and sample < 1:
        raise UsageError(f"a sample of {sample}: needs 1 or more values of each numeric axis")
    device = gpu if rehearse is None else rehearse
    taken = {} if gpu is None else {"gpu": Predicate((gpu, None))}
    grid = grid_of(sweep.space, only=taken, device=device)
    distinct = {}
    for axes in sweep.include:
        if gpu is not None and axes["gpu"] not in {gpu, None}:
            continue
        point = dict(axes) if device is None else {**axes, "gpu": device}
        if not grid.holds(point):  # points that differed in their gpu alone are equal now
            distinct[canonical_json(point)] = point
    included = []
    for point in distinct.values():
        included += [{**point, VISIT: visit} for visit in range(1, sweep.repeats + 1)]
    if sample is None:
        return Expansion(sweep, grid, included, has_ids=device is not None)
    thinned = _sample(grid, sample, sweep.name)
    included = _thinned(included, sample)
    return Expansion(sweep, grid, included, has_ids=device is not None, sample=thinned)


class Expansion:
    """The points of a sweep, made anew in each run through them; `len` is exact."""

    def __init__(
        self,
        sweep: Sweep,
        grid: Grid,
        included: Sequence[dict[str, Any]],
        *,
        has_ids: bool,
        sample: Sequence[Indices] | None = None,
    ) -> None:
        self.sweep = sweep
        self.chosen: frozenset[str] | None = None  # the ids of a part; None: all points
        self.nodes: Sequence[str] = ("",)  # each has all points; empty: any node
        self._grid = grid
        self._sample = sample  # of the grid's combinations; None: all of them
        self._included = included
        self._has_ids = has_ids or None not in sweep.values("gpu")
        self._defaults = sweep.space.defaults
        self._settings = without_defaults(sweep.measure, setting_defaults(sweep.workload))

    def only(self, ids: frozenset[str]) -> Expansion:
        """Return a part: the points that have these ids."""
        part = copy(self)
        part.chosen = ids
        return part

    def on_nodes(self, nodes: Sequence[str]) -> Expansion:
        """Return the same points for each of some nodes, one node after the other."""
        whole = copy(self)
        whole.nodes = nodes
        return whole

    def __len__(self) -> int:
        if self.chosen is not None:
            return sum(1 for _ in self)  # some of the ids may be of other points
        number = self._grid.count if self._sample is None else len(self._sample)
        return len(self.nodes) * (number + len(self._included))

    def __iter__(self) -> Iterator[Point]:
        for point in chain.from_iterable(map(self._made, self.nodes)):
            if self.chosen is None or point.point_id in self.chosen:
                yield point

    def to_json(self, limit: int | None = 10) -> dict[str, Any]:
        """Return the record that ``expand --json`` prints; its points are an iterator."""
        notes = []
        if not self._has_ids:
            why = "no ids yet: the sweep names no gpu, and the id depends on the profile's"
            notes.append(f"{why}; --cluster NAME shows the ids for that profile")
        return {
            "sweep": self.sweep.name,
            "points_total": len(self),
            "notes": notes,
            "points": map(flat, islice(self, limit)),
        }

    def _made(self, node: str) -> Iterator[Point]:
        """Yield the points of a node: those of the grid, then those included.

        The text of an id is kept in pieces, of which few change from point to point.
        """
        sweep = self.sweep
        pinned = {ON_NODE: node} if node else {}
        axes = {**self._defaults, **pinned}
        pieces = dict.fromkeys(sorted(axes), "")  # an id has axes in order of names
        for name, value in pinned.items():
            pieces[name] = f"{canonical_json(name)}:{canonical_json(value)},"
        head = '{"axes":{'
        tail = f'}},"measure":{canonical_json(self._settings)},"workload":"{sweep.workload}"}}'
        cells_of = lru_cache(_REMEMBERED)(self._cells)
        before: Sequence[int | None] = [None] * len(self._grid.dims)
        for rows in self._grid.walk() if self._sample is None else self._sample:
            for place, row in enumerate(rows):
                if row != before[place]:
                    for name, value, piece in cells_of(place, row):
                        axes[name] = value
                        pieces[name] = piece
            before = rows
            text = head + "".join(pieces.values())[:-1] + tail
            named = hashlib.sha256(text.encode("ascii")).hexdigest()[:ID_DIGITS]
            yield Point(sweep.workload, axes.copy(), sweep.measure, named)
        for one in self._included:
            included = {**one, **pinned}
            given = without_defaults(included, self._defaults)
            named = point_id(sweep.workload, given, self._settings)
            yield Point(sweep.workload, included, sweep.measure, named)

    def _cells(self, place: int, row: int) -> list[tuple[str, Any, str]]:
        """Return axis, value and text of an id of a dimension's row; a default has no text."""
        dim = self._grid.dims[place]
        cells = []
        for name, value in zip(dim.names, dim.row(row), strict=True):
            piece = ""
            if not same(value, self._defaults[name]):
                piece = f"{canonical_json(name)}:{canonical_json(value)},"
            cells.append((name, value, piece))
        return cells


def flat(point: Point) -> dict[str, Any]:
    """Return a point as one flat record: its id (None while its gpu is open), then its axes."""
    return {"point_id": None if point.axes["gpu"] is None else point.point_id, **point.axes}


class _Thinned(Grid):
    """The combinations with `n` values of the sampled axes, whose dimensions come last.

    Of these dimensions only the rows in `parts` are taken.
    """

    def __init__(
        self, grid: Grid, order: Sequence[int], parts: Sequence[Sequence[int]], n: int
    ) -> None:
        super().__init__([grid.dims[place] for place in order], grid.excludes, grid.sources)
        self._parts = parts
        self._n = n
        self._chosen: dict[tuple[int, Masks], list[tuple[int, Masks]]] = {}

    def rows(self, depth: int, masks: Masks) -> Iterable[tuple[int, Masks]]:
        """Return evenly spread rows of those with which a beginning of these masks goes on."""
        possible = super().rows(depth, masks)
        number = len(self.dims) - len(self._parts)
        if depth < number:
            return possible
        kind = (depth, masks)
        if kind not in self._chosen:
            onward = dict(possible)
            rows = [row for row in self._parts[depth - number] if row in onward]
            chosen = _thin(rows, self.dims[depth], self._n)
            self._chosen[kind] = [(row, onward[row]) for row in chosen]
        return self._chosen[kind]


def _sample(grid: Grid, n: int, name: str) -> list[Indices]:
    """Return the combinations of a sample in the order of the grid, for which they are listed."""
    thinned: list[int] = []  # in the order of `SAMPLED`, in which they are thinned
    for axis in SAMPLED:
        thinned += [place for place, dim in enumerate(grid.dims) if axis in dim.names]
    thinned = [*dict.fromkeys(thinned)]
    order = [place for place in range(len(grid.dims)) if place not in thinned] + thinned
    parts_of_dims = [_parts(grid.dims[place]) for place in thinned]
    samples = [_Thinned(grid, order, parts, n) for parts in product(*parts_of_dims)]
    number = sum([sample.count for sample in samples])
    if number > MOST_POINTS:
        raise UsageError(
            f"{name}: a sample of {number:,} points, at most {MOST_POINTS:,}; "
            "take fewer values with --sample, or leave some out"
        )
    places = [order.index(place) for place in range(len(order))]
    found: list[Indices] = []
    for sample in samples:
        found += [tuple([rows[place] for place in places]) for rows in sample.walk()]
    return sorted(found)


def _parts(dim: Dimension) -> list[list[int]]:
    """Return a dimension's rows, grouped by their values of axes that are not thinned."""
    columns = []
    for name, column in zip(dim.names, dim.columns, strict=True):
        if name not in SAMPLED:
            columns.append(column)
    parts: dict[str, list[int]] = {}
    for row in range(len(dim.masks)):
        key = canonical_json([column[row] for column in columns])
        parts.setdefault(key, []).append(row)
    return [*parts.values()]


def _thinned(points: Sequence[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return a sample of included points, for each combination of their other axes."""
    if not points:
        return []
    names = tuple(points[0])  # each has all axes
    columns = [[axes[name] for axes in points] for name in names]
    dim = Dimension(names, columns, [NO_CONDITION] * len(points))
    chosen = []
    for rows in _parts(dim):
        chosen += [points[row] for row in sorted(_thin(rows, dim, n))]
    return chosen


def _thin(rows: Sequence[int], dim: Dimension, n: int) -> list[int]:
    """Keep rows with `n` values of the first sampled axis, for each `n` of the next, and so on.

    The values lie at even distances, both ends included; of 1 it is the first.
    """
    groups = [[*rows]]
    for name in SAMPLED:
        if name not in dim.names:
            continue
        column = dim.columns[dim.names.index(name)]
        chosen = []
        for group in groups:
            by_value: dict[Any, list[int]] = {}
            for row in group:
                by_value.setdefault(column[row], []).append(row)
            of_values = [*by_value.values()]
            if n < len(of_values):
                gaps = max(n - 1, 1)
                of_values = [of_values[i * (len(of_values) - 1) // gaps] for i in range(n)]
            chosen += of_values
        groups = chosen
    return [*chain.from_iterable(groups)]
