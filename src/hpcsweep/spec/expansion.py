"""Makes the points of a sweep, in order and one by one; the number of points is known before.

The model changes slowest, so that a worker keeps its network; the other axes follow in the order
of the file, then the included points.

A sample has N evenly spread values of some axes for every combination of the others: these axes are
thinned before the combinations are made. With two axes, N values of the first are taken, and for
each of them N values of the second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache
from itertools import chain, islice, product
from typing import Any, Final

from hpcsweep.catalog import VISIT, setting_defaults, sizes_of_inputs
from hpcsweep.errors import UsageError
from hpcsweep.point import ID_DIGITS, Point, canonical_json, point_id, same, without_defaults
from hpcsweep.spec.grid import NEUTRAL, Dimension, Grid, Indices, Masks, grid_of, joined
from hpcsweep.spec.space import Predicate, Sweep

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
    thinned = Sample(grid, sample)
    if thinned.count > MOST_POINTS:  # they would be listed
        raise UsageError(
            f"{sweep.name}: a sample of {thinned.count:,} points, at most {MOST_POINTS:,}; "
            "take fewer values with --sample, or leave some out"
        )
    return Expansion(sweep, thinned, _thinned(included, sample), has_ids=device is not None)


class Expansion:
    """The points of a sweep, made anew in each run through them; `len` is exact."""

    def __init__(
        self,
        sweep: Sweep,
        grid: Grid,
        included: Sequence[dict[str, Any]],
        *,
        has_ids: bool,
    ) -> None:
        self.sweep = sweep
        self.chosen: frozenset[str] | None = None  # the ids of a part; None: all points
        self._grid = grid
        self._included = included
        self._has_ids = has_ids or None not in sweep.values("gpu")
        self._defaults = sweep.space.defaults
        self._settings = without_defaults(sweep.measure, setting_defaults(sweep.workload))

    def only(self, ids: frozenset[str]) -> Expansion:
        """Return a part: the points that have these ids."""
        part = copy(self)
        part.chosen = ids
        return part

    def __len__(self) -> int:
        if self.chosen is not None:
            return sum(1 for _ in self)  # some of the ids may be of other points
        return self._grid.count + len(self._included)

    def __iter__(self) -> Iterator[Point]:
        for point in self._made():
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

    def _made(self) -> Iterator[Point]:
        """Yield the points of the grid, then those included.

        The text of an id is kept in pieces, of which few change from point to point.
        """
        sweep = self.sweep
        axes = dict(self._defaults)
        pieces = dict.fromkeys(sorted(self._named()), "")  # an id has axes in order of names
        head = '{"axes":{'
        tail = f'}},"measure":{canonical_json(self._settings)},"workload":"{sweep.workload}"}}'
        cells_of = lru_cache(_REMEMBERED)(self._cells)
        before: Sequence[int | None] = [None] * len(self._grid.dims)
        for rows in self._grid.walk():
            for place, row in enumerate(rows):
                if row != before[place]:
                    for name, value, piece in cells_of(place, row):
                        axes[name] = value
                        if name in pieces:
                            pieces[name] = piece
            before = rows
            text = head + "".join(pieces.values())[:-1] + tail
            named = hashlib.sha256(text.encode("ascii")).hexdigest()[:ID_DIGITS]
            yield Point(sweep.workload, axes.copy(), sweep.measure, named)
        for included in self._included:
            given = without_defaults(included, self._defaults)
            named = point_id(sweep.workload, given, self._settings)
            yield Point(sweep.workload, included, sweep.measure, named)

    def _named(self) -> Iterator[str]:
        """Yield the axes that have other values than their default, which ids name."""
        for dim in self._grid.dims:
            for name, column in zip(dim.names, dim.columns, strict=True):
                if not all(same(value, self._defaults[name]) for value in column):
                    yield name

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


class Sample(Grid):
    """The combinations of a grid with N values of the axes in `SAMPLED`, which come last."""

    def __init__(self, grid: Grid, n: int) -> None:
        thinned = []  # in the order of `SAMPLED`, in which they are thinned
        for name in SAMPLED:
            for place, dim in enumerate(grid.dims):
                if name in dim.names and len(dim.masks) > 1 and place not in thinned:
                    thinned.append(place)
        others = [place for place in range(len(grid.dims)) if place not in thinned]
        order = [*others, *thinned]
        dims = [grid.dims[place] for place in order]
        super().__init__(dims, grid.excludes, grid.sources, len(others))
        self._n = n
        self._places = [order.index(place) for place in range(len(order))]
        self._parts = [_parts(dim) for dim in self.dims[self.depth :]]
        self._chosen: dict[Masks, list[Indices]] = {}

    def walk(self) -> Iterator[Indices]:
        """Yield the combinations in the order of the grid, for which all are listed first."""
        found = []
        for others in super().walk():
            found += [others + rows for rows in self.ends(self.masks_of(others))]
        yield from sorted(found, key=lambda rows: [rows[place] for place in self._places])

    def ends(self, masks: Masks) -> Sequence[Indices]:
        """Return the rows of the thinned dimensions that go with masks of the others."""
        if masks not in self._chosen:
            chosen: list[Indices] = []
            for parts in product(*self._parts):
                chosen += self._choose(masks, parts)
            self._chosen[masks] = chosen
        return self._chosen[masks]

    def _choose(self, masks: Masks, parts: Sequence[Sequence[int]]) -> Sequence[Indices]:
        """Return the chosen rows of the last thinned dimensions, from the rows in `parts`."""
        if not parts:
            return super().ends(masks)
        dim = self.dims[-len(parts)]
        after = {more: self._choose(joined(masks, more), parts[1:]) for more in dim.counts}
        possible = [row for row in parts[0] if after[dim.masks[row]]]
        ends: list[Indices] = []
        for row in _thin(possible, dim, self._n):
            ends += [(row, *rows) for rows in after[dim.masks[row]]]
        return ends


def _parts(dim: Dimension) -> list[list[int]]:
    """Return a dimension's rows, grouped by their values of axes that are not thinned."""
    columns = [dim.column(name) for name in dim.names if name not in SAMPLED]
    parts: dict[tuple[str, ...], list[int]] = {}
    for row in range(len(dim.masks)):
        key = tuple([canonical_json(column[row]) for column in columns])
        parts.setdefault(key, []).append(row)
    return list(parts.values())


