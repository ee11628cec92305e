"""Sweep to a lazy, ordered stream of points; pure.

The model changes slowest, so that a worker keeps its network; the other axes follow in the order
of the file, then come the included points. Counting is exact and costs next to nothing, so a
command can tell the size of a sweep of millions before the first point is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import axis_defaults, setting_defaults
from hpcsweep.catalog.models import MODELS
from hpcsweep.errors import UsageError, nearest, suggest
from hpcsweep.point import ID_DIGITS, Point, canonical_json, point_id, without_defaults
from hpcsweep.spec.grid import Grid
from hpcsweep.spec.sampling import Sample, thin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hpcsweep.spec.grid import Dimension
    from hpcsweep.spec.space import Rule, Sweep

SAMPLED: Final = ("input_size", "batch_size")
_CACHED: Final = 100_000  # longer axes are not spelled out in memory


@dataclass(frozen=True)
class Touched:
    """How many combinations a rule of the file touched.

    An exclude removed them (another may have, too), a `when` gave them values, a zip formed them,
    an include added one.
    """

    rule: Rule
    points: int

    def to_json(self) -> dict[str, Any]:
        """Return a flat record."""
        rule = self.rule
        return {"rule": rule.kind, "line": rule.line, "text": rule.text, "points": self.points}


def expand(
    sweep: Sweep, *, gpu: str | None = None, rehearse: str | None = None, sample: int | None = None
) -> Expansion:
    """Return the points of a sweep, none of them made yet.

    gpu: only what a profile that serves this GPU takes; where the sweep does not say, its gpu is
    this one. rehearse: every point's gpu becomes this device, and points that become equal
    collapse. sample: so many evenly spread values of `SAMPLED` for every combination of the rest.
    """
    return Expansion(sweep, gpu=gpu, rehearse=rehearse, sample=sample)


class Expansion:
    """The points of a sweep: iterate over them, as often as you like; `len` is exact."""

    def __init__(
        self, sweep: Sweep, *, gpu: str | None, rehearse: str | None, sample: int | None
    ) -> None:
        """Select; costs one look at every value that a constraint may touch."""
        if gpu is not None and rehearse is not None:
            raise UsageError("points are either taken by a profile or rehearsed, not both")
        if sample is not None and sample < 1:
            raise UsageError(f"a sample of {sample}: needs 1 or more values of each numeric axis")
        self.sweep = sweep
        device = self._device = gpu if rehearse is None else rehearse
        space = sweep.space
        if device is not None and "gpu" not in space.names():
            space = replace(space, defaults={**space.defaults, "gpu": device})
        keep = {} if gpu is None else {"gpu": gpu}
        merge = {} if rehearse is None else {"gpu": rehearse}
        self._grid = Grid(space, keep=keep, merge=merge)
        self._sample = None if sample is None else Sample(self._grid, SAMPLED, sample)
        self._tally = self._grid.tally()
        self._include = self._included(gpu, rehearse, sample)
        self._count = self._tally.kept if self._sample is None else self._sample.count

    def __len__(self) -> int:
        """Return the number of points."""
        return self._count + len(self._include)

    def __iter__(self) -> Iterator[Point]:
        """Yield the points in order."""
        yield from self._made()
        sweep, defaults = self.sweep, axis_defaults(self.sweep.workload)
        settings = without_defaults(sweep.measure, setting_defaults(sweep.workload))
        for axes in self._include:
            named = point_id(sweep.workload, without_defaults(axes, defaults), settings)
            yield Point(sweep.workload, axes, sweep.measure, named)

    def first(self, n: int) -> list[Point]:
        """Return the first points."""
        return list(islice(self, n))

    def rules(self) -> list[Touched]:
        """Return what every rule of the file did, of the whole selection before sampling."""
        counts = {
            "exclude": self._tally.excluded_by,
            "when": self._tally.set_by,
            "zip": dict.fromkeys(range(len(self.sweep.space.zips)), self._tally.kept),
            "include": dict.fromkeys(self._added, 1),
        }
        return [Touched(rule, counts[rule.kind].get(rule.index, 0)) for rule in self.sweep.rules]

    def to_json(self, limit: int | None = 10) -> dict[str, Any]:
        """Return what ``expand --json`` prints; `limit` None is all points."""
        points = self if limit is None else self.first(limit)
        return {
            "points_total": len(self),
            "rules": [tally.to_json() for tally in self.rules()],
            "notes": [*self._without_ids(), *doubts(self.sweep)],
            "points": [flat(point) for point in points],
        }

    def _without_ids(self) -> list[str]:
        """Return why some points show no id, if so."""
        if self._device is not None or None not in self.sweep.values("gpu"):
            return []
        why = "a point's id depends on its gpu, which is the profile's where the sweep does not say"
        return [f"{why}: --cluster NAME shows the ids that it would measure"]

    def _included(
        self, gpu: str | None, rehearse: str | None, sample: int | None
    ) -> list[dict[str, Any]]:
        """Return the included points of the selection, each once, with the gpu that they get."""
        device = gpu if rehearse is None else rehearse
        found: dict[str, dict[str, Any]] = {}
        self._added: list[int] = []
        for index, given in enumerate(self.sweep.include):
            if gpu is not None and given["gpu"] not in {gpu, None}:
                continue
            axes = {**given, "gpu": given["gpu"] if device is None else device}
            key = canonical_json(axes)
            if key not in found and not self._grid.holds(axes):
                found[key] = axes
                self._added.append(index)
        if sample is None:
            return list(found.values())
        return _thinned(list(found.values()), sample)

    def _made(self) -> Iterator[Point]:
        """Yield the points of the grid; `_Ids` keeps what does not change between two of them."""
        grid, workload, measure = self._grid, self.sweep.workload, self.sweep.measure
        ids = _Ids(self.sweep, grid.fixed, grid.dims)
        axes = {name: grid.fixed[name] for name in axis_defaults(workload)}
        walk = grid.walk() if self._sample is None else self._sample.walk()
        outer, inner = grid.dims[:-1], [pair for dim in grid.dims[-1:] for pair in dim.named()]
        for rows, inner_rows in walk:
            for number, (dim, row) in enumerate(zip(outer, rows, strict=True)):
                for name, column in dim.named():
                    axes[name] = column[row]
                ids.set(number, row)
            for row in inner_rows:
                for name, column in inner:
                    axes[name] = column[row]
                ids.set(-1, row)
                yield Point(workload, axes.copy(), measure, ids.digest())


def flat(point: Point) -> dict[str, Any]:
    """Return a point as one flat record: its id (None while its gpu is open), then its axes."""
    named = None if point.axes["gpu"] is None else point.point_id
    return {"point_id": named, **point.axes}


def doubts(sweep: Sweep) -> list[str]:
    """Return what is allowed in a sweep and seldom meant: a no-op's model that is misspelt.

    `noop` takes any name as a model, since it runs none; but a file on which a cluster is tried out
    is then used for real.
    """
    if sweep.workload != "noop":
        return []
    names = [name for name in dict.fromkeys(sweep.values("model")) if name not in MODELS]
    return [
        f"model '{name}' is none that other workloads know{suggest(name, MODELS)}"
        for name in names
        if nearest(name, MODELS)
    ]


class _Ids:
    """`point.point_id` of one grid point after another, with the constant text prepared once."""

    def __init__(self, sweep: Sweep, fixed: Mapping[str, Any], dims: Sequence[Dimension]) -> None:
        self._defaults = axis_defaults(sweep.workload)
        varied = {name for dim in dims for name in dim.names}
        fragments = {name: self._fragment(name, value) for name, value in fixed.items()}
        names = sorted(name for name in fragments if name in varied or fragments[name])
        self._pieces = [fragments[name] for name in names]
        place = {name: i for i, name in enumerate(names)}
        self._dims = [
            [(place[name], self._spelled(name, column)) for name, column in dim.named()]
            for dim in dims
        ]
        settings = without_defaults(sweep.measure, setting_defaults(sweep.workload))
        measure, workload = canonical_json(settings), canonical_json(sweep.workload)
        self._tail = f'}},"measure":{measure},"workload":{workload}}}'

    def set(self, dim: int, row: int) -> None:
        """Take the values of a dimension's row."""
        for place, spelled in self._dims[dim]:
            self._pieces[place] = spelled[row]

    def digest(self) -> str:
        """Return the id of the combination that is set."""
        text = '{"axes":{' + "".join(self._pieces)[:-1] + self._tail
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:ID_DIGITS]

    def _fragment(self, name: str, value: object) -> str:
        """Return ``"name":value,`` or nothing for a default."""
        kept = without_defaults({name: value}, self._defaults)
        return canonical_json(kept)[1:-1] + "," if kept else ""

    def _spelled(self, name: str, column: Sequence[Any]) -> Sequence[str]:
        if len(column) <= _CACHED:
            return [self._fragment(name, value) for value in column]
        return _Spelled(column, lambda value: self._fragment(name, value))


class _Spelled(Sequence[str]):
    """The fragments of an axis too long to keep them."""

    def __init__(self, column: Sequence[Any], fragment: Callable[[object], str]) -> None:
        self._column, self._fragment = column, fragment

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401 - rows are taken one by one
        return self._fragment(self._column[row])


def _thinned(points: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return a sample of included points: per combination of their other axes."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for axes in points:
        rest = {name: value for name, value in axes.items() if name not in SAMPLED}
        groups.setdefault(canonical_json(rest), []).append(axes)
    keys = [itemgetter(name) for name in SAMPLED]
    return [axes for group in groups.values() for axes in thin(group, keys, n)]