def _thinned(points: Sequence[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return a sample of included points, for each combination of their other axes."""
    if not points:
        return []
    names = tuple(points[0])  # each has all axes
    columns = [[axes[name] for axes in points] for name in names]
    dim = Dimension(names, columns, [NEUTRAL] * len(points))
    chosen = []
    for rows in _parts(dim):
        chosen += [points[row] for row in sorted(_thin(rows, dim, n))]
    return chosen


def _thin(rows: Sequence[int], dim: Dimension, n: int) -> list[int]:
    """Keep rows with `n` values of the first sampled axis, for each `n` of the next, and so on."""
    groups: list[Sequence[int]] = [rows]
    for name in SAMPLED:
        if name in dim.names:
            column = dim.column(name)
            groups = [*chain.from_iterable(_spread(group, column, n) for group in groups)]
    return [*chain.from_iterable(groups)]


def _spread(rows: Sequence[int], column: Sequence[Any], n: int) -> list[list[int]]:
    """Return the rows of `n` values at even distances, both ends included; of 1 the first."""
    groups: dict[Any, list[int]] = {}
    for row in rows:
        groups.setdefault(column[row], []).append(row)
    values = [*groups]
    if n < len(values):
        gaps = max(n - 1, 1)
        values = [values[i * (len(values) - 1) // gaps] for i in range(n)]
    return [groups[value] for value in values]
